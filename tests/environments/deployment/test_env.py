"""`Serving/Deployment-v1`: its promises over whole episodes, forks, pickles, mistakes, and its picture."""

from __future__ import annotations

import dataclasses
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from serving_gym.envs.deployment.candidate_rows import CANDIDATE_FEATURES
from serving_gym.envs.deployment.config import DeploymentConfig
from serving_gym.envs.deployment.observation import CLUSTER_FEATURES, REPLICA_FEATURES, TYPE_FEATURES
from serving_gym.envs.deployment.state import Deploy
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.machines.cluster import ReplicaKind
from serving_gym.envs.machines.placement import place
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.schema import EvaluateConfig
from tests.defaults import make_env, make_vector_env
from tests.environments.deployment.samples import BASE, MIX, SMALL, masked_action, play

VARIANTS = {
    "types": BASE,
    "classes": {
        **BASE,
        "workload": WorkloadSpec(name="flying_priority", num_requests=200),
        "types": "classes",
        "p99": 0.5,
        "throughput": 0.2,
    },
    "closed_form": {**BASE, "profiling": "closed_form", "num_candidates": 6, "num_types": 2},
}


@pytest.fixture(params=sorted(VARIANTS))
def env(request):
    return make_env("deployment", **VARIANTS[request.param])


def test_the_commands_have_the_workload_of_the_environment_and_take_any_other():
    usual, other = (
        composed("evaluate", EvaluateConfig, ["env=deployment", "policy=stay", *words]).workload
        for words in ((), ("workload=azure_conv_fitted",))
    )
    assert usual == gym.make("Serving/Deployment-v1").unwrapped.config.workload
    assert other.name == "azure_conv_fitted"


def weight(config: DeploymentConfig, term: str) -> float:
    """Of a reward term, wherever it is declared."""
    name = term.partition("/")[0]
    return getattr(config if name in ("p99", "throughput") else config.objective, name)


def test_spaces_have_the_documented_shapes(env):
    config, J = env.config, env.core.setting.num_types
    shapes = {name: space.shape for name, space in env.observation_space.spaces.items()}
    assert shapes == {
        "candidates": (config.num_candidates, len(CANDIDATE_FEATURES) + J),
        "replicas": (4, len(REPLICA_FEATURES) + J),
        "types": (J, len(TYPE_FEATURES) + config.history),
        "cluster": (len(CLUSTER_FEATURES),),
    }
    assert env.action_space.n == config.num_candidates


def test_a_whole_episode_keeps_every_promise(env):
    rng = np.random.default_rng(0)
    keys, terms, total_dt, deployments = None, None, 0.0, set()
    for step, (observation, reward, *_, info) in enumerate(play(env, 3, lambda e: masked_action(e, rng))):
        assert env.observation_space.contains(observation), f"step {step}"
        keys = keys or set(info)
        assert set(info) == keys
        assert info["action_mask"][0]
        assert info["refused"] == ""
        assert (observation["candidates"][:, 0] > 0).tolist() == info["action_mask"].tolist()
        deployments.add(str(env.state.deployment))
        if step:
            terms = terms or set(info["reward_terms"])
            assert set(info["reward_terms"]) == terms
            weighted = sum(weight(env.config, name) * value for name, value in info["reward_terms"].items())
            assert reward == pytest.approx(env.config.objective.scale * weighted, abs=1e-9)
            assert 0 < info["dt"] <= env.config.span_s + 1e-9
            total_dt += info["dt"]
    assert env.core.done
    assert env.state.now_s == pytest.approx(total_dt)
    assert len(deployments) > 1
    records = env.records()
    assert len(records) == len(env.core.simulator.workload)
    assert records.finished.all()
    assert env.gpu_seconds == pytest.approx(4 * total_dt)


def test_the_terms_are_what_the_records_say():
    env = make_env("deployment", **BASE)
    terms = [info["reward_terms"] for *_, info in play(env, 1, lambda e: None)][1:]
    records = env.records()
    assert sum(term["throughput"] for term in terms) == records.finished.sum() == 500
    first = records.finish_s <= env.config.span_s
    latency = (records.finish_s - records.arrival_s)[first]
    assert -terms[0]["p99"] == pytest.approx(np.percentile(latency, 99))
    assert sum(term["switch"] for term in terms) == 0


def test_a_switch_counts_its_gpus_and_shows():
    env = make_env("deployment", **BASE | {"objective": Objective(switch=3.0), "span_s": 1.0})
    env.reset(seed=0)
    env.step(Deploy(place(SMALL.cluster, {ReplicaKind(1): 4})))
    for _ in range(4):
        env.step(None)
    target = place(SMALL.cluster, {ReplicaKind(2): 1, ReplicaKind(1): 2}, env.state.deployment)
    observation, *_, info = env.step(Deploy(target))
    assert info["reward_terms"]["switch"] == -2
    assert env.state.switch is not None
    assert env.state.deployment == target
    assert info["action_mask"].tolist() == [True] * 2 + [False] * 14  # to stay, with either assignment
    assert observation["cluster"][3] + observation["cluster"][4] == 1
    assert observation["replicas"][:, REPLICA_FEATURES.index("in_service")].tolist() == [0, 1, 1, 0]
    other = place(SMALL.cluster, {ReplicaKind(2): 2})
    *_, info = env.step(Deploy(other))
    assert info["refused"] == "a switch is under way"
    assert info["num_refused"] == 1
    *_, info = env.step(7)
    assert "no candidate 7" in info["refused"]


def test_the_first_choice_is_free():
    env = make_env("deployment", **BASE)
    env.reset(seed=0)
    *_, info = env.step(Deploy(place(SMALL.cluster, {ReplicaKind(2): 2})))
    assert info["reward_terms"]["switch"] == 0
    assert env.state.switch is None
    assert set(env.state.engines["width"].tolist()) == {2}


def test_what_is_known_is_what_has_been():
    env = make_env("deployment", **BASE)
    env.reset(seed=2)
    everything = env.state.coming
    assert everything.sum() == 500
    assert len(env.state.history) == 0
    np.testing.assert_allclose(env.state.forecast, env.core.setting.past.mean(axis=0))
    env.step(None)
    env.step(None)
    np.testing.assert_array_equal(env.state.history, everything[:2])
    np.testing.assert_allclose(env.state.forecast, everything[1])
    np.testing.assert_array_equal(env.state.coming, everything[2:])


def test_the_observation_knows_no_true_lengths():
    """Episodes that differ in true output lengths alone look alike as long as nothing has ended."""

    class Long:
        """The source of an environment with answers of one length."""

        def __init__(self, source, tokens):
            self.source, self.tokens = source, tokens

        def sample(self, seed, split):
            workload = self.source.sample(seed, split)
            return dataclasses.replace(workload, output_tokens=np.full(len(workload), self.tokens, np.int32))

    config = {**BASE, "prediction": PredictionSpec(name="max"), "span_s": 0.2}
    env, other = (make_env("deployment", **config) for _ in range(2))
    env.core.source, other.core.source = (Long(env.core.source, tokens) for tokens in (300, 600))
    pairs = [(env.reset(seed=5)[0], other.reset(seed=5)[0])]
    pairs.append((env.step(None)[0], other.step(None)[0]))
    for mine, theirs in pairs:
        for name, part in mine.items():
            np.testing.assert_array_equal(part, theirs[name])


def test_same_seed_same_episode_and_forks_go_on_alike(env):
    def run(e, rng, steps):
        return [
            (*(part.tobytes() for part in o.values()), r, i["dt"])
            for o, r, te, tr, i in (e.step(masked_action(e, rng)) for _ in range(steps))
        ]

    env.reset(seed=4)
    first = run(env, np.random.default_rng(1), 2)
    env.reset(seed=4)
    assert run(env, np.random.default_rng(1), 2) == first
    copy, loaded = env.fork(), pickle.loads(pickle.dumps(env))
    expected = run(copy, np.random.default_rng(2), 1)
    assert run(env, np.random.default_rng(2), 1) == expected
    assert run(loaded, np.random.default_rng(2), 1) == expected


def test_a_fork_in_the_middle_of_a_switch():
    env = make_env("deployment", **BASE | {"span_s": 1.0})
    env.reset(seed=0)
    env.step(Deploy(place(SMALL.cluster, {ReplicaKind(1): 4})))
    for _ in range(3):
        env.step(None)
    env.step(Deploy(place(SMALL.cluster, {ReplicaKind(2): 2})))
    assert env.state.switch is not None
    copy = env.fork()
    for _ in range(8):
        mine, theirs = env.step(None), copy.step(None)
        assert mine[1] == theirs[1]
    np.testing.assert_array_equal(env.state.engines, copy.state.engines)
    assert env.state.switch is None


def test_the_batched_environment_is_the_scalar_one():
    batched = make_vector_env("deployment", 2, **BASE)
    scalars = [make_env("deployment", **BASE) for _ in range(2)]
    observation, info = batched.reset(seed=10)
    rng = np.random.default_rng(0)
    for i, env in enumerate(scalars):
        own, _ = env.reset(seed=10 + i)
        for name, part in own.items():
            np.testing.assert_array_equal(observation[name][i], part)
    for _ in range(12):
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in info["action_mask"]])
        observation, rewards, terminated, truncated, info = batched.step(actions)
        for i, env in enumerate(scalars):
            own, reward, ends, cut, own_info = env.step(int(actions[i]))
            assert (rewards[i], terminated[i], truncated[i]) == (reward, ends, cut)
            assert (info["final_info"] if ends or cut else info)["dt"][i] == own_info["dt"]
            if ends or cut:
                np.testing.assert_array_equal(info["final_obs"][i]["cluster"], own["cluster"])
                own, _ = env.reset()
            for name, part in own.items():
                np.testing.assert_array_equal(observation[name][i], part)
            np.testing.assert_array_equal(info["action_mask"][i], env.action_masks())


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_pictures(mode):
    env = make_env("deployment", render_mode=mode, **BASE)
    env.reset(seed=0)
    env.step(1)
    picture = env.render()
    if mode == "ansi":
        assert str(env.state.deployment) in picture
        assert picture.count("GPUs") == len(env.state.deployment.replicas)
    else:
        assert picture.shape[2] == 3
        assert picture.std() > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"span_s": 0.0}, "span_s"),
        ({"types": "kmean"}, "did you mean 'kmeans'"),
        ({"profiling": "guess"}, "profiling"),
        ({"num_candidates": 1}, "num_candidates"),
        ({"p99": -1.0}, "p99"),
        ({"past_requests": 10}, "past_requests"),
        ({"slos": {}}, "no entry for class"),
        ({"cluster": FleetConfig((GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1),))}, "num_machines"),
        ({"workload": WorkloadSpec(name="type_mix", num_clients=3)}, "num_clients"),
        ({"workload": WorkloadSpec(name="type_mix", params={"mixes": ["S9"]})}, "mixes must name"),
        ({"render_mode": "video"}, "render_mode"),
    ],
)
def test_mistakes_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        make_env("deployment", **BASE | changes)


def test_an_episode_over_refuses_further_steps():
    env = make_env("deployment", **BASE | {"workload": WorkloadSpec(**{**vars(MIX), "num_requests": 20})})
    for _ in play(env, 0, lambda e: None):
        pass
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)
