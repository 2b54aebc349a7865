"""Which profiles are fitted, from which runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving_gym.calibration.fitting.data import Run, closed_loop_runs, open_loop_runs

FIT_GPUS = ("H100", "H200")


@dataclass(frozen=True)
class Target:
    """A profile to fit: a model on a GPU at some widths."""

    model: str
    gpu: str
    widths: tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """Profiles that share engine overheads.

    Args:
        name: Name in the provenance.
        engine: The engine whose host terms the profiles take.
        models: Models whose runs the overheads are fitted to.
        targets: Profiles written.
        notes: What a user of the profiles should know.
    """

    name: str
    engine: str
    models: tuple[str, ...]
    targets: tuple[Target, ...]
    notes: tuple[str, ...] = ()

    def runs(self) -> list[Run]:
        """Runs on the GPUs that are fitted, in a fixed order."""
        everything: Sequence[Run] = closed_loop_runs() + open_loop_runs()
        return [run for run in everything if run.model in self.models and run.gpu in FIT_GPUS]

    def other_gpu_runs(self) -> list[Run]:
        """Runs of the same engine on GPUs that are never fitted."""
        return [
            run
            for run in open_loop_runs()
            if run.model in self.models and run.gpu not in FIT_GPUS and run.engine == self.engine
        ]


GPT_OSS = Family(
    name="gpt-oss",
    engine="vLLM 0.18, MXFP4",
    models=("gpt-oss-120b",),
    targets=(Target("gpt-oss-120b", "H200", (1, 2, 4, 8)), Target("gpt-oss-120b", "H100", (2, 4, 8))),
    notes=("expert load between the two power laws of the MoE table",),
)

DENSE = Family(
    name="dense Llama",
    engine="vLLM 0.15.1, 16 bit",
    models=(
        "llama-2-7b",
        "llama-3.1-8b",
        "codellama-34b",
        "llama-2-70b",
        "llama-3.1-70b",
        "llama-3.1-70b-fp8",
    ),
    targets=(
        Target("nemotron-8b-ultralong", "H200", (1, 2, 4, 8)),
        Target("llama-3-70b", "H200", (2, 4, 8)),
        Target("llama-3.1-8b", "H100", (1, 2, 4, 8)),
        Target("llama-3.1-8b", "H200", (1, 2, 4, 8)),
        Target("llama-3.1-8b", "A100-80GB", (1, 2, 4, 8)),
        Target("llama-3.1-70b", "H100", (4, 8)),
        Target("llama-3.1-70b", "H200", (2, 4, 8)),
        Target("llama-3.1-70b", "A100-80GB", (4, 8)),
        Target("llama-2-7b", "A100-80GB", (1, 2, 4)),
        Target("llama-2-7b", "H100", (1, 2, 4)),
        Target("llama-2-13b", "H100", (1, 2, 4)),
        Target("llama-2-70b", "A100-80GB", (4, 8)),
        Target("llama-2-70b", "H100", (4, 8)),
    ),
    notes=(
        "host terms from 16-bit runs of vLLM 0.15.1 on H100; the wait at all-reduces mostly from the fp8 70B runs, the "
        "only ones at every width",
        "no end-to-end run of a 16-bit model on H200 is among the data",
    ),
)

FAMILIES = (GPT_OSS, DENSE)
