"""What an instance is benchmarked at."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.autoscaling.capacity import PROBES, measure_capacity
from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.workload.schema import Workload

REPLICA = ReplicaSpec("llama-3.1-8b", "A100-80GB", max_num_seqs=64)
PROMPTS, ANSWERS = np.full(PROBES, 600, np.int32), np.full(PROBES, 50, np.int32)


def most_tps() -> float:
    """Prompt tokens/s when all requests are there from the start: more no load that lasts can come to."""
    simulator = FleetSimulator(FleetSpec((GroupSpec(REPLICA, 1),)), (SLO(1.0, 1.0),))
    simulator.reset(Workload(arrival_s=np.zeros(PROBES), input_tokens=PROMPTS, output_tokens=ANSWERS))
    simulator.run_to_completion()
    return float(PROMPTS.sum() / simulator.results().finish_s.max())


def test_patience_makes_no_load_bearable_that_does_not_last() -> None:
    """An hour's patience forgives any backlog of 1500 requests, and yet the capacity stays what the instance does."""
    strict, lax, patient = (
        measure_capacity(REPLICA, PROMPTS, ANSWERS, SLO(ttft_s, 1.0)) for ttft_s in (0.2, 2.0, 3600.0)
    )
    assert 0 < strict < lax <= patient
    assert (
        0.8 * most_tps() < patient < 1.2 * most_tps()
    )  # a tenth may be left at the end, one in twenty be late
