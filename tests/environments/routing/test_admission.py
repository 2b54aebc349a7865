"""Admission as a decision: what refusing and deferring do, what is shown, and that all bodies agree."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import serving_gym
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.metrics import FINISHED, REFUSED
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.routing.observation import StateEncoder, saturation_of
from serving_gym.envs.routing.state import DEFERRED_PRIORITY, Defer, Dispatch, Reject
from serving_gym.envs.simulator.kernel.features import ADMISSION_CLASS_FEATURES, ADMISSION_FEATURES
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.predictions import PredictionSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from tests.defaults import make_env

H100 = ReplicaSpec("llama-3.1-8b", "H100")
SMALL = ReplicaSpec("llama-3.1-8b", "H100", kv_blocks=400, max_num_seqs=8)
TWO = FleetConfig(groups=(GroupSpec(H100, 2),))
CLASSES = ("critical", "standard", "sheddable")
HOLD, REJECT, DEFER = 2, 3, 4  # behind two places


@pytest.fixture
def trace(tmp_path):
    """A function that makes an environment of requests given row by row: (arrival, priority)."""

    def make(rows, tokens=(100, 20), cluster=TWO, **arguments):
        arrival, priority = (np.array(column) for column in zip(*rows, strict=True))
        workload = Workload(
            arrival_s=arrival.astype(float),
            input_tokens=np.full(len(rows), tokens[0]),
            output_tokens=np.full(len(rows), tokens[1]),
            priority=priority,
            class_id=np.clip(priority, 0, 2),
            classes=CLASSES,
        )
        path = write_trace(workload, tmp_path / "trace.parquet")
        slos = serving_gym.make("routing").unwrapped.config.slos
        return make_env(
            "routing",
            workload=WorkloadSpec(name="file", path=str(path), split="all"),
            cluster=cluster,
            prediction=PredictionSpec("oracle"),
            split="all",
            slos=dict.fromkeys(CLASSES, slos["standard"]),
            **{"admission": True, **arguments},
        )

    return make


def busy(trace, number=160, seed=1, **arguments):
    """Requests of three classes, faster than two small engines serve them."""
    rng = np.random.default_rng(seed)
    rows = list(zip(np.sort(rng.uniform(0, 6, number)).tolist(), rng.integers(0, 3, number), strict=True))
    cluster = FleetConfig(groups=(GroupSpec(SMALL, 2),), order="priority")
    return trace(rows, (300, 60), cluster, **arguments)


def test_a_refused_request_is_gone_at_once_and_misses_its_slos(trace):
    env = trace(
        [(0.0, 0), (1.0, 2), (2.0, 1)], objective=Objective(refused=5.0, class_weights={"sheddable": 0.5})
    )
    env.reset(seed=0)
    env.step(0)
    assert env.action_masks().tolist() == [True] * 5
    _, reward, _, _, info = env.step(REJECT)
    terms = info["reward_terms"]
    assert info["num_refused"] == 0, "it is no mistake"
    assert terms["refused/sheddable"] == terms["abandoned"] == terms["ttft_attainment/sheddable"] == -1.0
    assert terms["refused/critical"] == terms["refused/standard"] == 0.0
    weighted = 0.1 * (terms["latency"] - 100.0 - 0.5 * (1.0 + 1.0 + 5.0))
    assert reward == pytest.approx(weighted, rel=1e-12)
    _, _, terminated, _, _ = env.step(1)
    assert terminated
    records = env.records()
    assert records.outcome.tolist() == [FINISHED, REFUSED, FINISHED]
    assert np.isinf(records.ttft_s[1])


def test_a_deferred_request_goes_behind_all_others_and_can_be_deferred_once(trace):
    env = trace([(0.0, 0), (0.01, 2), (0.02, 2)], retry_s=0.1)
    env.reset(seed=0)
    env.step(DEFER)
    env.step(HOLD)
    env.step(HOLD)
    offered = []
    for _ in range(3):
        state = env.state
        offered.append((state.request.index, state.request.deferred))
        assert env.action_masks().tolist() == [True, True, True, True, not state.request.deferred]
        assert state.held_of_class.sum() == state.num_held
        env.step(0)
    assert offered == [(1, False), (2, False), (0, True)]


def test_a_second_deferral_is_counted_and_holds(trace):
    env = trace([(0.0, 2), (3.0, 0)], retry_s=0.5)
    env.reset(seed=0)
    env.step(DEFER)
    assert env.state.request.deferred
    _, _, _, _, info = env.step(DEFER)
    assert "deferred already" in info["refused"]
    assert info["num_refused"] == 1
    assert env.state.now_s == 1.0, "it is offered again at the next retry"


def test_what_is_deferred_at_a_retry_is_not_offered_at_that_retry_again(trace):
    env = trace([(0.0, 2), (0.0, 2), (0.0, 0), (9.0, 0)], retry_s=0.25)
    env.reset(seed=0)
    for _ in range(3):
        env.step(HOLD)
    seen = []
    while env.state.now_s < 0.6:
        request = env.state.request
        seen.append((env.state.now_s, request.index, request.deferred))
        env.step(HOLD if request.deferred or request.index == 2 else DEFER)
    first = [(0.25, 2, False), (0.25, 0, False), (0.25, 1, False)]
    assert seen == [*first, (0.5, 2, False), (0.5, 0, True)], "held once, others of its class wait as ever"


def test_a_deferred_request_is_last_at_its_engine_too(trace):
    one = FleetConfig(
        groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=1), 1),), order="priority"
    )
    env = trace([(0.0, 0), (0.01, 0), (0.02, 2)], (100, 400), one, retry_s=0.1)
    env.reset(seed=0)
    env.step(0)
    env.step(2 + 1)  # defer, behind one place: hold, reject, defer
    env.step(0)
    assert env.state.request.index == 1
    env.step(0)
    records = env.records()
    assert records.first_token_s[2] < records.first_token_s[1]
    assert records.priority.tolist() == [0, 0, 2], "as its client said"


def test_in_flight_shows_the_priority_of_a_deferred_request(trace):
    env = trace([(0.0, 1), (0.5, 0), (0.6, 0)], (100, 2000), retry_s=0.1)
    env.reset(seed=0)
    env.step(DEFER)
    env.step(0)
    assert env.state.in_flight["priority"].tolist() == [DEFERRED_PRIORITY]
    with pytest.raises(ValueError, match=r"one of \[0, 1\]"):
        env.step(Dispatch(1, priority=DEFERRED_PRIORITY))


def test_deferring_into_a_full_queue_refuses(trace):
    env = trace([(0.0, 0), (0.0, 2), (0.0, 2)], queue_capacity=2, retry_s=5.0)
    env.reset(seed=0)
    for _ in range(3):
        env.step(DEFER)
    assert env.state.held_of_class.tolist() == [0, 0, 1]
    env.step(0)
    env.step(0)
    assert env.records().outcome.tolist() == [FINISHED, FINISHED, REFUSED]


def test_commands_and_actions_are_the_same(trace):
    def play(actions):
        env = trace([(0.1 * i, i % 3) for i in range(8)])
        env.reset(seed=0)
        return [env.step(action)[1] for action in actions]

    numbers = [0, REJECT, DEFER, 1, HOLD, 0, REJECT, 0, 0, 0]
    commands = [0, Reject(), Defer(), Dispatch(1), None, 0, Reject(), 0, 0, 0]
    assert play(numbers) == play(commands)


@pytest.mark.parametrize("command", [Reject(), Defer()])
def test_without_admission_there_is_nothing_to_refuse(trace, command):
    env = trace([(0.0, 0), (1.0, 0)], admission=False)
    assert env.action_space.n == 3
    assert set(env.observation_space) == {"places", "request", "cluster"}
    _, info = env.reset(seed=0)
    assert len(info["action_mask"]) == 3
    with pytest.raises(ValueError, match=r"needs env\.admission=true"):
        env.step(command)
    assert not [name for name in env.step(0)[4]["reward_terms"] if name.startswith("refused")]


def test_it_passes_gymnasiums_checker(trace):
    check_env(busy(trace, 40), skip_render_check=True)


def test_episodes_conserve_requests_fork_exactly_and_follow_from_the_typed_state(trace):
    """The kernel's observation is the encoder's; a fork goes on to the same numbers; nobody is lost."""
    env = busy(trace)
    spec, rng = env.policy_spec, np.random.default_rng(0)
    encoder = StateEncoder(spec.fleet, spec.slos, env.config.scales, env.config.num_rows, admission=True)
    observation, info = env.reset(seed=0)
    done, forked, tail = False, None, []
    while not done:
        assert env.observation_space.contains(observation)
        encoded, mask = encoder.encode(env.state)
        np.testing.assert_array_equal(mask, info["action_mask"])
        for name, part in encoded.items():
            np.testing.assert_allclose(part, observation[name], rtol=2e-5, atol=2e-5, err_msg=name)
        action = int(rng.choice(np.flatnonzero(mask)))
        if env.state.request.index == 80 and forked is None:
            forked = env.fork()
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        if forked is not None:
            tail.append((action, reward))
    assert terminated
    records = env.records()
    assert len(records) == 160
    assert set(records.outcome.tolist()) == {FINISHED, REFUSED}
    assert [forked.step(action)[1] for action, _ in tail] == [reward for _, reward in tail]


def test_vector_environments_step_as_scalar_ones(trace):
    scalar = busy(trace, 60)
    config = scalar.config
    words = {
        name: getattr(config, name)
        for name in ("workload", "cluster", "prediction", "split", "slos", "admission")
    }
    envs = gym.make_vec(
        "Serving/Routing-v1", 2, vectorization_mode="vector_entry_point", autoreset_mode="Disabled", **words
    )
    observations, infos = envs.reset(seed=[0, 0])
    observation, info = scalar.reset(seed=0)
    rng, done = np.random.default_rng(3), False
    while not done:
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        observation, reward, terminated, truncated, info = scalar.step(action)
        observations, rewards, _, _, infos = envs.step(np.array([action, action]))
        assert rewards.tolist() == [reward, reward]
        np.testing.assert_array_equal(observations["admission"][1], observation["admission"])
        np.testing.assert_array_equal(infos["action_mask"][1], info["action_mask"])
        for name, value in info["reward_terms"].items():
            assert infos["reward_terms"][name][1] == value
        done = terminated or truncated


def test_rollouts_inside_the_kernel_begin_with_any_action(trace):
    from serving_gym.baselines.common.routers.linear_score import LinearScorePolicy

    env = busy(trace, 80)
    env.reset(seed=0)
    for _ in range(30):
        env.step(0)
    policy = LinearScorePolicy()
    policy.reset(env.policy_spec, 0)
    score = policy.in_kernel
    returns = env.roll_forks([0, HOLD, REJECT, DEFER], score, 10**6)

    def alone(action):
        fork, total, done = env.fork(), 0.0, False
        policy.reset(env.policy_spec, 0)
        while not done:
            observation, reward, terminated, truncated, _ = fork.step(action)
            total, done = total + reward, terminated or truncated
            action = policy.act(observation, fork.state) if not done else None
        return total

    np.testing.assert_allclose(returns, [alone(action) for action in (0, HOLD, REJECT, DEFER)], rtol=1e-9)
    assert len(set(returns.tolist())) > 2


def test_saturation_is_that_of_the_gateways_detector(trace):
    """The larger of waiting / 5 and KV usage / 0.8, of each engine: both by hand."""
    env = busy(trace)
    env.reset(seed=0)
    for _ in range(60):
        observation, *_ = env.step(0)
    gauges = env.state.engines
    usage = gauges["kv_used_blocks"] / gauges["kv_capacity_blocks"]
    expected = [max(w / 5, u / 0.8) for w, u in zip(gauges["num_waiting"], usage, strict=True)]
    assert expected[0] > 1.0
    np.testing.assert_allclose(saturation_of(env.state), expected)
    shown = dict(zip(ADMISSION_FEATURES, observation["admission"], strict=False))
    assert shown["saturation_mean"] == pytest.approx(np.mean(expected))
    assert shown["saturation_max"] == pytest.approx(max(expected))
    assert len(observation["admission"]) == len(ADMISSION_FEATURES) + 3 * len(ADMISSION_CLASS_FEATURES)


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ({"refused": -1.0}, "objective.refused must be finite and not negative, got -1.0"),
        ({"class_weights": {"critical": float("nan")}}, "objective.class_weights.critical must be finite"),
    ],
)
def test_weights_of_the_objective_are_checked(objective, said):
    with pytest.raises(ValueError, match=said):
        Objective(**objective)


def test_weights_of_classes_that_do_not_exist_are_refused(trace):
    with pytest.raises(ValueError, match=r"objective.class_weights 'criticl'; did you mean 'critical'\?"):
        trace([(0.0, 0)], objective=Objective(class_weights={"criticl": 2.0}))
