"""The observation that follows from the typed state is the one that the kernel writes, and so is the reward's view."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.interface.fleet import Crash, FleetConfig, GroupSpec, NetworkLatency, ReplicaSpec
from serving_gym.envs.routing.observation import StateEncoder, expected_output
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from tests.defaults import make_env

H100 = ReplicaSpec("llama-3.1-8b", "H100")
SMALL = ReplicaSpec("llama-3.1-8b", "H100", kv_blocks=800, max_num_seqs=24)
TP2 = ReplicaSpec("llama-3.1-8b", "H100", tp_size=2)
BUSY = WorkloadSpec(name="azure_conv_fitted", num_requests=250, rate_rps=60.0)
FLEETS = {
    "mixed, small pools": {"cluster": FleetConfig(groups=(GroupSpec(SMALL, 2), GroupSpec(TP2, 1)))},
    "old gauges, spare rows": {"gauge_interval_s": 1.5, "max_places": 6},
    "crash": {"cluster": FleetConfig(groups=(GroupSpec(SMALL, 3),), crashes=(Crash(1.0, 1), Crash(2.0, 0)))},
    "poor predictions": {"prediction": PredictionSpec(name="lognormal", sigma=1.5)},
    "prefix caches": {
        "cluster": FleetConfig(groups=(GroupSpec(H100, 3),), prefix_caching=True),
        "workload": WorkloadSpec(name="mooncake_conv_fitted", num_requests=150, rate_rps=12.0),
    },
}
REGIONS = FleetConfig(
    groups=(GroupSpec(H100, 1, region="east"), GroupSpec(H100, 1, region="west")),
    network=(NetworkLatency(("east", "west"), 0.4),),
)


@pytest.mark.parametrize("arguments", FLEETS.values(), ids=FLEETS)
def test_the_typed_state_gives_the_kernels_observation(arguments):
    check_encoding(make_env("routing", **{"workload": BUSY, **arguments}))


def test_so_it_does_between_regions(tmp_path):
    rng = np.random.default_rng(1)
    workload = Workload(
        arrival_s=np.sort(rng.uniform(0, 8, 120)),
        input_tokens=rng.integers(20, 900, 120),
        output_tokens=rng.integers(2, 200, 120),
        region_id=rng.integers(0, 2, 120),
        regions=("east", "west"),
    )
    trace = WorkloadSpec(
        name="file", path=str(write_trace(workload, tmp_path / "trace.parquet")), split="all"
    )
    check_encoding(make_env("routing", workload=trace, cluster=REGIONS, split="all"))


def check_encoding(env):
    """Compares the two over an episode of random routing."""
    spec = env.policy_spec
    encoder = StateEncoder(spec.fleet, spec.slos, env.config.scales, env.config.num_rows)
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=3)
    seen = {key: np.zeros(value.shape[-1], bool) for key, value in observation.items()}
    done = False
    while not done:
        encoded, mask = encoder.encode(env.state)
        np.testing.assert_array_equal(mask, env.action_masks())
        for key, value in observation.items():
            np.testing.assert_allclose(encoded[key], value, rtol=2e-5, atol=2e-6, err_msg=key)
            seen[key] |= value.reshape(-1, value.shape[-1]).any(axis=0)
        action = int(rng.choice(np.flatnonzero(env.action_masks())))
        observation, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
    assert seen["places"].sum() >= 16  # few features are zero throughout
    assert seen["cluster"].sum() >= 8


def test_an_answer_that_outlives_its_prediction_is_given_a_fifth_more():
    """10 -> 12 -> 14 -> 16 -> 19: the first that is above 17."""
    given = expected_output(np.array([10, 10, 0], np.int32), np.array([9, 17, 0]))
    assert given.tolist() == [10, 19, 1]
