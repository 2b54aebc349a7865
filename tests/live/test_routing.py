"""The routing environment over servers that speak as vLLM does."""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.fleet import Crash, FleetConfig, GroupSpec, Migrate, ReplicaSpec
from serving_gym.envs.interface.metrics import FAILED, FINISHED, REASON_NAMES, REFUSED
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.routing.live.env import LiveRoutingEnv
from serving_gym.envs.routing.state import Dispatch, Reject
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env
from tests.live.conftest import MakeServer, stream_of

H100 = ReplicaSpec("llama-3.1-8b", "H100")
FAST = {"scrape_interval_s": 0.02, "silence_s": 2.0, "decide_within_s": None}


@pytest.fixture
def make_live(stack: ExitStack, tmp_path):
    """The environment over some servers, on a trace of its own."""

    def make(*servers, workload: Workload | None = None, settings=(), **config):
        path = write_trace(workload or stream_of(8), tmp_path / "trace.parquet")
        cluster = config.pop("cluster", FleetConfig(groups=(GroupSpec(H100, len(servers)),)))
        spec = WorkloadSpec(name="file", path=str(path), split="all")
        urls = tuple(server.url for server in servers)
        live = LiveSettings(urls, **{**FAST, **dict(settings)})
        env = LiveRoutingEnv(live, workload=spec, cluster=cluster, split="all", **config)
        stack.callback(env.close)
        return env

    return make


def test_every_decision_is_carried_out_and_every_request_is_served(make_server: MakeServer, make_live):
    servers = make_server(), make_server()
    env = make_live(*servers)
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    done, rows, dts = False, [], []
    while not done:
        rows.append(env.state.request.index)
        np.testing.assert_array_equal(info["action_mask"], [True, True, True])
        observation, _, terminated, truncated, info = env.step(len(rows) % 2)
        assert env.observation_space.contains(observation)
        assert info["executed"] == len(rows) % 2
        assert not info["refused"]
        dts.append(info["dt"])
        done = terminated or truncated
    assert rows == list(range(8))
    assert terminated
    records = env.records()
    assert (records.outcome == FINISHED).all()
    assert [len(server.bodies) for server in servers] == [4, 4]
    assert records.engine.tolist() == [1, 0] * 4
    assert sum(dts) == pytest.approx(env.state.now_s, abs=0.05)
    assert env.state.totals[0, 0] == 8
    with pytest.raises(ResetNeeded, match="ended"):
        env.step(0)


def test_the_same_pictures_as_in_simulation(make_server: MakeServer, make_live):
    env = make_live(make_server(), make_server(), render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.step(1)
    assert before.shape == env.render().shape == (750, 960, 3)
    assert (before != env.render()).any()
    assert env.renderer.decision.startswith("send to engine 1 request 0 ")


def test_the_same_episode_as_in_simulation(make_server: MakeServer, make_live):
    live = make_live(make_server(), make_server())
    simulated = make_env("routing", workload=live.config.workload, cluster=live.config.cluster, split="all")
    for name in ("round_robin", "jsq", "preserve"):
        episodes = [run_episode(env, make_policy(name), 5) for env in (simulated, live)]
        assert episodes[0].metrics.keys() == episodes[1].metrics.keys()
        for column in ("arrival_s", "input_tokens", "output_tokens", "class_id"):
            np.testing.assert_array_equal(*(getattr(episode.records, column) for episode in episodes))
        assert len(episodes[0].decisions) == len(episodes[1].decisions)
    assert live.observation_space == simulated.observation_space
    assert live.action_space == simulated.action_space


def test_the_reward_is_what_the_records_say(make_server: MakeServer, make_live):
    env = make_live(make_server(first_token_s=0.1))
    env.reset(seed=0)
    terms: dict[str, float] = {}
    done = False
    while not done:
        _, _, terminated, truncated, info = env.step(0)
        done = terminated or truncated
        for name, value in info["reward_terms"].items():
            terms[name] = terms.get(name, 0.0) + value
    records, slo = env.records(), env.policy_spec.slos[0]
    ttft_s = records.first_token_s - records.arrival_s
    tpot_s = (records.finish_s - records.first_token_s) / (records.generated_tokens - 1)
    assert terms["latency"] == pytest.approx(-(ttft_s / slo.ttft_s + tpot_s / slo.tpot_s).sum(), rel=1e-6)
    assert terms["goodput"] == ((ttft_s <= slo.ttft_s) & (tpot_s <= slo.tpot_s)).sum()
    assert terms["abandoned"] == 0


def test_a_late_policy_is_passed_over_and_that_is_on_record(make_server: MakeServer, make_live):
    env = make_live(make_server(), make_server(), settings={"decide_within_s": 0.05})
    env.reset(seed=0)
    time.sleep(0.5)  # all eight have come
    _, _, terminated, _, info = env.step(0)
    assert "no decision within 50 ms" in info["refused"]
    assert {override.row for override in info["overrides"]} == set(range(8))
    assert info["executed"] == info["overrides"][0].place
    assert terminated
    assert (env.records().outcome == FINISHED).all()


def test_a_policy_compiles_itself_before_requests_come(make_server: MakeServer, make_live):
    class SlowAtFirst:
        name, clairvoyant, asked = "slow_at_first", False, 0

        def reset(self, spec, seed):
            pass

        def act(self, observation, state):
            self.asked += 1
            time.sleep(1.0 if self.asked == 1 else 0.0)
            assert state.can_take.all()
            return 0

    policy = SlowAtFirst()
    env = make_live(make_server(), make_server(), settings={"decide_within_s": 0.3})
    episode = run_episode(env, policy, 0)
    assert policy.asked == 9
    assert not any(decision["overrides"] for decision in episode.decisions)
    assert (episode.records.outcome == FINISHED).all()


def test_a_policy_that_fails_is_passed_over(make_server: MakeServer, make_live):
    class Broken:
        name, clairvoyant = "broken", False

        def reset(self, spec, seed):
            pass

        def act(self, observation, state):
            if state.request.index % 2:
                raise KeyError("lost my way")
            return 99 if state.request.index == 4 else 0

    env = make_live(make_server(), make_server(), retry_s=0.02, drain_limit_s=1.0)
    episode = run_episode(env, Broken(), 0)
    assert (episode.records.outcome == FINISHED).sum() == 8
    failed = [override for decision in episode.decisions for override in decision["overrides"]]
    reasons = {override["row"]: override["reason"] for override in failed}
    assert list(reasons) == [1, 3, 4, 5, 7]
    assert "got 99" in reasons.pop(4)
    assert all("broken failed: KeyError: 'lost my way'" in reason for reason in reasons.values())


def test_a_wall_clock_that_jumps_changes_nothing(make_server: MakeServer, make_live, monkeypatch):
    env = make_live(make_server())
    env.reset(seed=0)
    real = time.time
    done, number = False, 0
    while not done:
        number += 1
        monkeypatch.setattr(time, "time", lambda ahead_s=3600.0 * (-1) ** number: real() + ahead_s)
        _, _, terminated, truncated, info = env.step(0)
        assert 0 <= info["dt"] < 5
        done = terminated or truncated
    records = env.records()
    assert (records.outcome == FINISHED).all()
    assert (records.finish_s - records.arrival_s < 5).all()


def test_what_is_held_is_offered_again_and_the_queue_has_an_end(make_server: MakeServer, make_live):
    """Three come at once: the first is held, then the second; there is no room for the third."""
    env = make_live(make_server(), workload=stream_of(3, gap_s=0.0), queue_capacity=2, retry_s=0.05)
    env.reset(seed=0)
    for held in range(3):
        assert (env.state.request.index, env.state.num_held) == (held, min(held, 2))
        assert not env.state.request.held_before
        env.step(None)
    begun_s = env.state.now_s
    assert 0.05 <= begun_s < 0.5
    assert (env.state.request.index, env.state.request.held_before, env.state.num_held) == (0, True, 1)
    env.step(None)  # once more: the other of its class waits for the next retry too
    assert env.state.request.index == 0
    assert env.state.now_s >= begun_s + 0.05
    env.step(0)
    assert env.state.request.index == 1
    *_, terminated, _, _ = env.step(0)
    assert terminated
    assert env.records().outcome.tolist() == [FINISHED, FINISHED, REFUSED]


def test_a_client_that_hangs_up_is_no_longer_offered(
    make_server: MakeServer, make_live, monkeypatch: pytest.MonkeyPatch
):
    """Of two requests that are held the first has an impatient client; while it is decided about, it hangs up."""
    workload = stream_of(2, gap_s=0.0, patience_s=np.array([0.3, np.inf]))
    env = make_live(make_server(), workload=stream_of(2, gap_s=0.0), retry_s=0.02)
    monkeypatch.setattr(WorkloadSource, "sample", lambda self, *_: workload)
    env.reset(seed=0)
    assert env.state.request.index == 0
    env.step(None)
    env.step(None)
    assert (env.state.request.index, env.state.request.held_before) == (0, True)
    time.sleep(0.4)
    _, _, _, _, info = env.step(0)
    assert "its client has hung up" in info["refused"]
    while env.state.request is not None:
        assert env.state.request.index == 1
        env.step(0)
    records = env.records()
    assert [REASON_NAMES[code] for code in records.reason] == ["patience", "stop"]


def test_an_impossible_action_is_counted_and_holds(make_server: MakeServer, make_live):
    servers = make_server(max_model_len=100), make_server()
    env = make_live(*servers, workload=stream_of(1, prompt=200), retry_s=0.02)
    _, info = env.reset(seed=0)
    np.testing.assert_array_equal(info["action_mask"], [False, True, True])
    _, _, _, _, info = env.step(0)
    assert info["num_refused"] == 1
    assert "no place that can take" in info["refused"]
    assert env.state.request.held_before
    _, _, terminated, _, info = env.step(Dispatch(1, commands=(Migrate(0, 0),)))
    assert terminated
    assert "take no commands" in info["refused"]


def test_a_server_that_dies_loses_no_request_that_had_no_token(make_server: MakeServer, make_live):
    """One breaks every stream off before its first token: what was sent there comes back and goes to the other."""
    dying, healthy = make_server(break_after=0), make_server()
    env = make_live(dying, healthy, workload=stream_of(4, gap_s=0.05))
    env.reset(seed=0)
    done, seen = False, []
    while not done:
        state = env.state
        seen.append(state.request.index)
        _, _, terminated, truncated, _ = env.step(1 if seen.count(state.request.index) > 1 else 0)
        done = terminated or truncated
    assert (env.records().outcome == FINISHED).all()
    assert (env.records().engine == 1).all()
    assert sorted(seen) == sorted([*range(4), *range(4)])


def test_a_server_that_breaks_off_in_the_middle_fails_the_request(make_server: MakeServer, make_live):
    env = make_live(make_server(break_after=3), workload=stream_of(2))
    env.reset(seed=0)
    terminated = truncated = False
    while not (terminated or truncated):
        _, _, terminated, truncated, info = env.step(0)
    assert (env.records().outcome == FAILED).all()
    assert info["reward_terms"]["abandoned"] <= 0
    assert (env.records().generated_tokens == 3).all()


def test_a_run_that_is_cut_off_counts_what_is_left(make_server: MakeServer, make_live):
    env = make_live(make_server(token_s=0.5), workload=stream_of(2), drain_limit_s=0.3)
    env.reset(seed=0)
    env.step(0)
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (False, True)
    assert info["reward_terms"]["abandoned"] == -2


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (FleetConfig(groups=(GroupSpec(H100, 2),)), "names 1 servers, but cluster.groups has 2 places"),
        (FleetConfig(groups=(GroupSpec(H100, 0, places=1),)), "every place must be taken"),
        (FleetConfig(groups=(GroupSpec(H100, 1),), crashes=(Crash(1.0, 0),)), "cannot be injected"),
        (FleetConfig(groups=(GroupSpec(H100, 1),), order="edf"), "must be fcfs or priority"),
    ],
)
def test_what_running_servers_cannot_be(make_server: MakeServer, make_live, cluster, message):
    with pytest.raises(ValueError, match=message):
        make_live(make_server(), cluster=cluster)


def test_with_admission_a_refusal_answers_at_once_and_a_deferred_request_comes_last(
    make_server: MakeServer, make_live
):
    """Of eight requests the second is refused; the third is deferred, and offered again behind the fourth."""
    env = make_live(make_server(), make_server(), admission=True, retry_s=0.02)
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert info["action_mask"].tolist() == [True] * 5
    asked, done = [], False
    while not done:
        request = env.state.request
        asked.append((request.index, request.deferred))
        assert info["action_mask"].tolist() == [True] * 4 + [not request.deferred]
        action = {1: Reject(), 2: 0 if request.deferred else 4}.get(request.index, 0)
        observation, _, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        if request.index == 1:
            assert info["reward_terms"]["refused/standard"] == -1.0
            assert env.state.totals[0, 2] == 1, "refused, as of the next decision"
        done = terminated or truncated
    assert asked.count((2, True)) == 1
    assert asked.count((2, False)) == 1
    assert info["num_refused"] == 0
    records = env.records()
    assert (records.outcome == REFUSED).tolist() == [row == 1 for row in range(8)]
    assert env.state.sent_of_class.tolist() == [7]


def test_a_request_is_deferred_once(make_server: MakeServer, make_live):
    env = make_live(make_server(), admission=True, retry_s=0.02, workload=stream_of(1))
    env.reset(seed=0)
    env.step(3)
    assert env.state.request.deferred
    _, _, _, _, info = env.step(3)
    assert "deferred already" in info["refused"]
    assert info["num_refused"] == 1
    assert env.step(0)[2]


def test_an_episode_of_sessions_ends_with_its_last_turn(
    make_server: MakeServer, make_live, monkeypatch: pytest.MonkeyPatch
):
    """The second turn was planned 0.1 s after the first, whose answer takes far longer than the drain limit."""
    workload = Workload(
        arrival_s=[0.0, 0.1], input_tokens=[20, 40], output_tokens=[40, 4], session_id=[0, 0],
        delay_s=[0.0, 0.1], after_offsets=[0, 0, 1], after=[0],
    )  # fmt: skip
    env = make_live(make_server(token_s=0.02), workload=stream_of(2), drain_limit_s=0.3)
    monkeypatch.setattr(WorkloadSource, "sample", lambda self, *_: workload)
    env.reset(seed=0)
    done = False
    while not done:
        *_, terminated, truncated, _ = env.step(0)
        done = terminated or truncated
    assert terminated
    records = env.records()
    assert (records.outcome == FINISHED).all()
    np.testing.assert_allclose(records.arrival_s[1], records.finish_s[0] + 0.1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_a_server_fails_is_offered_again_and_goes_elsewhere(
    make_server: MakeServer, make_live, status: int
):
    failing, other = make_server(status=status), make_server()
    env = make_live(failing, other, workload=stream_of(12, gap_s=0.02))
    episode = run_episode(env, make_policy("jsq"), 0)
    assert (episode.records.outcome == FINISHED).all()
    assert (episode.records.engine == 1).all()
    assert len(failing.bodies) <= 4
    health = env.fleet.client_health()
    assert (health.overrides, health.overrides_share, health.failed) == (0, 0.0, {})
    assert health.servers == {server.url: "vLLM 0.32.0" for server in (failing, other)}


def test_a_policy_that_insists_on_a_failing_server_cannot_lose_requests(make_server: MakeServer, make_live):
    env = make_live(make_server(status=500), make_server())
    _, info = env.reset(seed=0)
    done = False
    while not done:
        _, _, terminated, truncated, info = env.step(0 if info["action_mask"][0] else 1)
        done = terminated or truncated
    assert (env.records().outcome == FINISHED).all()


def test_overrides_are_part_of_what_the_client_adds(make_server: MakeServer, make_live):
    env = make_live(make_server(), make_server(), settings={"decide_within_s": 0.05})
    env.reset(seed=0)
    time.sleep(0.5)
    env.step(0)
    health = env.fleet.client_health()
    assert (health.overrides, health.overrides_share) == (8, 1.0)
    assert "100 % of the decisions were not the policy's (overrides)" in health.warnings()
