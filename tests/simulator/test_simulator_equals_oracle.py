"""On calibrated latencies and realistic requests, the simulator's results are the oracle's."""

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.kernel.state import PS_PER_S
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from tests.simulator.oracle_of import oracle_of, run_oracle


@pytest.mark.parametrize("router", ["jsq", "round_robin", "least_requests"])
@pytest.mark.parametrize("rate_scale", [1.0, 30.0])
@pytest.mark.parametrize("front_end", ["included", "none"])
def test_a_stream_gives_the_oracles_times(router: str, rate_scale: float, front_end: str) -> None:
    spec = ClusterSpec(
        model="llama-3.1-8b",
        gpu="H100",
        num_gpus=4,
        max_group=1,
        router=router,
        order="fcfs",
        front_end=front_end,
    )
    workload = WorkloadSource(
        WorkloadSpec("azure_conv_fitted", num_requests=80, rate_scale=rate_scale)
    ).sample(0)
    simulator = Simulator(spec, (SLO(0.5, 0.02),))
    simulator.reset(workload)
    oracle = oracle_of(simulator)
    run_oracle(oracle)
    simulator.run_to_completion()
    records = simulator.results()
    for column in ("first_scheduled", "first_token", "finish"):
        expected = np.array([getattr(request, f"{column}_ps") for request in oracle.arrivals]) / PS_PER_S
        np.testing.assert_array_equal(getattr(records, f"{column}_s"), expected)
    assert records.preemptions.tolist() == [request.preemptions for request in oracle.arrivals]
