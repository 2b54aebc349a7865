"""Idle instances that make room for a newcomer: what it takes, what is seen of it, and who goes first."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving_gym.baselines.common.first_fit import FirstFitPolicy
from serving_gym.baselines.common.keep_warm import KeepWarmConfig, KeepWarmPolicy
from serving_gym.baselines.common.place_score import PlaceScoreConfig, PlaceScorePolicy
from serving_gym.envs.interface.sharing import Event, InstanceStatus
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.machines.shared_nodes import NodeSpec, SharingSpec
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.live.env import check_shared
from serving_gym.envs.sharing.live.mirror import demand_of
from serving_gym.envs.simulator.sharing.build import ManagerSpec
from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES, REQUEST_FEATURES
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from tests.defaults import DEFAULTS, make_env

TWO = SharingSpec(  # room for two instances of a 7B model
    nodes=(NodeSpec("gpu", "A100-80GB", 1, 36.0),),
    slots_per_node=4,
    load_bytes_per_s=3.31e9,
    keep_alive_s=600.0,
    engine="vllm-0.6",
    front_end="none",
)
NODE = 4  # the action behind the slots
COLUMN = {name: i for i, name in enumerate(PLACE_FEATURES)}


def begun(
    *rows: tuple[float, int], replace_idle: bool = True, cluster: SharingSpec = TWO, **params: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Requests of (arrival, model), each of 1000 tokens with two to answer: environment, observation and info."""
    env: Any = make_env(
        "sharing",
        workload=WorkloadSpec("functions_fitted", params={"num_models": 4} | params),
        cluster=cluster,
        manager=ManagerSpec(replace_idle=replace_idle),
    ).unwrapped
    arrival_s, model = np.array(rows).T
    workload = Workload(
        arrival_s=arrival_s,
        input_tokens=np.full(len(rows), 1000),
        output_tokens=np.full(len(rows), 2),
        max_output_tokens=np.full(len(rows), 1000),
        model_id=model.astype(np.int32),
        models=env.core.source.models,
    )
    env.core.source = SimpleNamespace(sample=lambda seed, split: workload)
    return env, *env.reset(seed=0)


def warm(*more: tuple[float, int], **kwargs: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Models 0 and 1 were asked for at 0 and 10 s and are idle in slots 0 and 1 when the next request comes."""
    env, _, _ = begun((0.0, 0), (10.0, 1), *more, **kwargs)
    env.step(NODE)
    observation, _, _, _, info = env.step(NODE)
    return env, observation, info


def test_it_takes_an_unload_and_a_load_and_holds_the_larger_of_both():
    env, observation, info = warm((30.0, 2))
    assert info["action_mask"].tolist() == [True, True, False, False, False, True], "there is no room besides"
    np.testing.assert_array_equal(observation["places"][:, COLUMN["replaces"]], [1, 1, 0, 0, 0])
    held, setting = env.state.nodes["held_bytes"][0], env.core.setting
    env.step(1)
    assert env.state.event == Event.END
    assert env.core.num_refused == 0
    assert env.state.nodes["held_bytes"][0] == held
    assert env.state.instances["model"][:2].tolist() == [0, 2]
    waited_s = TWO.unload_s + setting.load_s[0, 0] + setting.prefill_s[0, 0, 1000]
    assert env.records().first_token_s[2] == pytest.approx(30.0 + waited_s)


def test_while_it_loads_it_is_of_its_new_model_and_not_idle():
    env, _, _ = warm((30.0, 2), (31.0, 1), (32.0, 2))
    _, _, _, _, info = env.step(1)
    assert env.state.instances["status"][1] == InstanceStatus.LOADING
    assert info["action_mask"].tolist() == [True, False, False, False, False, True], (
        "model 1 has lost its place"
    )
    _, _, _, _, info = env.step(0)
    assert info["action_mask"][:2].tolist() == [False, True], "model 2 joins what loads for it"


def test_nothing_is_replaced_where_that_is_not_allowed():
    env, _, _ = begun((0.0, 0), (10.0, 1), (30.0, 2), replace_idle=False)
    env.step(NODE)
    _, _, terminated, _, _ = env.step(NODE)
    assert terminated, "nobody is asked about the third"
    assert env.records().finished.tolist() == [True, True, False]


def test_as_many_go_as_it_takes_those_that_have_been_idle_the_longest_first():
    # Models 0, 2 and 3 have 3B parameters, model 1 has 13B: it fits where two of the three have gone.
    larger = replace(TWO, nodes=(NodeSpec("gpu", "A100-80GB", 1, 42.0),))
    asked = ((0.0, 0), (10.0, 2), (20.0, 3), (30.0, 1), (40.0, 1))
    env, _, _ = begun(*asked, cluster=larger, sizes=["llama-3.2-3b", "llama-2-13b"], ratio=[2, 1])
    env.step(NODE)
    env.step(NODE)
    observation, _, _, _, info = env.step(NODE)
    assert info["action_mask"].tolist() == [True, True, True, False, False, True]
    np.testing.assert_array_equal(observation["places"][:, COLUMN["replaces"]], [2, 2, 2, 0, 0])
    env.step(2)
    assert env.state.instances["model"][:3].tolist() == [-1, 2, 1], (
        "the newest goes as told, with it the oldest"
    )
    nodes, instances = env.state.nodes[0], env.state.instances
    used = instances["weights_bytes"].sum() + instances["kv_bytes"].sum()
    assert used <= nodes["held_bytes"] <= nodes["memory_bytes"]
    env.step(2)
    assert env.state.event == Event.END
    assert env.core.num_refused == 0
    waited_s = TWO.unload_s + env.core.setting.load_s[0, 1] + env.core.setting.prefill_s[0, 1, 1000]
    assert env.records().first_token_s[3] == pytest.approx(30.0 + waited_s)


def test_what_has_requests_stays():
    env, _, _ = begun((0.0, 0), (0.0, 1), (0.0, 2))
    env.step(NODE)
    env.step(NODE)
    assert env.state.now_s > float(env.core.setting.load_s[0, 0]), "the third is offered when one is idle"
    assert env.state.totals[0, TOTALS.index("finished")] >= 1
    _, _, _, _, info = env.step(2)
    assert info["refused"] == "the instance is empty or being unloaded"


def test_how_often_a_model_is_asked_for():
    env, _, _ = warm((30.0, 1), (40.0, 2))
    observation, _, _, _, _ = env.step(1)
    rows, scale = observation["places"], env.config.scales.latency_s

    def shown(*seconds: float) -> Any:
        return pytest.approx(np.log1p(np.array(seconds) / scale), rel=1e-5)

    assert rows[:2, COLUMN["asked_s"]] == shown(40.0, 10.0)
    assert rows[:2, COLUMN["known_s"]] == shown(40.0, 30.0)
    for name, constant_s in (("gap_30s", 30.0), ("gap_3m", 180.0), ("gap_30m", 1800.0)):
        count = (
            np.exp(-40.0 / constant_s),
            np.exp(-30.0 / constant_s) + np.exp(-10.0 / constant_s),
            1.0,
        )
        assert rows[[0, 1, NODE], COLUMN[name]] == shown(*(constant_s / each for each in count))
        assert observation["request"][REQUEST_FEATURES.index(name)] == rows[NODE, COLUMN[name]]
    known = demand_of(np.array([0.0, 10.0, 30.0, 40.0]), np.array([0, 1, 1, 2]), 4)
    np.testing.assert_allclose(known, env.core.simulator.world.demand)


# Model 0 was asked for three times, long ago, and comes back soon; model 1 twice, lately, and never again.
ASKED = ((0.0, 0), (10.0, 1), (12.0, 0), (14.0, 0), (30.0, 1), (60.0, 2), (61.0, 0))


@pytest.mark.parametrize(
    ("policy", "victim"),
    [
        (KeepWarmPolicy(KeepWarmConfig("lru")), 0),
        (KeepWarmPolicy(KeepWarmConfig("lfu")), 1),
        (KeepWarmPolicy(KeepWarmConfig("lfu", half_life_s=10.0)), 0),  # 1/16 + 1/64 + 1/64... of model 0's
        (KeepWarmPolicy(KeepWarmConfig("greedy_dual")), 1),
        (KeepWarmPolicy(KeepWarmConfig("belady")), 1),
        (PlaceScorePolicy(PlaceScoreConfig(keep_asked_s=1.0, keep_gap_30m=0.0)), 0),
        (PlaceScorePolicy(PlaceScoreConfig(keep_asked_s=0.0, keep_gap_30m=1.0)), 1),
        (FirstFitPolicy(), 0),
    ],
    ids=["lru", "lfu", "lfu_forgetful", "faascache", "belady", "score_lru", "score_lfu", "first_fit"],
)
def test_who_goes_first(policy: Any, victim: int):
    env, observation, _ = begun(*ASKED)
    policy.reset(env.policy_spec, 0)
    while env.state.requests["model"][env.state.offered] != 2:
        observation, _, _, _, _ = env.step(policy.act(observation, env.state))
    place = policy.act(observation, env.state)
    while place is None:  # held until it is overdue
        observation, _, _, _, _ = env.step(None)
        place = policy.act(observation, env.state)
    assert place == victim
    assert env.core.num_refused == 0


def test_live_servers_refuse_it():
    with pytest.raises(ValueError, match=r"env\.manager\.replace_idle=true is not available on live servers"):
        check_shared(SharingConfig(**DEFAULTS["sharing"], manager=ManagerSpec(replace_idle=True)))
