"""Single iterations, prefill and decode: the form of Splitwise's performance model."""

from dataclasses import dataclass, field
from typing import Any

from serving_gym.calibration.deployments import Deployment
from serving_gym.calibration.engines import BENCHMARKED_ENGINES
from serving_gym.calibration.measured.names import gpu_name, model_name
from serving_gym.calibration.profile import Profile

COLUMNS = ("prompt_size", "batch_size", "token_size", "prompt_time_ms", "token_time_ms", "hardware")
MS = 1e-3


@dataclass(frozen=True)
class Step:
    """One measured configuration.

    Args:
        deployment: The engine.
        prompt: Prompt of each sequence, tokens.
        batch: Sequences.
        output: Output of each sequence, tokens.
        prefill_s: Measured prefill of the whole batch, s.
        decode_s: Measured mean decode step, s.
        row: Row of the published table.
    """

    deployment: Deployment
    prompt: int
    batch: int
    output: int
    prefill_s: float = field(compare=False)
    decode_s: float = field(compare=False)
    row: int = field(compare=False)

    @property
    def context(self) -> float:
        """Mean context of a decode step over the batch, tokens."""
        return self.batch * (self.prompt + self.output / 2.0)


def step_of(row: dict[str, Any], index: int) -> Step:
    """One row.

    Raises:
        ValueError: Model or hardware is unknown.
    """
    for name in ("tensor_parallel", "prompt_size", "batch_size", "token_size"):
        if not float(row[name]) >= 1:
            raise ValueError(f"{name} must be at least 1")
    return Step(
        Deployment(
            model_name(str(row["model"])),
            gpu_name(str(row["hardware"])),
            int(row["tensor_parallel"]),
            BENCHMARKED_ENGINES["steps"],
        ),
        int(row["prompt_size"]),
        int(row["batch_size"]),
        int(row["token_size"]),
        float(row["prompt_time_ms"]) * MS,
        float(row["token_time_ms"]) * MS,
        index,
    )


def predict_step(step: Step, profile: Profile) -> dict[str, float]:
    """Predicted prefill of the batch in one iteration, and mean decode step, s."""
    model = profile.latency_model(step.deployment.tp)
    chunks = [(0, step.prompt)] * step.batch
    return {
        "prefill_step": model.iteration_s(0, 0.0, chunks),
        "decode_step": model.iteration_s(step.batch, step.context),
    }
