"""One measured run of one deployment, whatever form it was published in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibration.deployments import Deployment
from envs.metrics import RequestRecords
from envs.workload.schema import Workload

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """Requests of a run that one measured row speaks of.

    Args:
        first: First request.
        last: One past the last.
        measured: Measured values by target, s.
        row: Row of the published table.
    """

    first: int
    last: int
    measured: Mapping[str, float]
    row: int


@dataclass(frozen=True)
class ServingRun:
    """Requests served by one engine, and what was measured of them.

    Args:
        deployment: The engine.
        workload: Builds its requests; nothing is built before it is asked for.
        stages: The measured rows.
        max_num_seqs: Most sequences in an iteration.
        max_num_batched_tokens: Most tokens in an iteration.
        memory_utilization: Share of GPU memory that the engine may use.
        cached_context_tokens: Mean context of a request that was found in the prefix cache and is not among the
            workload's input tokens, tokens.
        chunked_prefill: Whether prompts are computed in chunks beside decoding requests.
        statistic: How the source condenses requests into one number.
        load: Requests per second or clients, for tables.
    """

    deployment: Deployment
    workload: Callable[[], Workload] = field(hash=False, compare=False)
    stages: tuple[Stage, ...]
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    memory_utilization: float = 0.9
    cached_context_tokens: float = 0.0
    chunked_prefill: bool = True
    statistic: str = "mean"
    load: float = 0.0

    def condense(self, records: RequestRecords, stage: Stage) -> dict[str, float]:
        """Figures of one stage as its source condenses them, s."""
        part = slice(stage.first, stage.last)
        condensed = np.median if self.statistic == "median" else np.mean
        arrival, first, finish = records.arrival_s[part], records.first_token_s[part], records.finish_s[part]
        output = records.output_tokens[part].astype(np.float64)
        several = output > 1
        tpot = (finish - first)[several] / (output[several] - 1.0)
        return {
            "ttft": float(condensed(first - arrival)),
            "ttft_p99": float(np.quantile(first - arrival, 0.99)),
            "tpot": float(condensed(tpot)),
            "e2e": float(condensed(finish - arrival)),
        }
