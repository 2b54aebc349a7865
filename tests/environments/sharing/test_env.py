"""`Serving/Sharing-v1` keeps its promises: spaces, rewards, time, seeds, forks, pickles, masks, mistakes, pictures."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from serving_gym.baselines.common.first_fit import FirstFitConfig, FirstFitPolicy
from serving_gym.baselines.common.random import RandomPolicy
from serving_gym.envs.interface.metrics import summarise
from serving_gym.envs.interface.sharing import (
    Configure,
    Event,
    InstanceStatus,
    Load,
    NewInstance,
    Reschedule,
    ResizeKV,
    SharingSetting,
    TokenScheduler,
    Unload,
)
from serving_gym.envs.machines.shared_nodes import NodeSpec, SharingSpec
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.state import Share
from serving_gym.envs.simulator.sharing.build import ManagerSpec
from serving_gym.envs.simulator.sharing.features import CLUSTER_FEATURES, PLACE_FEATURES, REQUEST_FEATURES
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env, make_vector_env
from tests.environments.sharing.samples import SMALL

MIX = {
    "num_models": 12,
    "sizes": ("llama-3.2-3b", "llama-2-7b", "llama-2-13b"),
    "ratio": (2, 1, 1),
    "minutes": 3,
}
WORKLOAD = WorkloadSpec("functions_fitted", num_requests=60, rate_scale=2.0, params=MIX)
BASE: dict[str, Any] = {"workload": WORKLOAD, "cluster": SMALL}
VARIANTS: dict[str, dict[str, Any]] = {
    "small": BASE,
    "impatient": {**BASE, "manager": ManagerSpec(patience_s=1.0, retry_s=0.1)},
    "in_turn": {**BASE, "token_scheduler": "round_robin"},
    "tokens": {**BASE, "token_scheduler": "policy"},
    "replacing": {
        **BASE,
        "manager": ManagerSpec(replace_idle=True),
        "cluster": replace(SMALL, keep_alive_s=600.0, load_bytes_per_s=3.31e9),
    },
}


@pytest.fixture(params=sorted(VARIANTS))
def env(request):
    return make_env("sharing", **VARIANTS[request.param])


def masked_action(env, rng) -> int:
    return int(rng.choice(np.flatnonzero(env.action_masks())))


def play(env, seed: int, choose, most: int = 50_000):
    """An episode; yields (observation, reward, terminated, truncated, info)."""
    observation, info = env.reset(seed=seed)
    yield observation, 0.0, False, False, info
    for _ in range(most):
        step = env.step(choose(env))
        yield step
        if step[2] or step[3]:
            return
    raise AssertionError("the episode does not end")


def weight(config: SharingConfig, term: str) -> float:
    """Of a reward term, wherever it is declared."""
    name, _, kind = term.partition("/")
    if name == "node_hours":
        return config.node_hours[kind]
    return config.ooms if name == "ooms" else getattr(config.objective, name)


def test_spaces_have_the_documented_shapes(env):
    shapes = {name: space.shape for name, space in env.observation_space.spaces.items()}
    assert shapes == {
        "places": (15, len(PLACE_FEATURES)),
        "request": (len(REQUEST_FEATURES),),
        "cluster": (len(CLUSTER_FEATURES) + 2,),
    }
    assert (len(PLACE_FEATURES), len(REQUEST_FEATURES), len(CLUSTER_FEATURES)) == (31, 13, 4)
    assert env.action_space.n == 16


def test_a_whole_episode_keeps_every_promise(env):
    rng = np.random.default_rng(0)
    keys, terms, total_dt, events = None, None, 0.0, set()
    for step, (observation, reward, *_, info) in enumerate(play(env, 3, lambda e: masked_action(e, rng))):
        assert env.observation_space.contains(observation), f"step {step}"
        keys = keys or set(info)
        assert set(info) == keys
        assert info["action_mask"][-1], "to hold is always possible"
        assert info["refused"] == ""
        np.testing.assert_array_equal(info["action_mask"][:-1], observation["places"][:, 0] > 0)
        there = env.state.instances["status"] != InstanceStatus.EMPTY
        np.testing.assert_array_equal(observation["places"][:12, 1] > 0, there)
        assert not observation["places"][:12][~there].any()
        events.add(env.state.event)
        if step:
            terms = terms or set(info["reward_terms"])
            assert set(info["reward_terms"]) == terms
            weighted = sum(weight(env.config, name) * value for name, value in info["reward_terms"].items())
            assert reward == pytest.approx(env.config.objective.scale * weighted, abs=1e-9)
            assert info["dt"] >= 0
            total_dt += info["dt"]
    assert env.core.done
    assert env.state.event == Event.END
    assert env.state.now_s == pytest.approx(total_dt)
    assert events <= {Event.PLACEMENT, Event.ITERATION, Event.END}
    assert (Event.ITERATION in events) == (env.config.token_scheduler == "policy")
    assert env.state.num_ooms == 0
    assert len(env.records()) == 60
    with pytest.raises(ResetNeeded, match="ended"):
        env.step(0)


def test_the_terms_are_what_the_records_say():
    env = make_env("sharing", **BASE)
    episode = run_episode(env, FirstFitPolicy(), 1)
    metrics, records = episode.metrics, episode.records
    slos = dict(zip(env.policy_spec.classes, env.policy_spec.slos, strict=True))
    summary = summarise(records, slos, env.policy_spec.classes, episode.duration_s)
    assert -metrics["reward/ttft_attainment/standard"] == round((1 - summary["ttft_attainment"]) * 60)
    assert -metrics["reward/tpot_attainment/standard"] == round((1 - summary["tpot_attainment"]) * 60)
    assert metrics["reward/goodput"] == round(summary["slo_attainment"] * 60)
    limit = np.maximum(2.0, records.input_tokens / 512)
    cost = records.ttft_s / limit + np.nan_to_num(records.tpot_s) / 0.25
    assert records.finished.all()
    assert -metrics["reward/latency"] == pytest.approx(cost.sum(), rel=1e-6)
    used = env.state.nodes["used_s"]
    assert -metrics["reward/node_hours/cpu"] == pytest.approx(used[0] / 3600)
    assert -metrics["reward/node_hours/gpu"] == pytest.approx(used[1:].sum() / 3600)
    assert env.gpu_seconds == pytest.approx(used[1:].sum())


def test_gymnasium_agrees():
    check_env(make_env("sharing", **BASE), skip_render_check=True)


def test_the_same_seed_is_the_same_episode_and_another_is_another(env):
    def run(seed):
        rng = np.random.default_rng(7)
        return [(step[1], step[4]["dt"]) for step in play(env, seed, lambda e: masked_action(e, rng))]

    assert run(4) == run(4)
    assert run(4) != run(5)


def test_a_fork_and_a_pickle_go_on_to_the_same_numbers(env):
    rng = np.random.default_rng(2)
    env.reset(seed=6)
    for _ in range(25):
        env.step(masked_action(env, rng))
    twins = [env.fork(), pickle.loads(pickle.dumps(env))]
    ends = []
    for one in (env, *twins):
        rng, rewards, done = np.random.default_rng(3), [], False
        while not done:
            _, reward, terminated, truncated, _ = one.step(masked_action(one, rng))
            rewards.append(reward)
            done = terminated or truncated
        ends.append((rewards, one.records().to_frame()))
    for rewards, frame in ends[1:]:
        assert rewards == ends[0][0]
        assert frame.equals(ends[0][1])


def test_the_batched_environment_is_the_scalar_one_step_by_step():
    arguments = {**BASE, "token_scheduler": "policy"}
    batched: Any = make_vector_env("sharing", 3, **arguments)
    singles: list[Any] = [make_env("sharing", **arguments) for _ in range(3)]
    observations, infos = batched.reset(seed=[4, 5, 6])
    expected = [single.reset(seed=seed) for single, seed in zip(singles, (4, 5, 6), strict=True)]
    rng, ended = np.random.default_rng(0), 0
    while ended < 3:
        for i, (observation, info) in enumerate(expected):
            for key, value in observation.items():
                np.testing.assert_array_equal(observations[key][i], value)
            np.testing.assert_array_equal(infos["action_mask"][i], info["action_mask"])
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in infos["action_mask"]])
        observations, rewards, terminated, truncated, infos = batched.step(actions)
        expected = []
        for i, single in enumerate(singles):
            observation, reward, over, cut, info = single.step(actions[i])
            assert (reward, over, cut) == (rewards[i], terminated[i], truncated[i])
            final = over or cut
            assert info["dt"] == (infos["final_info"] if final else infos)["dt"][i]
            if final:
                ended += 1
                for key, value in observation.items():
                    np.testing.assert_array_equal(infos["final_obs"][i][key], value)
                observation, info = single.reset()
            expected.append((observation, info))
    assert pickle.loads(pickle.dumps(batched)).action_masks().shape == (3, 16)


def test_an_impossible_action_is_counted_and_holds():
    env = make_env("sharing", **BASE)
    env.reset(seed=0)
    for _ in range(3):
        before = env.state.num_held
        *_, info = env.step(3)
        assert "empty or being unloaded" in info["refused"]
        assert env.state.num_held >= before
    assert info["num_refused"] == 3
    model = int(env.state.requests["model"][env.state.offered])
    env.step(12)  # a new instance on node 0
    slot = int(np.flatnonzero(env.state.instances["model"] == model)[0])
    while env.state.requests["model"][env.state.offered] == model:
        env.step(None)
    *_, info = env.step(slot)
    assert "another model" in info["refused"]


def test_the_observation_knows_no_true_lengths():
    """Episodes that differ in true answers alone look alike until something has ended."""
    env = make_env("sharing", **BASE)
    source = env.core.source

    class Longer:
        def __init__(self, tokens: int) -> None:
            self.tokens = tokens

        def sample(self, seed: int, split: str | None = None) -> Any:
            workload = source.sample(seed, split)
            workload.output_tokens[:] = self.tokens
            return workload

    seen = []
    for tokens in (900, 1000):
        env.core.source = Longer(tokens)
        observation, _ = env.reset(seed=1)
        rows = [observation]
        for _ in range(12):
            observation, *_ = env.step(masked_action(env, np.random.default_rng(0)))
            rows.append(observation)
        assert not len(env.state.finished)
        seen.append(rows)
    for first, second in zip(*seen, strict=True):
        for key in first:
            np.testing.assert_array_equal(first[key], second[key])


def test_a_policy_that_manages_memory_is_asked_about_it():
    env = make_env("sharing", **BASE)
    env.reset(seed=0)
    state = env.state
    first = Configure(TokenScheduler.FCFS, manages_memory=True, keep_alive_s=0.5)
    *_, info = env.step(Share(NewInstance(1, 4 * 10**9), (first, Load(3, 2, 10**9))))
    assert info["refused"] == ""
    seen = {env.state.event}
    for _ in range(400):
        state = env.state
        seen.add(state.event)
        if state.event == Event.END:
            break
        if state.event == Event.PLACEMENT:
            request = state.requests[state.offered]
            model = env.core.setting.models[int(request["model"])]
            # Just enough for the prompt and a few tokens, so that pools run short.
            kv = 16 * model.kv_bytes_per_token * (int(request["input_tokens"]) // 16 + 2)
            share = Share(NewInstance(int(state.nodes["num_instances"].argmin()), kv))
        elif state.event == Event.SHORTAGE:
            share = Share(
                commands=(ResizeKV(state.instance, 2 * int(state.instances["kv_bytes"][state.instance])),)
            )
        else:
            share = Share()
        env.step(share)
    assert {Event.FINISHED, Event.OPERATION, Event.SHORTAGE, Event.PLACEMENT} <= seen


def test_an_allocation_beyond_the_memory_kills_and_counts():
    env = make_env("sharing", **BASE)
    env.reset(seed=0)
    *_, info = env.step(Share(NewInstance(1, 60 * 10**9)))
    assert info["refused"] == ""
    assert env.state.num_ooms == 1
    assert info["reward_terms"]["ooms"] == -1
    assert info["reward_terms"]["abandoned"] == -1
    assert env.records().outcome[0] == 2  # failed
    assert (env.state.nodes["held_bytes"] == 0).all()


def test_commands_say_why_they_are_refused():
    env = make_env("sharing", **BASE)
    env.reset(seed=0)
    commands = (
        Load(99, 0, 10**9),
        Load(0, 9, 10**9),
        Unload(99),
        Unload(0),
        ResizeKV(1, 10**9),
        Reschedule(59),
        Configure(keep_alive_s=-1.0),
        Configure(token_scheduler="fastest"),  # type: ignore[arg-type]
    )
    *_, info = env.step(Share(None, commands))
    reasons = info["refused"].split("; ")
    for said, expected in zip(
        reasons,
        (
            "load.model must lie in [0, 12)",
            "there is no node 9",
            "there is no slot 99",
            "empty or being unloaded",
            "empty or being unloaded",
            "not in the system",
            "configure.keep_alive_s must lie in",
            "configure.token_scheduler must be one of",
        ),
        strict=True,
    ):
        assert expected in said
    assert info["num_refused"] == 1


def test_held_requests_are_refused_when_patience_ends():
    env = make_env("sharing", **BASE)
    *_, (observation, _, terminated, _, _) = play(env, 0, lambda e: None)
    assert terminated
    assert (env.records().outcome == 1).all()  # refused
    assert (observation["request"] == 0).all()


def test_an_episode_that_does_not_end_is_cut_off():
    env = make_env("sharing", **BASE | {"drain_limit_s": 5.0})
    *_, (_, _, terminated, truncated, info) = play(env, 0, lambda e: None)
    assert truncated
    assert not terminated
    unfinished = int(env.core.unfinished().sum())
    assert 0 < unfinished < 60
    assert env.state.event == Event.END
    assert -info["reward_terms"]["abandoned"] >= unfinished


def test_cheats_rank_last():
    """Refusing everything, dying of memory, one node for all: none is better than plain service."""
    env = make_env("sharing", **BASE)

    class Always:
        name, clairvoyant = "always", False

        def __init__(self, make: Any) -> None:
            self.make = make

        def reset(self, spec: Any, seed: int) -> None:
            self.setting = spec.setting_of(SharingSetting)

        def act(self, observation: Any, state: Any) -> Any:
            return self.make(self.setting, state)

    cheats: dict[str, Any] = {
        "refuse": Always(lambda setting, state: None),
        "die": Always(lambda setting, state: Share(NewInstance(1, 10**12))),
        "one_node": Always(lambda setting, state: 12),
    }
    returns = {name: run_episode(env, policy, 0).metrics["return"] for name, policy in cheats.items()}
    served = run_episode(env, FirstFitPolicy(), 0)
    assert served.metrics["completed"] == 60
    assert served.metrics["return"] > max(returns.values())
    assert run_episode(env, RandomPolicy(), 0).metrics["return"] > max(returns.values())


def test_nodes_that_are_kept_cost():
    """The same service on nodes that are never given back costs what they are kept for."""

    def total(keep_alive_s: float) -> tuple[float, float]:
        spec = SharingSpec(nodes=SMALL.nodes, slots_per_node=4, keep_alive_s=keep_alive_s)
        metrics = run_episode(make_env("sharing", **BASE | {"cluster": spec}), FirstFitPolicy(), 0).metrics
        hours = -metrics["reward/node_hours/cpu"] * 10 - metrics["reward/node_hours/gpu"] * 120
        return hours, metrics["return"]

    short, long = total(1.0), total(60.0)
    assert long[0] > 1.2 * short[0]


def test_pictures():
    env = make_env("sharing", **BASE, render_mode="ansi")
    env.reset(seed=0)
    for _ in range(10):
        env.step(masked_action(env, np.random.default_rng(1)))
    text = env.render()
    assert "gpu 1  memory" in text
    assert "llama" in text
    env = make_env("sharing", **BASE, render_mode="rgb_array")
    env.reset(seed=0)
    env.step(12)
    assert env.render().shape[2] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token_scheduler": "fifo"}, "unknown token_scheduler 'fifo'.*fcfs"),
        ({"drain_limit_s": 0.0}, "drain_limit_s must be positive"),
        ({"node_hours": {"cpu": 1.0}}, "node_hours must have a weight of at least 0 for kind 'gpu'"),
        ({"ooms": -1.0}, "ooms must be finite and not negative"),
        ({"cluster": "h100"}, "choose a cluster with nodes"),
        ({"workload": WorkloadSpec("functions_fitted", num_clients=3)}, "workload.num_clients must be 0"),
        ({"workload": WorkloadSpec("azure_conv_fitted")}, "workload.*names no model"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_env("sharing", **BASE | arguments)


def test_mistakes_of_nodes():
    with pytest.raises(ValueError, match="unknown GPU 'A10O'"):
        NodeSpec("gpu", "A10O", 1)
    with pytest.raises(ValueError, match=r"cluster.nodes.time_factor must be positive and finite, got 0.0"):
        NodeSpec("cpu", "Xeon-32c-AMX", 1, time_factor=0.0)
    with pytest.raises(ValueError, match=r"cluster.nodes.count must be at least 1"):
        NodeSpec("gpu", "A100-80GB", 0)
    with pytest.raises(ValueError, match="must differ in kind"):
        SharingSpec(nodes=(NodeSpec("gpu", "A100-80GB", 1), NodeSpec("gpu", "H100", 1)))
    with pytest.raises(ValueError, match="on_oom must be 'fail' or 'restart'"):
        SharingSpec(on_oom="ignore")
    with pytest.raises(ValueError, match="fill must be positive"):
        FirstFitConfig(fill=0.0)
