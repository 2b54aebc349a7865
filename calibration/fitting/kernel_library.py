"""Derives the committed kernel coefficients of every model, GPU and width from the kernel tables."""

from collections.abc import Iterator
from pathlib import Path

from serving_gym.calibration.coefficients import LatencyCoefficients
from serving_gym.calibration.fitting.data import AIC_SYSTEM, data_path
from serving_gym.calibration.fitting.kernels import fit_kernels
from serving_gym.calibration.hardware import GpuSpec, get_gpu
from serving_gym.calibration.kernels import FOLDER, RANK, dump_kernels, kernel_file_name
from serving_gym.calibration.memory import check_fits
from serving_gym.calibration.models import MODELS, ModelSpec, get_model

WIDTHS = (1, 2, 4, 8)
SPLITS = ("tp", "ep")
INT4_MODELS = ("kimi-k2.5",)

KERNEL_TABLES = tuple(
    f"profiles/{name}.parquet"
    for name in (
        "aic_gemm",
        "aic_moe",
        "aic_attention_prefill",
        "aic_attention_decode",
        "aic_allreduce_vllm",
        "aic_nccl",
    )
)


def variants(gpu: GpuSpec) -> Iterator[ModelSpec]:
    """Every model in every precision that a GPU computes in."""
    for name in MODELS:
        yield get_model(name)
        if name.startswith("gpt-oss"):
            continue
        for precision in ("fp8", "fp4"):
            if precision in gpu.flops:
                yield get_model(f"{name}-{precision}")
        if name in INT4_MODELS:
            yield get_model(f"{name}-int4")


def fits(model: ModelSpec, gpu: GpuSpec, width: int) -> bool:
    """Whether a model's weights fit."""
    try:
        check_fits(model, gpu, width)
    except ValueError:
        return False
    return True


def splits(model: ModelSpec, gpu: GpuSpec, width: int) -> tuple[str, ...]:
    """Ways to split experts over `width` GPUs.

    GPUs that hold everything but the experts may be a rank of data-parallel attention (`kernels.RANK`).
    """
    if fits(model, gpu, width):
        return SPLITS if model.num_experts and width > 1 else SPLITS[:1]
    ranks = (
        model.num_experts
        and fits(model, gpu, max(WIDTHS))
        and model.dense_weight_bytes < width * gpu.memory_bytes
    )
    return (RANK,) if ranks else ()


def kernel_library(gpu: GpuSpec) -> dict[tuple[str, int, str], LatencyCoefficients]:
    """Coefficients of everything that fits a GPU and whose attention was measured on it."""
    rows = {}
    for model in variants(gpu):
        for width in WIDTHS:
            for split in splits(model, gpu, width):
                try:
                    fit = fit_kernels(model, gpu, width, split == "ep", ratios=True)
                except (LookupError, ValueError):  # heads of a size that was never measured on this GPU
                    continue
                rows[(model.name, width, split)] = fit.coefficients
    return rows


def write_library(folder: Path) -> list[Path]:
    """Writes the coefficients of every GPU with tables under `folder`, once all are fitted; returns the files.

    Raises:
        ValueError: The reference data are not at hand, or hold no kernel of a GPU.
    """
    for table in KERNEL_TABLES:
        data_path(table)
    libraries = {gpu: kernel_library(get_gpu(gpu)) for gpu in AIC_SYSTEM}
    for gpu, library in libraries.items():
        if not library:
            raise ValueError(f"the reference data hold no kernel of {gpu}; nothing was written")
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    written = []
    for gpu, library in libraries.items():
        path = folder / FOLDER / kernel_file_name(gpu)
        path.write_text(dump_kernels(library), encoding="utf-8")
        written.append(path)
    return written
