"""The autoscaling environment over slots whose servers speak as vLLM does, started and stopped in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from serving_gym.baselines.registry import make_policy
from serving_gym.envs.autoscaling.live.env import LiveAutoscalingEnv
from serving_gym.envs.autoscaling.live.fleet import ScaledFleet
from serving_gym.envs.autoscaling.live.traffic import RunningTime, traffic_of
from serving_gym.envs.autoscaling.observation import ENDPOINT_FEATURES
from serving_gym.envs.autoscaling.state import AutoscalingSpec, InstanceStatus
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.metrics import FAILED, FINISHED
from serving_gym.envs.interface.scaling import Held, Operation, Release, ScaleChange
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.transitions import Deadlines, Slot, SlotState
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners import evaluate
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env
from tests.live.conftest import stream_of
from tests.live.fake_local import FAST, FREE, FakeLocalServer
from tests.live.test_launcher import wait_for


@pytest.fixture
def make_live(tmp_path):
    """The environment over slots of fake servers, on a trace of its own."""
    with ExitStack() as stack:

        def make(
            places: int = 2,
            count: int = 1,
            workload: Workload | None = None,
            limits: EnvelopeSettings = FREE,
            control_within_s: float = 5.0,
            servers: tuple[FakeLocalServer, ...] = (),
            back_off_s: float = 0.1,
            **config,
        ):
            path = write_trace(workload or stream_of(30, gap_s=0.05), tmp_path / "trace.parquet")
            replica = ReplicaSpec("llama-3.1-8b", "H100")
            words = {
                "workload": WorkloadSpec(name="file", path=str(path), split="all"),
                "cluster": FleetConfig(groups=(GroupSpec(replica, count, places),), start_fixed_s=1.0),
                "split": "all",
                "decision_interval_s": 0.5,
                "episode_s": 2.0,
                "history_s": 4.0,
                "history_bin_s": 0.5,
                "recent_s": 2.0,
                "recent_bin_s": 0.25,
                "drain_limit_s": 5.0,
                **config,
            }
            there = servers or tuple(FakeLocalServer() for _ in range(places))
            slots = [
                Slot(server, lambda: 0, Deadlines(drain_s=2.0), lambda url, within_s: None)  # type: ignore[arg-type]
                for server in there
            ]
            fleet = ScaledFleet(slots, [16] * len(slots), "fcfs", FAST, limits, back_off_s)
            stack.callback(fleet.close)
            return LiveAutoscalingEnv(fleet, control_within_s, **words)

        yield make


def play(env, decide: Callable[[int], object]) -> list[dict]:
    """Plays an episode with decisions by step; returns every info."""
    observation, info = env.reset(seed=0)
    infos, done = [info], False
    while not done:
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, info = env.step(decide(len(infos) - 1))
        assert np.isfinite(reward)
        infos.append(info)
        done = terminated or truncated
    return infos


def start(env, count: int = 1) -> tuple[ScaleChange, ...]:
    return (ScaleChange(env.policy_spec.setting_of(AutoscalingSpec).endpoints[0], Operation.START, count),)


def stop(env, count: int = 1, **words) -> tuple[ScaleChange, ...]:
    return (
        ScaleChange(env.policy_spec.setting_of(AutoscalingSpec).endpoints[0], Operation.STOP, count, **words),
    )


def test_servers_come_and_go_and_every_request_is_served(make_live):
    """The second is started, and once it serves the first goes."""
    servers = FakeLocalServer(), FakeLocalServer()
    env = make_live(servers=servers, workload=stream_of(100, gap_s=0.04), episode_s=4.5)

    def decide(step: int) -> object:
        if step == 1:
            wait_for(lambda: env.fleet.slots[1].state is SlotState.READY)
        return {0: start(env), 1: stop(env, places=(0,))}.get(step)

    infos = play(env, decide)
    assert [info["executed"] for info in infos[1:4]] == [
        [{"operation": "start", "places": [1]}],
        [{"operation": "stop", "places": [0]}],
        [],
    ]
    assert not any(info["refused"] or info["overrides"] for info in infos)
    records = env.records()
    assert (records.outcome == FINISHED).all()
    assert len(records.index) == 100
    assert servers[0].served
    assert servers[1].served
    assert len(servers[0].served) + len(servers[1].served) == 100
    assert [slot.state for slot in env.fleet.slots] == [SlotState.STOPPED, SlotState.READY]
    (own,) = env.state.endpoints
    assert own.instances["status"].tolist() == [InstanceStatus.RUNNING]
    assert own.instances["place"].tolist() == [1]
    assert own.history.rows["requests"][8:].sum() == 100  # behind eight bins of the past
    assert own.history.rows["finished"][8:].sum() >= 95  # the last bin has not ended
    assert sum(info["dt"] for info in infos) == pytest.approx(env.state.now_s, abs=0.5)


def test_the_spaces_terms_and_files_of_simulation(make_live):
    live = make_live()
    words = {name: getattr(live.config, name) for name in ("workload", "cluster", "split", "episode_s")}
    words |= {
        name: getattr(live.config, name) for name in ("history_s", "history_bin_s", "decision_interval_s")
    }
    simulated = make_env("autoscaling", **words)
    assert live.observation_space == simulated.observation_space
    assert live.action_space == simulated.action_space
    episodes = [run_episode(env, make_policy("hpa_waiting"), 0) for env in (simulated, live)]
    assert episodes[0].metrics.keys() == episodes[1].metrics.keys()
    assert episodes[0].decisions[0]["reward_terms"].keys() == episodes[1].decisions[0]["reward_terms"].keys()
    np.testing.assert_array_equal(episodes[0].records.arrival_s, episodes[1].records.arrival_s)


def test_the_money_is_for_the_time_that_slots_are_held(make_live):
    env = make_live()
    infos = play(env, lambda step: start(env) if step == 0 else None)
    usd_per_s = float(env.policy_spec.setting_of(AutoscalingSpec).gpu_usd_per_h[0]) / 3600
    held_s = env.fleet.held_s()
    assert held_s[0, Held.RUNNING] == pytest.approx(env.state.now_s, rel=0.2)
    assert 0.1 <= held_s[1, Held.STARTING] < env.state.now_s
    paid = -sum(info["reward_terms"].get("gpu_usd", 0.0) for info in infos)
    assert paid == pytest.approx(usd_per_s * held_s.sum(), rel=0.2)
    waste = -sum(info["reward_terms"].get("startup_usd", 0.0) for info in infos)
    assert waste == pytest.approx(usd_per_s * held_s[1, Held.STARTING], rel=0.2)
    assert env.gpu_seconds == pytest.approx(held_s.sum(), rel=0.2)


def test_a_vector_of_the_action_space(make_live):
    env = make_live(episode_s=60.0)
    env.reset(seed=0)
    up, down = (env.config.max_change + change for change in (1, -1))
    assert env.action_masks()[: 2 * env.config.max_change + 1].tolist() == [False, False, True, True, False]
    *_, info = env.step(np.array([up, 1, env.config.queue.level]))
    assert info["executed"] == [{"operation": "start", "places": [1]}]
    wait_for(lambda: env.fleet.num_ready == 2)
    *_, info = env.step(np.array([down, 0, 0]))
    assert [entry["operation"] for entry in info["executed"]] == ["stop"]
    assert "no queue manager" in info["refused"]
    *_, info = env.step(np.array([9, 0, 0]))  # servers stay as they are
    assert "action must be 3 integers from 0 to" in info["overrides"][0].reason


def test_the_envelope_refuses_and_says_why(make_live):
    env = make_live(limits=EnvelopeSettings(min_dwell_s=60.0), episode_s=60.0)
    env.reset(seed=0)
    *_, info = env.step(stop(env))
    assert "1 servers are in service; at least 1 must stay" in info["refused"]
    assert info["executed"] == []
    env.step(start(env))
    wait_for(lambda: env.fleet.num_ready == 2)
    assert env.action_masks()[:5].tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]  # the first has not been touched
    *_, info = env.step(stop(env, places=(1,)))
    assert "dwell is 60 s" in info["refused"]
    assert info["num_refused"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: ScaleChange(own, Operation.DONATE, 1), "not started with backend.sleep_mode"),
        (lambda own: ScaleChange(own, Operation.RECLAIM, 1), "no more servers to reclaim"),
        (lambda own: ScaleChange(own, Operation.REDEPLOY, 1, donor="x"), "no servers of another model"),
        (lambda own: ScaleChange(own, Operation.START, 3), "1 of 3: no more servers to start"),
        (lambda own: ScaleChange(own, Operation.START, 1, gpu=1), "no kind of machine 1"),
        (lambda own: ScaleChange(own._replace(model="x"), Operation.START, 1), "there is no endpoint x"),
        (lambda own: Release(own, 0), "no queue manager"),
    ],
)
def test_what_cannot_be_carried_out(make_live, change, message):
    env = make_live(limits=EnvelopeSettings(min_dwell_s=0.0, min_ready=0), episode_s=60.0)
    env.reset(seed=0)
    *_, info = env.step((change(env.policy_spec.setting_of(AutoscalingSpec).endpoints[0]),))
    assert message in info["refused"]


def test_a_late_or_failing_policy_leaves_all_as_it_is(make_live):
    class Broken:
        name, clairvoyant = "broken", False

        def reset(self, spec, seed):
            self.asked = 0

        def act(self, observation, state):
            self.asked += 1
            if self.asked == 1:
                raise KeyError("lost my way")
            time.sleep(0.3 if self.asked == 2 else 0.0)
            return start(env)

    env = make_live(control_within_s=0.2, episode_s=4.0)
    episode = run_episode(env, Broken(), 0)
    reasons = [[entry["reason"] for entry in decision["overrides"]] for decision in episode.decisions]
    assert "lost my way" in reasons[0][0]
    assert "no decision within 0.2 s" in reasons[1][0]
    assert not reasons[2]
    assert [len(decision["executed"]) for decision in episode.decisions[:3]] == [0, 0, 1]


def test_a_server_that_dies_is_ejected_and_started_again(make_live):
    servers = FakeLocalServer(), FakeLocalServer()
    env = make_live(count=2, servers=servers, episode_s=3.0)
    env.reset(seed=0)
    env.step(None)
    servers[0].stop()
    env.step(None)
    assert env.fleet.deaths == 1
    done = False
    while not done:
        *_, terminated, truncated, _ = env.step(None)
        done = terminated or truncated
    assert env.fleet.slots[0].state is SlotState.READY
    outcomes = env.records().outcome
    assert set(outcomes) <= {FINISHED, FAILED}
    assert (outcomes == FINISHED).sum() >= 25  # what had a token there is lost, nothing else


def test_a_server_that_does_not_start_says_so(make_live):
    class Broken(FakeLocalServer):
        def start(self):
            raise ValueError("no memory")

    env = make_live(servers=(Broken(), FakeLocalServer()))
    with pytest.raises(ValueError, match="failed where it should be ready: ValueError: no memory"):
        env.reset(seed=0)


def test_a_second_episode_begins_as_the_first(make_live):
    env = make_live()
    play(env, lambda step: start(env) if step == 0 else None)
    env.reset(seed=1)
    assert [slot.state for slot in env.fleet.slots] == [SlotState.READY, SlotState.STOPPED]
    assert env.state.now_s < 2.0
    row = dict(zip(ENDPOINT_FEATURES, env.reset(seed=1)[0]["endpoints"][0], strict=True))
    assert row["starting"] == 0
    assert row["no_instance"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"places": 3, "servers": (FakeLocalServer(),)}, "has 3 places, but there are 1 slots"),
        (
            {
                "cluster": FleetConfig(
                    groups=tuple(
                        GroupSpec(ReplicaSpec(m, "H100"), 1) for m in ("llama-3.1-8b", "llama-2-13b")
                    )
                )
            },
            "one model in one region on one kind of machine, got 2 endpoints",
        ),
        (
            {
                "cluster": FleetConfig(
                    groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1, 2),), order="edf"
                )
            },
            "must be fcfs or priority",
        ),
    ],
)
def test_what_launched_servers_cannot_be(make_live, words, message):
    with pytest.raises(ValueError, match=message):
        make_live(**words)


def test_both_bodies_by_one_command(tmp_path, monkeypatch):
    """The command line with fake servers in place of launched ones: the gap, and what a start costs in both."""

    def launched(settings: LaunchSettings, folder: Path) -> FakeLocalServer:
        return FakeLocalServer(settings=settings, folder=folder)

    monkeypatch.setattr("serving_gym.runners.live.attach.LocalServer", launched)
    words = [
        "env=autoscaling",
        "policy=hpa_waiting",
        "rivals=[fixed_instances]",
        "repeats=1",
        "seeds=1",
        "split=all",
    ]
    words += ["cluster=fleet_tiny_cpu_scaled", "workload=sharegpt_poisson", "workload.num_requests=20"]
    words += ["workload.rate_rps=10", "env.episode_s=2", "env.decision_interval_s=1", "env.history_s=10"]
    words += ["env.history_bin_s=1", "env.recent_s=2", "env.recent_bin_s=1", "env.prediction.name=oracle"]
    words += ["backend=both", "backend.launch=true", "backend.envelope.min_dwell_s=0", f"out={tmp_path}"]
    assert evaluate.main(words) == 0
    found = json.loads((tmp_path / "gap.json").read_text())
    assert set(found["policies"]) == {"hpa_waiting", "fixed_instances"}
    start = found["transitions"]["start_s"]
    assert start["simulated"] == [pytest.approx(22.61)]
    assert start["live"][0] >= 0.1
    assert start["error"][0] > 0
    decisions = (tmp_path / "decisions.jsonl").read_text().splitlines()
    assert all("executed" in json.loads(line) for line in decisions)


def test_traffic_in_bins_by_hand():
    """Bins of 1 s. Row 0 from 0.5 to 1.5, row 1 from 1.0 to 2.5 and late, row 2 fails at 2.25, row 3 is inside."""
    load = Workload(np.array([0.5, 1.0, 2.0, 2.5]), np.full(4, 10), np.array([5, 5, 5, 5]))
    ledger = Ledger(load, (SLO(0.5, 0.5),), 1)
    happenings = [(0.5, 0, 0), (0.75, 0, 1), (1.0, 1, 0), (1.5, 0, 5), (1.75, 1, 1), (2.0, 2, 0), (2.5, 1, 5)]
    for at_s, row, tokens in happenings:
        if tokens == 0:
            ledger.book_arrival(row)
            ledger.book_sent(row, 0, at_s)
        else:
            ledger.book_tokens(row, tokens, at_s)
        if tokens == 5:
            ledger.book_end(row, False, "", None, at_s)
    ledger.book_end(2, False, "the stream broke off", None, 2.25)
    ledger.book_arrival(3)
    ledger.book_sent(3, 0, 2.5)
    running = RunningTime([], [])
    for at_s, count in ((0.0, 1), (1.5, 2), (2.0, 2), (2.75, 1)):
        running.note(at_s, count)
    found = traffic_of(ledger, np.array([True]), running, 1.0, 3.4)
    assert (len(found), found.end_s) == (3, 3.0)
    rows = found.rows
    assert rows["requests"].tolist() == [1, 1, 2]
    assert rows["input_tokens"].tolist() == [10, 10, 20]
    assert rows["output_tokens"].tolist() == [0, 5, 5]
    assert rows["first_tokens"].tolist() == [1, 1, 0]
    assert rows["ttft_sum_s"].tolist() == [0.25, 0.75, 0]
    assert rows["finished"].tolist() == [0, 1, 1]
    assert rows["tpot_sum_s"] == pytest.approx([0, 0.75 / 4, 0.75 / 4])
    assert rows["violations"].tolist() == [0, 1, 1]  # a first token late, and a request that failed
    assert rows["mean_concurrency"] == pytest.approx([0.5, 1.5, 0.5 + 0.25 + 0.5])
    assert rows["mean_instances"] == pytest.approx([1.0, 1.5, 1.75])
