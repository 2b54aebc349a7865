"""Benchmarked capacity of an instance within its SLOs, prompt tokens/s, by simulation: SageServe's theta."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.fleet.build import context_tokens
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.workload.schema import TokenArray, Workload

SHARE = 0.95  # of requests that must attain both SLOs; source: ours, the percentile that SageServe reports
PROBES = 1500  # requests of a trial; source: ours
PATIENCE = 0.1  # largest TTFT limit, as a share of a trial's length; source: ours
_STEPS = 7  # halvings: to within a hundredth of the bracket


def measure_capacity(
    replica: ReplicaSpec, inputs: TokenArray, outputs: TokenArray, slo: SLO, probes: int = PROBES
) -> float:
    """Highest load, prompt tokens/s, at which one instance attains the SLOs of 95 % of Poisson arrivals.

    A promise that is long beside the trial counts as a tenth of it: a minute's patience would forgive any load for some
    seconds.

    Args:
        replica: What the instance is; requests whose prompts exceed its `max_model_len` are left out.
        inputs: (N,) prompt lengths of requests as they come; none: the load is unknown, 0.
        outputs: (N,) their output lengths.
        slo: The SLO.
        probes: Requests of a trial; the more, the less the figure depends on which were drawn.
    """
    inside = inputs < context_tokens(replica)
    inputs, outputs = inputs[inside], outputs[inside]
    if not len(inputs):
        return 0.0
    rows = np.arange(probes) % len(inputs)
    return _measured(replica, inputs[rows].tobytes(), outputs[rows].tobytes(), slo)


@lru_cache(maxsize=256)
def _measured(replica: ReplicaSpec, inputs: bytes, outputs: bytes, slo: SLO) -> float:
    input_tokens, output_tokens = np.frombuffer(inputs, np.int32), np.frombuffer(outputs, np.int32)
    gaps = np.random.default_rng(0).standard_exponential(len(input_tokens))
    simulator = FleetSimulator(FleetSpec((GroupSpec(replica, 1),)), (slo,))

    def keeps(rate_rps: float) -> bool:
        workload = Workload(
            arrival_s=np.cumsum(gaps) / rate_rps, input_tokens=input_tokens, output_tokens=output_tokens
        )
        simulator.reset(workload)
        simulator.run_to_completion()
        records = simulator.results()
        patience_s = min(slo.ttft_s, PATIENCE * float(workload.arrival_s[-1]))
        kept = (records.ttft_s <= patience_s) & ~(records.tpot_s > slo.tpot_s)
        return bool(kept.mean() >= SHARE)

    low, high = 0.0, 1.0
    while keeps(high) and high < 2.0**12:
        low, high = high, 2.0 * high
    while low == 0.0 and high > 2.0**-12:
        high = high / 2.0
        low = high if keeps(high) else 0.0
    if low == 0.0:
        return 0.0
    high = 2.0 * low
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low * float(input_tokens.mean())
