"""Kernel-level coefficients of every model, GPU and width that kernel tables cover, as committed.

Derived from the kernel tables by `runners.calibrate target=kernels`; the tables themselves are not needed at run time.
"""

import csv
from dataclasses import fields
from functools import cache
from importlib import resources

from serving_gym.calibration.coefficients import LatencyCoefficients

FOLDER = "kernel_tables"
# GPUs without tables of their own, and the relation whose efficiencies stand in for theirs.
RELATIVES = {"B300": "B200"}
RANK = "rank"  # split of experts of a width that holds attention and dense weights only
_OTHERS = (
    "matrix_ratios",
    "eager_layer_s",
)  # a list in a cell of its own, and nothing that a kernel table tells
SCALARS = tuple(field.name for field in fields(LatencyCoefficients) if field.name not in _OTHERS)


def kernel_file_name(gpu: str) -> str:
    """File of one GPU's coefficients."""
    return f"{gpu.lower()}.csv"


@cache
def load_kernels(gpu: str) -> dict[tuple[str, int, str], LatencyCoefficients]:
    """Coefficients on one GPU by (model, width, split of experts); empty where nothing of it was measured."""
    file = resources.files("serving_gym.calibration") / FOLDER / kernel_file_name(gpu)
    if not file.is_file():
        return {}
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return {
        (row["model"], int(row["tp"]), row["split"]): LatencyCoefficients(
            **{name: float(row[name]) for name in SCALARS},
            matrix_ratios=tuple(float(value) for value in row["matrix_ratios"].split()),
        )
        for row in rows
    }


def find_kernels(
    model: str, gpu: str, tp: int, expert_parallel: bool = False, of_rank: bool = False
) -> LatencyCoefficients | None:
    """Coefficients of one deployment without any engine around them, or None where no table covers it.

    Args:
        model: Name of the model.
        gpu: Name of the GPU.
        tp: GPUs of the engine.
        expert_parallel: Whether experts are spread over the GPUs rather than split.
        of_rank: Whether the GPUs are one rank of data-parallel attention, which need not hold the experts.
    """
    measured = model.removesuffix("-kv8")  # bytes over bandwidth: half of them take half of the time
    rows = load_kernels(RELATIVES.get(gpu, gpu))
    found = rows.get((measured, tp, "ep" if expert_parallel else "tp"))
    return rows.get((measured, tp, RANK)) if found is None and of_rank else found


def dump_kernels(rows: dict[tuple[str, int, str], LatencyCoefficients]) -> str:
    """Writes one GPU's coefficients as CSV, to five significant digits."""
    lines = [",".join(("model", "tp", "split", *SCALARS, "matrix_ratios"))]
    for (model, tp, split), coefficients in sorted(rows.items()):
        values = [f"{getattr(coefficients, name):.5g}" for name in SCALARS]
        ratios = " ".join(f"{ratio:.4g}" for ratio in coefficients.matrix_ratios)
        lines.append(",".join((model, str(tp), split, *values, ratios)))
    return "\n".join(lines) + "\n"
