"""One measured run of one deployment, whatever form it was published in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.deployments import Deployment
from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.workload.schema import Workload

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """Requests of a run that one measured row speaks of.

    Args:
        first: First request.
        last: One past the last.
        measured: Measured values by target, s.
        row: Row of the published table.
        rate_rps: Arrivals, 1/s; 0 for a closed loop.
        cold: Requests at the beginning that means leave out, as their prompts are not cached yet (shorter runs only).
        tail: Place from above of the 99th percentile among the requests of the whole stage; 0 where this is the whole.
    """

    first: int
    last: int
    measured: Mapping[str, float]
    row: int
    rate_rps: float = 0.0
    cold: int = 0
    tail: int = 0

    def ttft_p99(self, ttft: Times) -> float:
        """99th percentile of the whole stage, s, from the times to first token of this one.

        The worst requests of a stage are those whose prompts are not cached yet, of which a shorter stage has as many.
        """
        if self.tail:
            return float(np.sort(ttft)[-min(self.tail, len(ttft))])
        return float(np.quantile(ttft, 0.99))


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
        prefix_caching: Whether the engine keeps prompts that begin alike.
        chunked_prefill: Whether prompts are computed in chunks beside decoding requests.
        statistic: How the source condenses requests into one number.
        comparison: Runs with one value are the same load on layouts of different width; empty for none.
        context_tokens: Mean context of a decoding request, tokens.
        output_tokens: Mean output, tokens.
        prefill_tokens: Mean part of a prompt that is not found in the prefix cache, tokens.
        clients: Clients of a closed loop, each with one request at a time; 0 for an open loop.
        configuration: What repeats of one measurement have in common.
        shorter: Makes the workload and stages of a shorter run in the same steady state, for fits.
    """

    deployment: Deployment
    workload: Callable[[], Workload] = field(hash=False, compare=False)
    stages: tuple[Stage, ...]
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    memory_utilization: float = 0.9
    prefix_caching: bool = False
    chunked_prefill: bool = True
    statistic: str = "mean"
    comparison: str = ""
    context_tokens: float = 0.0
    output_tokens: float = 0.0
    prefill_tokens: float = 0.0
    clients: int = 0
    configuration: str = ""
    shorter: "Callable[[], tuple[Callable[[], Workload], tuple[Stage, ...]]] | None" = field(
        default=None, hash=False, compare=False
    )

    @property
    def rate_rps(self) -> float:
        """Arrivals of the busiest stage, 1/s; 0 for a closed loop."""
        return max(stage.rate_rps for stage in self.stages)

    def condense(self, records: RequestRecords, stage: Stage) -> dict[str, float]:
        """Figures of one stage as its source condenses them, s."""
        every = slice(stage.first, stage.last)
        part = slice(stage.first + stage.cold, stage.last)
        condensed = np.median if self.statistic == "median" else np.mean
        arrival, first, finish = records.arrival_s[part], records.first_token_s[part], records.finish_s[part]
        output = records.output_tokens[part].astype(np.float64)
        several = output > 1
        tpot = (finish - first)[several] / (output[several] - 1.0)
        return {
            "ttft": float(condensed(first - arrival)),
            "ttft_p99": stage.ttft_p99(records.first_token_s[every] - records.arrival_s[every]),
            "tpot": float(condensed(tpot)),
            "e2e": float(condensed(finish - arrival)),
        }
