"""Routing between regions: who can be reached, what the way costs, what is on its way."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, NetworkLatency, ReplicaSpec
from serving_gym.envs.routing.state import Dispatch
from serving_gym.envs.simulator.kernel.features import PLACE_FEATURES
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from tests.defaults import make_env

H100 = ReplicaSpec("llama-3.1-8b", "H100")
REGIONS = FleetConfig(
    groups=(
        GroupSpec(H100, 1, region="east"),
        GroupSpec(H100, 1, region="west"),
        GroupSpec(H100, 1, region="north"),
    ),
    network=(NetworkLatency(("east", "west"), 0.4),),
)


@pytest.fixture
def env(tmp_path):
    """Three requests from the east, a second apart; the west is 0.4 s away, no way leads north."""
    workload = Workload(
        arrival_s=np.array([0.0, 1.0, 1.1]),
        input_tokens=np.full(3, 100),
        output_tokens=np.full(3, 30),
        regions=("east",),
    )
    path = write_trace(workload, tmp_path / "trace.parquet")
    spec = WorkloadSpec(name="file", path=str(path), split="all")
    made = make_env("routing", workload=spec, cluster=REGIONS, split="all")
    made.reset(seed=0)
    return made


def test_only_regions_within_reach_can_take_a_request(env):
    np.testing.assert_array_equal(env.action_masks(), [True, True, False, True])
    np.testing.assert_array_equal(env.state.request.network_s, [0.0, 0.4, np.inf])
    assert env.state.request.region == "east"
    shown = env.reset(seed=0)[0]["places"][:, PLACE_FEATURES.index("network_s")]
    np.testing.assert_allclose(
        shown, np.log1p(np.array([0.0, 0.4, 0.0]) / env.config.scales.prefill_s), rtol=1e-6
    )


def test_the_way_is_paid_before_the_first_token_and_the_router_counts_it_meanwhile(env):
    env.step(1)
    env.step(1)  # at 1.0: the first has come and gone
    assert env.state.now_s == 1.1
    assert env.state.in_flight[["index", "place", "generated_tokens"]].tolist() == [(1, 1, 0)]
    assert env.state.in_flight["first_token_s"].tolist() == [-1.0]
    observation, *_ = env.step(Dispatch(None))
    names = {name: observation["places"][:, i] for i, name in enumerate(PLACE_FEATURES)}
    assert names["unanswered"][1] > 0
    while not env.step(0)[2]:
        pass
    records = env.records()
    assert records.engine.tolist() == [1, 1, 0]
    ttft = records.first_token_s - records.arrival_s
    assert (ttft[:2] > 0.4).all()
    assert (ttft[:2] < 0.5).all()
    assert ttft[2] < 0.2


def test_forks_and_copies_remember_what_is_on_its_way(env):
    env.step(1)
    fork = env.fork()
    for _ in range(2):
        ours, theirs = env.step(1), fork.step(1)
        for key in ours[0]:
            np.testing.assert_array_equal(ours[0][key], theirs[0][key])
        assert ours[1:4] == theirs[1:4]
    assert env.records().to_frame().equals(fork.records().to_frame())
