"""The router that learns while it serves: what it counts, what it concludes, and how it adapts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from serving_gym.agents.environments.routing.online.costs import Asked, Engines, Weights, costs, show_speeds
from serving_gym.agents.environments.routing.online.ledger import LOAD_DTYPE, Ledger, News, Windows
from serving_gym.agents.environments.routing.online.policy import OnlineConfig, OnlinePolicy
from serving_gym.agents.environments.routing.online.speeds import Doubt, EngineSpeeds, Regressions
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec, SlowNode
from serving_gym.envs.interface.state import IN_FLIGHT_DTYPE
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env

H100 = ReplicaSpec("llama-3.1-8b", "H100")
TWO = FleetConfig(groups=(GroupSpec(H100, 2),))
CHAT = WorkloadSpec(name="azure_conv_fitted", num_requests=400, rate_rps=20.0)


def state_of(env, now_s, *flights):
    """A state in which requests are in flight: index, place, prompt, tokens so far, first token."""
    rows = np.zeros(len(flights), IN_FLIGHT_DTYPE)
    for row, (index, place, prompt, tokens, first_s) in zip(rows, flights, strict=True):
        row["index"], row["place"], row["input_tokens"] = index, place, prompt
        row["generated_tokens"], row["first_token_s"], row["predicted_tokens"] = tokens, first_s, 100
    return replace(env.state, now_s=now_s, in_flight=rows)


@pytest.fixture(scope="module")
def env():
    made = make_env("routing", cluster=TWO, workload=CHAT)
    made.reset(seed=0)
    return made


# -- what is counted ---------------------------------------------------------------------------------------------------


def test_a_window_counts_iterations_sequences_context_and_prompts(env):
    ledger = Ledger(2, np.array([0.05]))
    ledger.sent(3, 0, 70, 10.2, 0.04)
    ledger.sent(4, 1, 30, 10.0, 0.02)
    begun = state_of(
        env, 10.5, (1, 0, 100, 10, 1.0), (2, 0, 200, 50, 2.0), (3, 0, 70, 0, -1.0), (4, 1, 30, 0, -1.0)
    )
    ledger.read(begun, 100.0)
    assert ledger.window(begun, 1.0) is None
    ledger.read(state_of(env, 11.0, (1, 0, 100, 20, 1.0), (3, 0, 70, 1, 10.9), (4, 1, 30, 4, 10.2)), 100.0)
    # request 2 has ended, request 3 has its first token and four more
    ended = state_of(env, 11.5, (1, 0, 100, 30, 1.0), (3, 0, 70, 5, 10.9), (4, 1, 30, 8, 10.2))
    ledger.read(ended, 100.0)
    windows = ledger.window(ended, 1.0)
    assert windows.elapsed_s == 1.0
    assert windows.valid.tolist() == [True, False]  # nothing decoded throughout on the other engine
    assert windows.iterations[0] == 20
    assert windows.sequences[0] == 20 + 5 + 0.5 * 20
    mean_context = (100 + 10 + 200 + 50) / 2
    assert windows.context[0] == 20 * (130 - 10) + 5 * (75 - 2.5) + 10 * mean_context
    assert windows.prefilled.tolist() == [70, 30]


def test_first_tokens_are_told_once_and_with_what_was_expected(env):
    ledger = Ledger(2, np.array([0.05]))
    ledger.sent(7, 1, 50, 10.0, 0.03)
    ledger.sent(8, 0, 50, 10.0, 0.03)
    assert not len(ledger.read(state_of(env, 10.1, (7, 1, 50, 0, -1.0)), 10.0).places)
    came = state_of(env, 10.3, (7, 1, 50, 2, 10.25), (8, 1, 50, 2, 10.2), (9, 0, 50, 2, 10.2))
    news = ledger.read(came, 10.0)  # 8 went elsewhere than it was sent, 9 was sent by somebody else
    assert (news.places.tolist(), news.expected_s.tolist()) == ([1], [0.03])
    assert news.ttft_s == pytest.approx([0.25])
    assert not len(ledger.read(came, 10.0).places)


def test_loads_of_places(env):
    ledger = Ledger(2, np.array([0.05]))
    ledger.sent(2, 0, 40, 1.0, 0.0)
    ledger.read(state_of(env, 2.0, (1, 0, 100, 25, 1.5), (2, 0, 60, 0, -1.0), (3, 1, 10, 120, 1.0)), 50.0)
    busy, outgrown = ledger.loads
    assert (busy["waiting"], busy["decoding"]) == (1, 1)
    assert (busy["own_tokens"], busy["waiting_tokens"], busy["context_tokens"]) == (40, 60, 125)
    assert busy["left_tokens"] == 75 + 100
    assert busy["slowed"] == pytest.approx(2 / (100 * 0.05))
    assert busy["beside"] == pytest.approx((50 + 50) / (100 * 0.05))
    assert outgrown["left_tokens"] == 144 - 120  # 100, 120, 144: a fifth more each time


# -- what is concluded -------------------------------------------------------------------------------------------------


def test_the_estimate_by_hand_and_how_it_is_forgotten():
    regressions, doubt = Regressions(2, 1), Doubt(all=0.0, each=0.5, noise=0.5)
    regressions.add(np.array([1]), np.array([[2.0]]), np.array([3.0]), doubt.noise)
    # weight of the observation 1 / 0.25, of the belief 1 / 0.25: (4 * 2 * 3 + 4 * 1) / (4 * 2 * 2 + 4)
    assert regressions.estimate(np.ones(1), doubt).ravel() == pytest.approx([1.0, 1.4])
    regressions.discount(0.5)
    assert regressions.estimate(np.ones(1), doubt)[1, 0] == pytest.approx(16 / 12)
    regressions.discount(1e-9)
    assert regressions.estimate(np.ones(1), doubt)[1, 0] == pytest.approx(1.0)


def windows_of(seconds_of, rng):
    """A window of each of two engines, of whose iterations and prompts `seconds_of` tells the time."""
    iterations, batch = rng.uniform(20, 60, 2), rng.uniform(2, 60, 2)
    context, prefilled = batch * rng.uniform(300, 1500, 2), rng.uniform(0, 4000, 2)
    scale = 1.0 / seconds_of(iterations, iterations * batch, iterations * context, prefilled)
    return Windows(
        np.ones(2, bool),
        1.0,
        iterations * scale,
        iterations * batch * scale,
        iterations * context * scale,
        prefilled * scale,
    )


def linear(own):
    """The time that counts take by (2, 4) coefficients."""
    return lambda *counts: (np.array(counts).T * own).sum(axis=1)


def test_speeds_from_nothing_are_found_whatever_their_scale():
    engines = make_env("routing", cluster=TWO).policy_spec.fleet
    own = np.array([[8e-3, 1e-4, 1e-7, 6e-5], [16e-3, 2e-4, 2e-7, 12e-5]])
    learned = []
    for size in (1.0, 50.0):
        speeds, rng = EngineSpeeds(engines, False, 60.0, 0.25), np.random.default_rng(0)
        for _ in range(60):
            speeds.learn(windows_of(linear(size * own), rng))
        # of a load that was not seen
        learned.append((speeds.decode_s[:, 30] + speeds.kv_s_per_token * 20_000) / size)
        np.testing.assert_allclose(learned[-1], own @ [1, 30, 20_000, 0], rtol=0.1)
        assert speeds.prefill_s_per_token[1] > 1.5 * speeds.prefill_s_per_token[0]
    np.testing.assert_allclose(*learned, rtol=1e-6)


def test_a_profile_is_corrected_by_a_factor_and_a_sudden_change_is_found_within_seconds():
    engines = make_env("routing", cluster=TWO).policy_spec.fleet
    speeds, rng = EngineSpeeds(engines, True, 600.0, 0.25), np.random.default_rng(0)
    marginal = engines.prefill_s_per_token - engines.decode_s[:, 1] / engines.max_num_batched_tokens

    def seconds(factors):
        def of(iterations, sequences, context, prefilled):
            batch = sequences / iterations
            rows = np.arange(2)
            low = batch.astype(int)
            part = batch - low
            decode_s = (1 - part) * engines.decode_s[rows, low] + part * engines.decode_s[rows, low + 1]
            time = iterations * decode_s + engines.kv_s_per_token * context + prefilled * marginal
            return np.asarray(factors) * time

        return of

    for _ in range(60):
        speeds.learn(windows_of(seconds([1.0, 1.3]), rng))
    np.testing.assert_allclose(speeds.decode_s[:, 8] / engines.decode_s[:, 8], [1.0, 1.3], rtol=0.02)
    np.testing.assert_allclose(
        speeds.prefill_s_per_token / engines.prefill_s_per_token, [1.0, 1.3], rtol=0.05
    )
    for _ in range(8):  # with a memory of ten minutes
        speeds.learn(windows_of(seconds([2.0, 1.3]), rng))
    np.testing.assert_allclose(speeds.decode_s[:, 8] / engines.decode_s[:, 8], [2.0, 1.3], rtol=0.05)


def test_first_tokens_correct_what_is_expected_of_them():
    engines = make_env("routing", cluster=TWO).policy_spec.fleet
    speeds, rng = EngineSpeeds(engines, True, 60.0, 0.25), np.random.default_rng(0)
    nothing = Windows(np.zeros(2, bool), 0.1, *np.zeros((4, 2)))
    for _ in range(200):
        expected_s = rng.uniform(0.01, 0.3, 2)
        speeds.learn_first(News(np.arange(2), expected_s, np.array([0.02, 0.0]) + expected_s * [1.0, 1.5]))
        speeds.learn(nothing)
    np.testing.assert_allclose(speeds.first_token_s(np.array([0.1, 0.1])), [0.12, 0.15], rtol=0.05)
    before = speeds.first_token_s(np.array([0.1, 0.1]))
    speeds.learn_first(News(np.array([0]), np.array([0.05]), np.array([1000.0])))  # a lost request
    speeds.learn(nothing)
    np.testing.assert_allclose(speeds.first_token_s(np.array([0.1, 0.1])), before, rtol=1e-2)


def test_costs_by_hand():
    engines = Engines(
        decode_s=np.tile(0.01 + 1e-3 * np.arange(65), (2, 1)),
        kv_s_per_token=np.array([0.0, 1e-6]),
        prefill_s_per_token=np.full(2, 1e-4),
        prompt_rate=np.array([0.0, 2_000.0]),
        kv_capacity_tokens=np.full(2, 1e6),
        max_num_seqs=np.full(2, 64),
        max_num_batched_tokens=np.full(2, 2048),
    )
    loads = np.zeros(2, LOAD_DTYPE)
    loads["decoding"], loads["context_tokens"] = 4, 4_000
    loads["slowed"], loads["beside"] = 0.8, 40.0
    asked = Asked(1_000.0, 100.0, 1.0, 1.0, 0.05)
    cost = costs(engines, loads, np.full(2, 500.0), np.array([0.1, 0.2]), asked, Weights(0.0, 1.0, 0.3, 0.15))
    # alone: TTFT and an iteration of five over their SLOs; for others: the prompt's 50 ms, and 1 ms an iteration
    assert cost[0] == pytest.approx(0.1 + 0.015 / 0.05 + 0.05 * 0.8 + 2 * 1e-3 * 40)
    growth_s = (1e-3 + 1e-6 * 1_050) / 0.8  # a fifth of the time goes to prompts
    tpot_s = (0.015 + 1e-6 * 5_050) / 0.8
    assert cost[1] == pytest.approx(0.2 + tpot_s / 0.05 + 0.05 * 0.8 + 2 * growth_s * 40)


def test_before_it_has_learned_the_observation_of_a_profile_is_as_it_was():
    env = make_env("routing", cluster=TWO, workload=replace(CHAT, num_requests=60))
    observation, _ = env.reset(seed=3)
    engines, ledger = env.policy_spec.fleet, Ledger(2, np.array([0.05]))
    rng, done = np.random.default_rng(0), False
    while not done:
        state = env.state
        ledger.read(state, float(state.request.predicted_tokens))
        slow = np.full(observation["places"].shape, 7.0, np.float32)
        nominal = Engines(
            engines.decode_s,
            engines.kv_s_per_token,
            engines.prefill_s_per_token,
            np.zeros(2),
            np.full(2, 1e6),
            engines.max_num_seqs,
            engines.max_num_batched_tokens,
        )
        asked = Asked(state.request.input_tokens, state.request.predicted_tokens, 1.0, 1.0, 0.05)
        show_speeds(nominal, ledger.loads, np.full(2, float(state.request.input_tokens)), asked, slow)
        written = slow[0] != 7.0
        assert written.sum() == 5
        np.testing.assert_allclose(slow[:, written], observation["places"][:, written], rtol=1e-4, atol=1e-5)
        observation, _, terminated, truncated, _ = env.step(int(rng.integers(2)))
        done = terminated or truncated


# -- what it does ------------------------------------------------------------------------------------------------------


def choices(env, policy, seed):
    episode = run_episode(env, policy, seed)
    return np.array([decision["action"] for decision in episode.decisions]), episode


def return_of(episode):
    return sum(decision["reward"] for decision in episode.decisions)


def test_an_engine_slows_and_is_sent_less():
    workload = replace(CHAT, num_requests=1400, rate_rps=28.0)
    slow = replace(TWO, slow_nodes=(SlowNode(15.0, 0, 2.5),))
    env = make_env("routing", cluster=slow, workload=workload, split="validation")
    returns = {}
    for name in ("online", "jsq", "linear_score"):
        chosen, episode = choices(env, load_policy(name), 1)
        returns[name] = return_of(episode)
        if name == "online":
            arrival_s = episode.records.arrival_s[: len(chosen)]
            engine = episode.records.engine
            before = (engine[(arrival_s > 5) & (arrival_s < 15)] == 0).mean()
            after = (engine[arrival_s > 25] == 0).mean()
            assert before == pytest.approx(0.5, abs=0.1)
            assert after < 0.8 * before
    assert returns["online"] > returns["linear_score"]
    assert returns["online"] > returns["jsq"]


def test_episodes_repeat_themselves_and_begin_from_nothing_unless_kept():
    env = make_env("routing", cluster=TWO, workload=CHAT)
    policy = OnlinePolicy(OnlineConfig(explore_probability=0.1))
    first, _ = choices(env, policy, 4)
    again, _ = choices(env, policy, 4)
    np.testing.assert_array_equal(first, again)
    assert policy.speeds.closed > policy.config.min_windows
    policy.reset(env.policy_spec, 0)
    assert policy.speeds.closed == 0
    keeps = OnlinePolicy(OnlineConfig(explore_probability=0.1, keep=True))
    choices(env, keeps, 4)
    learned = keeps.speeds.decode_s.copy()
    keeps.reset(env.policy_spec, 0)
    np.testing.assert_array_equal(keeps.speeds.decode_s, learned)
    three = make_env("routing", cluster=FleetConfig(groups=(GroupSpec(H100, 3),)))
    keeps.reset(three.policy_spec, 0)  # other engines
    assert keeps.speeds.closed == 0


def test_until_it_has_learned_enough_jsq_decides(env):
    never, _ = choices(env, OnlinePolicy(OnlineConfig(min_windows=10**9)), 2)
    jsq, _ = choices(env, make_policy("jsq"), 2)
    np.testing.assert_array_equal(never, jsq)
    learned, _ = choices(env, OnlinePolicy(OnlineConfig(explore_probability=0.0)), 2)
    assert (learned != jsq).any()


def test_exploring_stays_within_the_guard(env):
    strict = {"prior": "profile", "times_least": 1.0, "times_usual": 0.0, "soon_s": 0.0}
    told, _ = choices(env, OnlinePolicy(OnlineConfig(explore_probability=0.0, **strict)), 2)
    explored, _ = choices(env, OnlinePolicy(OnlineConfig(explore_probability=1.0, **strict)), 2)
    np.testing.assert_array_equal(told, explored)  # the soonest first token alone passes, whoever chooses
    free = strict | {"times_least": 1e6}
    wide, _ = choices(env, OnlinePolicy(OnlineConfig(explore_probability=1.0, **free)), 2)
    assert (wide != explored).any()


@pytest.mark.parametrize("start", ["zoo/routing", "linear_score"])
def test_another_policy_chooses_by_the_learned_speeds(start):
    fleet = replace(TWO, slow_nodes=(SlowNode(0.0, 0, 2.0),))
    env = make_env("routing", cluster=fleet, workload=CHAT)
    policy = make_policy("online", start=start, prior="profile", explore_probability=0.0)
    alone = load_policy(start)
    _, corrected = choices(env, policy, 2)
    _, nominal = choices(env, alone, 2)
    factor = policy.speeds.decode_s[:, 8] / env.policy_spec.fleet.decode_s[:, 8]
    np.testing.assert_allclose(factor, [2.0, 1.0], rtol=0.1)
    share = [(episode.records.engine == 0).mean() for episode in (corrected, nominal)]
    assert share[0] < share[1]


def test_a_fleet_of_other_models_and_nobody_able(env):
    policy = make_policy("online")
    policy.reset(env.policy_spec, 0)
    assert policy.act({}, replace(env.state, can_take=np.zeros(2, bool))) is None
    assert policy.act({}, replace(env.state, request=None)) is None


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"start": "jsq"}, "start must be a checkpoint .* got 'jsq'"),
        ({"start": "zoo/dp_tp"}, "start must be an agent of env=routing, .* env=dp_tp"),
        ({"start": "zoo/rooting"}, "no 'zoo/rooting'"),
        ({"prior": "profil"}, "unknown prior 'profil'; did you mean 'profile'"),
        ({"memory_s": 0.0}, "memory_s must be positive"),
        ({"explore_probability": 2.0}, "explore_probability"),
        ({"times_least": 0.5}, "times_least must be .* at least 1"),
    ],
)
def test_mistakes_are_named(params, message):
    with pytest.raises(ValueError, match=message):
        make_policy("online", **params)
