"""`Serving/Routing-v1` keeps its promises: spaces, rewards, time, seeds, forks, pickles."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from serving_gym.baselines.common.routers.least_request import LeastRequestPolicy
from serving_gym.envs.interface.fleet import Crash, FleetConfig, GroupSpec, ReplicaSpec, SlowNode
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.routing.config import FaultRates
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.features import CLUSTER_FEATURES, PLACE_FEATURES, REQUEST_FEATURES
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import make_env

H100 = ReplicaSpec("llama-3.1-8b", "H100")
A100 = ReplicaSpec("llama-3.1-8b", "A100-80GB")
SMALL = ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=8, kv_blocks=600)
MIXED = FleetConfig(groups=(GroupSpec(H100, 1), GroupSpec(A100, 2)))
ALIKE = FleetConfig(groups=(GroupSpec(H100, 4),))
TIGHT = FleetConfig(groups=(GroupSpec(SMALL, 2),))


def conv(num_requests: int = 150, rate_rps: float = 30.0, **kwargs: Any) -> WorkloadSpec:
    return WorkloadSpec(name="azure_conv_fitted", num_requests=num_requests, rate_rps=rate_rps, **kwargs)


CODING = WorkloadSpec(
    "agentic_coding",
    num_requests=60,
    rate_rps=8.0,
    params={
        "history_s": 60.0,
        "human_median_s": 1.0,
        "longest_wait_s": 5.0,
        "sub_agent_share": 0.1,
        "mean_steps": 3.0,
    },
)
VARIANTS: dict[str, dict[str, Any]] = {
    "mixed": {"workload": conv(), "cluster": MIXED},
    "stale": {"workload": conv(), "cluster": ALIKE, "gauge_interval_s": 0.5},
    "padded": {"workload": conv(60), "cluster": MIXED, "max_places": 6},
    "tight": {"workload": conv(rate_rps=40.0), "cluster": TIGHT, "queue_capacity": 5},
    "classes": {"workload": conv(priority_share=0.3), "cluster": MIXED},
    "cached": {
        "workload": WorkloadSpec(name="mooncake_conv_fitted", num_requests=60, rate_rps=4.0),
        "cluster": FleetConfig(groups=(GroupSpec(H100, 2),), prefix_caching=True),
    },
    "faulty": {
        "workload": conv(300),
        "cluster": FleetConfig(
            groups=(GroupSpec(H100, 3),),
            crashes=(Crash(2.0, 0),),
            slow_nodes=(SlowNode(3.0, 1, 3.0, 2.0),),
            start_fixed_s=1.0,
        ),
        "faults": FaultRates(crashes_per_hour=60.0, slow_downs_per_hour=200.0, slow_s=2.0),
    },
    "sessions": {
        "workload": CODING,
        "cluster": FleetConfig(groups=(GroupSpec(H100, 2),), prefix_caching=True),
    },
    "own_index": {
        "workload": CODING,
        "cluster": FleetConfig(groups=(GroupSpec(H100, 2),), prefix_caching=True),
        "prefix_index": "sent",
        "prefix_index_ttl_s": 20.0,
    },
    "impatient": {
        "workload": WorkloadSpec(
            "chat_sessions",
            num_requests=120,
            rate_rps=40.0,
            params={"think_median_s": 1.0, "turns_median": 3.0, "patience_s": 1.0},
        ),
        "cluster": FleetConfig(groups=(GroupSpec(H100, 2),), request_timeout_s=6.0),
    },
}


@pytest.fixture(params=sorted(VARIANTS))
def env(request):
    return make_env("routing", **VARIANTS[request.param])


def masked_action(env, rng) -> int:
    return int(rng.choice(np.flatnonzero(env.action_masks())))


def play(env, seed: int, choose, most: int = 20_000):
    """An episode; yields (observation, reward, terminated, truncated, info)."""
    observation, info = env.reset(seed=seed)
    yield observation, 0.0, False, False, info
    for _ in range(most):
        step = env.step(choose(env))
        yield step
        if step[2] or step[3]:
            return
    raise AssertionError("the episode does not end")


def frame(env):
    return env.records().to_frame()


def assert_all_told_of(workload, records) -> None:
    """Every request has a row but those that wait for an answer in vain."""
    ended = set(records["index"][records["outcome"] == "finished"])
    for row in set(range(len(workload))) - set(records["index"]):
        begin, end = workload.after_offsets[row], workload.after_offsets[row + 1]
        assert not set(workload.after[begin:end].tolist()) <= ended


def test_spaces_have_the_documented_shapes(env):
    rows, classes = env.config.num_rows, len(env.policy_spec.classes)
    assert env.observation_space["places"].shape == (rows, len(PLACE_FEATURES)) == (rows, 20)
    assert env.observation_space["request"].shape == (len(REQUEST_FEATURES) + classes,)
    assert env.observation_space["cluster"].shape == (len(CLUSTER_FEATURES),) == (11,)
    assert env.action_space.n == rows + 1


def test_a_whole_episode_keeps_every_promise(env):
    """Bounds, finite rewards, constant info keys, terms that add up, time that passes, an end, all requests told of."""
    rng = np.random.default_rng(0)
    keys, terms, last, total_dt = None, None, None, 0.0
    objective, places = env.config.objective, env.config.cluster.num_places
    for step, (observation, reward, terminated, truncated, info) in enumerate(
        play(env, 3, lambda e: masked_action(e, rng))
    ):
        assert env.observation_space.contains(observation), f"step {step}"
        assert np.isfinite(reward)
        assert type(reward) is float
        keys = keys or set(info)
        assert set(info) == keys
        assert info["action_mask"].dtype == bool
        assert info["action_mask"].shape == (env.action_space.n,)
        assert info["action_mask"][-1], "to hold is always possible"
        assert not info["action_mask"][places:-1].any(), "rows without a place"
        assert not observation["places"][places:].any()
        np.testing.assert_array_equal(info["action_mask"][:places], observation["places"][:places, 0] == 1)
        if step:
            terms = terms or set(info["reward_terms"])
            assert set(info["reward_terms"]) == terms
            weighted = sum(
                getattr(objective, name.partition("/")[0]) * value
                for name, value in info["reward_terms"].items()
            )
            assert reward == pytest.approx(objective.scale * weighted, abs=1e-9)
            assert info["dt"] >= 0
            assert info["refused"] == ""
            total_dt += info["dt"]
        last = (terminated, truncated)
    assert last == (True, False)
    first_s = env.core.workload.arrival_s[0]
    assert env.state.now_s == pytest.approx(first_s + total_dt)
    assert env.state.request is None
    records = frame(env)
    assert_all_told_of(env.core.workload, records)
    assert not (records["outcome"] == "unfinished").any()


def test_rewards_add_up_to_what_the_records_say():
    """Latency cost, misses and losses of the whole episode, from the requests themselves."""
    env = make_env("routing", **VARIANTS["tight"])
    totals: dict[str, float] = {}
    for step, (*_, info) in enumerate(play(env, 1, lambda e: e.config.num_rows if step_of(e) % 3 else 0)):
        if step:
            for name, value in info["reward_terms"].items():
                totals[name] = totals.get(name, 0.0) + value
    records, slo = env.records(), env.policy_spec.slos[0]
    lost = records.outcome != 0
    ttft = records.first_token_s - records.arrival_s
    tpot = (records.finish_s - records.first_token_s) / np.maximum(records.output_tokens - 1, 1)
    assert lost.any(), "the queue holds five"
    assert -totals["abandoned"] == lost.sum()
    assert -totals["ttft_attainment/standard"] == (lost | ~(ttft <= slo.ttft_s)).sum()
    assert -totals["tpot_attainment/standard"] == (lost | ~(tpot <= slo.tpot_s)).sum()
    served = ~lost
    alone = records.output_tokens[served] > 1
    expected = (ttft[served] / slo.ttft_s).sum() + (tpot[served][alone] / slo.tpot_s).sum()
    assert -totals["latency"] >= expected - 1e-6  # refused requests cost while they are held


def step_of(env) -> int:
    return int(env.core.desk.desk["decisions"][0])


def test_the_choices_of_the_built_in_router_give_its_figures():
    """One that sends to fewest requests, the first in case of a tie, is the kernel's own least_requests."""
    workload = conv(400, 60.0)
    env = make_env("routing", workload=workload, cluster=MIXED)
    policy = LeastRequestPolicy()
    env.reset(seed=5)
    policy.reset(env.policy_spec, 5)
    done = False
    while not done:
        choice = int(np.argmin(np.bincount(env.state.in_flight["place"], minlength=3)))
        assert env.state.request is not None
        _, _, terminated, truncated, _ = env.step(choice)
        done = terminated or truncated
    fleet = FleetConfig(groups=MIXED.groups, router="least_requests")
    simulator = FleetSimulator(fleet, env.policy_spec.slos)
    simulator.reset(env.core.workload)
    simulator.run_to_completion()
    assert frame(env).equals(simulator.results().to_frame())


def test_a_real_policy_serves_every_variant(env):
    policy = LeastRequestPolicy()
    observation, _ = env.reset(seed=2)
    policy.reset(env.policy_spec, 2)
    done = False
    while not done:
        observation, _, terminated, truncated, _ = env.step(policy.act(observation, env.state))
        done = terminated or truncated
    assert terminated
    assert_all_told_of(env.core.workload, frame(env))


def test_an_episode_over_refuses_further_steps_and_so_does_one_that_has_not_begun():
    env = make_env("routing", workload=conv(5), cluster=MIXED)
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)
    for _ in play(env, 0, lambda e: 0):
        pass
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)


def test_the_drain_limit_cuts_an_episode_off_and_counts_what_is_left():
    one = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=1), 1),))
    env = make_env("routing", workload=conv(60), cluster=one, drain_limit_s=2.5)
    *_, (_, reward, terminated, truncated, info) = play(env, 0, lambda e: 0)
    assert (terminated, truncated) == (False, True)
    left = (frame(env)["outcome"] == "unfinished").sum()
    assert left > 0
    assert info["reward_terms"]["abandoned"] == -left
    assert reward < -env.config.objective.scale * env.config.objective.abandoned
    assert env.state.now_s == pytest.approx(env.core.workload.arrival_s[-1] + 2.5)


def test_holding_for_ever_is_cut_off_and_costs_every_request():
    env = make_env("routing", workload=conv(20), cluster=MIXED, drain_limit_s=3.0)
    total = 0.0
    for step in play(env, 0, lambda e: None):
        total += step[4]["reward_terms"].get("abandoned", 0.0)
    assert step[3], "cut off"
    assert total == -20


def test_same_seed_same_episode_whatever_came_before(env):
    def log(seed):
        rng = np.random.default_rng(5)
        return [
            (observation["places"].copy(), observation["request"].copy(), reward, info["dt"])
            for observation, reward, _, _, info in play(env, seed, lambda e: masked_action(e, rng))
        ]

    first, other, again = log(11), log(12), log(11)
    assert len(first) == len(again)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
        assert a[2:] == b[2:]
    assert [row[2] for row in first] != [row[2] for row in other]


def test_a_policy_changes_neither_arrivals_nor_predictions_nor_failures():
    env = make_env("routing", **VARIANTS["faulty"])
    rng = np.random.default_rng(0)
    seen = []
    for choose in (lambda e: 0, lambda e: masked_action(e, rng)):
        for _ in play(env, 2, choose):
            pass
        seen.append((frame(env)[["arrival_s", "input_tokens"]], env.core.desk.predicted.copy()))
    assert seen[0][0].equals(seen[1][0])
    np.testing.assert_array_equal(seen[0][1], seen[1][1])


def test_it_can_be_pickled_before_during_and_after(env):
    rng = np.random.default_rng(1)
    assert pickle.loads(pickle.dumps(env)).observation_space == env.observation_space
    env.reset(seed=6)
    for _ in range(30):
        env.step(masked_action(env, rng))
    copy = pickle.loads(pickle.dumps(env))
    for _ in range(20):
        action = masked_action(env, rng)
        ours, theirs = env.step(action), copy.step(action)
        for key in ours[0]:
            np.testing.assert_array_equal(ours[0][key], theirs[0][key])
        assert ours[1:4] == theirs[1:4]
    assert pickle.loads(pickle.dumps(env.records())).to_frame().equals(frame(env))


def test_a_fork_goes_on_to_the_same_numbers_and_leaves_the_original_alone(env):
    rng = np.random.default_rng(2)
    env.reset(seed=7)
    for _ in range(25):
        env.step(masked_action(env, rng))
    fork, untouched = env.fork(), env.fork()
    for _ in range(25):
        fork.step(masked_action(fork, rng))
        fork = fork.fork()
        action = masked_action(env, rng)
        ours, theirs = env.step(action), untouched.step(action)
        for key in ours[0]:
            np.testing.assert_array_equal(ours[0][key], theirs[0][key])
        assert ours[1:4] == theirs[1:4]
        assert ours[4]["reward_terms"] == theirs[4]["reward_terms"]
    assert frame(env).equals(frame(untouched))
    fork.reset()
    env.reset()
    untouched.reset()
    np.testing.assert_array_equal(env.core.workload.arrival_s, untouched.core.workload.arrival_s)


def test_the_true_length_is_nowhere_in_sight():
    """Two episodes that differ only in the length of an answer look alike until that answer could have ended."""
    env = make_env("routing", workload=conv(40, 20.0), cluster=MIXED, prediction=PredictionSpec("max"))
    other = make_env("routing", workload=conv(40, 20.0), cluster=MIXED, prediction=PredictionSpec("max"))
    env.reset(seed=0)
    other.reset(seed=0)
    longest = int(np.argmax(other.core.workload.output_tokens[:20]))
    other.core.simulator.traffic.output[longest] -= 1
    for step in range(longest + 3):
        ours, theirs = env.step(step % 3), other.step(step % 3)
        for key in ours[0]:
            np.testing.assert_array_equal(ours[0][key], theirs[0][key])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"retry_s": 0.0}, "retry_s"),
        ({"drain_limit_s": -1.0}, "drain_limit_s"),
        ({"gauge_interval_s": -0.1}, "gauge_interval_s"),
        ({"queue_capacity": -1}, "queue_capacity"),
        ({"max_places": 2}, "max_places"),
        ({"workload": WorkloadSpec(name="azure_conv_fited")}, "azure_conv_fitted"),
        ({"workload": conv(num_clients=3)}, "num_clients"),
        ({"slos": {"chat": SLO(1.0, 0.1)}}, "standard"),
        ({"prediction": PredictionSpec("column")}, "predicted_tokens"),
        ({"cluster": object()}, "fleet"),
    ],
)
def test_mistakes_are_named(arguments, words):
    def begin():
        make_env("routing", **{"workload": conv(), "cluster": MIXED, **arguments}).reset(seed=0)

    with pytest.raises(ValueError, match=words):
        begin()


def test_fault_rates_are_checked():
    for name in ("crashes_per_hour", "slow_downs_per_hour", "slow_factor", "slow_s"):
        with pytest.raises(ValueError, match=name):
            FaultRates(**{name: -1.0})
