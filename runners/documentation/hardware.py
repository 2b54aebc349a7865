"""The page of models, GPUs and engines that there are."""

from __future__ import annotations

from serving_gym.calibration.engines import load_engines
from serving_gym.calibration.hardware import GPUS
from serving_gym.calibration.models import MODELS, PRECISIONS
from serving_gym.runners.documentation.markdown import table


def hardware_page() -> str:
    """Tables of models, GPUs and serving engines."""
    return (
        "\n\n".join(
            [
                "# Models, GPUs, engines",
                "Names that `cluster.model`, `cluster.gpu` and `cluster.engine` take. "
                "[Adding a model or a GPU](../../docs/adding.md#a-model).",
                "## Models",
                table(
                    ["model", "layers", "width", "experts, active", "weights, GB", "context, tokens"],
                    (
                        [
                            f"`{name}`",
                            str(spec.num_layers),
                            f"{spec.hidden:,}",
                            f"{spec.num_experts}, {spec.experts_per_token}" if spec.num_experts else "",
                            f"{spec.weight_bytes / 1e9:.3g}",
                            f"{spec.max_model_len:,}",
                        ]
                        for name, spec in sorted(MODELS.items())
                    ),
                ),
                f"With {', '.join(f'`-{name}`' for name in PRECISIONS)} behind its name a model has its matrices, or "
                "its KV cache, in that type.",
                "## GPUs",
                table(
                    ["GPU", "memory, GB", "bandwidth, TB/s", "bf16, TFLOP/s", "interconnect, GB/s", "USD/h"],
                    (
                        [
                            f"`{name}`",
                            f"{gpu.memory_bytes / 1e9:.3g}",
                            f"{gpu.bandwidth / 1e12:.3g}",
                            f"{gpu.flops['bf16'] / 1e12:.4g}",
                            f"{gpu.nvlink_bandwidth / 1e9:.4g}",
                            "" if gpu.price_usd_per_hour is None else f"{gpu.price_usd_per_hour:.2f}",
                        ]
                        for name, gpu in GPUS.items()
                    ),
                ),
                "## Serving engines",
                ", ".join(f"`{name}`" for name in sorted({key.partition("|")[0] for key in load_engines()}))
                + '; `""`: the profile from kernel tables alone.',
            ]
        )
        + "\n"
    )
