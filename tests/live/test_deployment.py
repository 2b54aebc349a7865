"""The deployment environment over replicas that speak as vLLM does, started and stopped in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from serving_gym.agents.environments.deployment.features import action_size, state_size
from serving_gym.agents.environments.deployment.policy import ChoicePolicy
from serving_gym.agents.networks.score_network import TrainableNetwork
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.deployment.live.env import LiveDeploymentEnv
from serving_gym.envs.deployment.live.fleet import DividedFleet
from serving_gym.envs.deployment.live.platform import Platform
from serving_gym.envs.deployment.state import Deploy
from serving_gym.envs.interface.metrics import FAILED, FINISHED
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.transitions import Deadlines, Slot, SlotState
from serving_gym.envs.machines.cluster import Deployment, Replica, ReplicaKind
from serving_gym.envs.machines.spec import DeploymentSpec
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env
from tests.live.conftest import stream_of
from tests.live.fake_local import FAST, FREE, FakeLocalServer
from tests.live.fake_server import Behaviour
from tests.live.test_launcher import wait_for

SPEC = DeploymentSpec(model="llama-3.1-8b", num_machines=1, gpus_per_machine=2, max_pp=1)
ONE, TWO = ReplicaKind(1), ReplicaKind(2)
APART = Deployment(SPEC.cluster, (Replica(ONE, (0,)), Replica(ONE, (1,))))
MERGED = Deployment(SPEC.cluster, (Replica(TWO, (0, 1)),))
FIRST_ALONE = Deployment(SPEC.cluster, (Replica(ONE, (0,)),))


@pytest.fixture
def make_live(tmp_path):
    """The environment over two ranks of fake servers, on a trace of its own."""
    with ExitStack() as stack:

        def make(
            workload: Workload | None = None,
            limits: EnvelopeSettings = FREE,
            control_within_s: float = 5.0,
            servers: tuple[FakeLocalServer, ...] = (),
            drain_s: float = 2.0,
            spec: DeploymentSpec = SPEC,
            **config,
        ) -> LiveDeploymentEnv:
            path = write_trace(workload or stream_of(200, gap_s=0.03), tmp_path / "trace.parquet")
            words = {
                "workload": WorkloadSpec(name="file", path=str(path), split="all"),
                "cluster": spec,
                "split": "all",
                "span_s": 0.5,
                "num_types": 1,
                "past_requests": 100,
                "past_spans": 4,
                "num_candidates": 6,
                "profiling": "closed_form",
                "drain_limit_s": 8.0,
                **config,
            }
            there = servers or tuple(FakeLocalServer() for _ in range(4))
            slots = [
                Slot(server, lambda: 0, Deadlines(drain_s=drain_s), lambda url, within_s: None)  # type: ignore[arg-type]
                for server in there
            ]
            platform = Platform(LaunchSettings(device="cuda"), ("4", "5"))
            empty = Deployment(spec.cluster)
            fleet = DividedFleet(slots, platform, empty, 16, "fcfs", FAST, limits, back_off_s=0.1)
            stack.callback(fleet.close)
            return LiveDeploymentEnv(fleet, control_within_s, **words)

        yield make


def evenly(deployment: Deployment) -> Deploy:
    return Deploy(deployment, np.ones((len(deployment.replicas), 1)))


def finish(env) -> None:
    """Plays an episode to its end without a decision."""
    while not env.core.done:
        env.step(None)


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


def test_a_choice_is_carried_out_by_relaunch_and_every_request_is_served(make_live):
    """Two replicas become one of both ranks, and then two again."""
    env = make_live()
    fleet = env.core.fleet

    def has_served(slot: int) -> bool:
        records = env.records()
        return bool((records.outcome[records.engine == slot] == FINISHED).any())

    def decide(step: int) -> object:
        if step == 0:
            return evenly(APART)
        if step == 1:
            return evenly(MERGED)
        if fleet.switch is None and len(fleet.switches) == 1 and has_served(2):
            return evenly(APART)
        return None

    infos = play(env, decide)
    assert infos[1]["executed"] == {"deployment": "(TP=1)×2", "replicas": [[0], [1]]}
    assert infos[2]["executed"] == {"deployment": "(TP=2)", "replicas": [[0, 1]]}
    assert infos[2]["reward_terms"]["switch"] == -2  # GPUs in the replica that comes
    assert not any(info["refused"] or info["overrides"] for info in infos)
    assert [switch.failed for switch in fleet.switches] == [0, 0]
    assert all(switch.took_s >= 0.1 for switch in fleet.switches)
    first = [str(step.state) for step in fleet.slots[0].steps]
    assert first[:7] == ["stopped", "starting", "canary", "ready", "cordoned", "draining", "stopped"]
    merged = fleet.slots[2].server.settings
    assert (merged.slot, merged.tp_size, merged.pp_size) == ("4,5", 2, 1)
    records = env.records()
    assert len(records.index) == 200
    assert (records.outcome == FINISHED).all()
    assert len(set(records.engine)) > 2
    assert sorted(str(slot.state) for slot in fleet.slots) == ["ready", "ready", "stopped", "stopped"]
    assert env.transition_times()["switch_s"] == [switch.took_s for switch in fleet.switches]
    assert sum(info["dt"] for info in infos) == pytest.approx(env.state.now_s, abs=0.5)


def test_a_switch_waits_for_what_runs_and_takes_what_does_not_elsewhere(make_live):
    """Rank 1 is given up: what streams there ends there, what has no token yet goes to rank 0."""
    slow = Behaviour(first_token_s=0.0, token_s=0.05, max_num_seqs=2)
    servers = (FakeLocalServer(), FakeLocalServer(behaviour=slow), FakeLocalServer(), FakeLocalServer())
    env = make_live(servers=servers, workload=stream_of(30, gap_s=0.02, output=60), drain_s=20.0)
    env.reset(seed=0)
    env.step(evenly(APART))
    *_, info = env.step(evenly(FIRST_ALONE))
    assert info["executed"]["replicas"] == [[0]]
    assert env.state.switch.draining
    assert not info["action_mask"][2:].any()  # but to stay there is no choice
    assert "a switch is under way" in env.step(evenly(MERGED))[-1]["refused"]
    finish(env)
    records = env.records()
    assert (records.outcome == FINISHED).all()
    there = records.engine == 1
    assert 2 <= there.sum() <= 4  # two at a time
    assert len(servers[1].served) > there.sum()  # it had been sent more
    wait_for(lambda: env.core.fleet.switches)  # the last request may have been one that it waited for
    (switch,) = env.core.fleet.switches
    assert switch.drain_s >= 0.2
    assert env.core.fleet.slots[1].state is SlotState.STOPPED


def test_a_drain_has_an_end_and_what_it_cuts_off_is_on_record(make_live):
    endless = Behaviour(token_s=0.5)
    servers = (FakeLocalServer(behaviour=endless), *(FakeLocalServer() for _ in range(3)))
    env = make_live(servers=servers, workload=stream_of(20, gap_s=0.1, output=30), drain_s=0.3)
    env.reset(seed=0)
    env.step(evenly(FIRST_ALONE))
    infos = [env.step(evenly(MERGED))[-1]]
    while env.core.fleet.switch is not None:
        infos.append(env.step(None)[-1])
    notes = [step.note for step in env.core.fleet.slots[0].steps if step.note]
    assert len(notes) == 1
    assert "did not end within 0.3 s" in notes[0]
    assert sum(info["reward_terms"]["abandoned"] for info in infos) < 0
    records = env.records()
    assert (records.outcome == FAILED).any()
    assert set(records.engine[records.outcome == FAILED]) == {0}


def test_a_replica_that_does_not_come_up_is_tried_again(make_live):
    class Broken(FakeLocalServer):
        def start(self):
            if self.starts < 2:
                self.starts += 1
                raise ValueError("no memory")
            super().start()

    servers = (FakeLocalServer(), FakeLocalServer(), Broken(), FakeLocalServer())
    env = make_live(servers=servers, workload=stream_of(100, gap_s=0.05))
    env.reset(seed=0)
    env.step(evenly(APART))
    env.step(evenly(MERGED))
    while env.core.fleet.switch is not None:
        env.step(None)
    assert env.core.fleet.switches[0].failed == 1
    wait_s = time.monotonic() + 5.0
    while env.core.fleet.slots[2].state is not SlotState.READY:
        env.step(None)
        assert time.monotonic() < wait_s
    env.step(None)
    assert env.state.engines["status"].tolist() == [EngineStatus.ACTIVE]
    assert env.transition_times()["switch_s"] == []


def test_a_server_that_dies_while_another_is_relaunched(make_live):
    servers = tuple(FakeLocalServer(start_s=0.5) for _ in range(4))
    env = make_live(servers=servers, workload=stream_of(100, gap_s=0.04))
    fleet = env.core.fleet
    env.reset(seed=0)
    env.step(evenly(FIRST_ALONE))
    env.step(evenly(APART))  # rank 1 starts
    assert fleet.switch is not None
    servers[0].stop()
    wait_for(lambda: (env.step(None), fleet.deaths == 1)[1])
    finish(env)
    assert fleet.switch is None
    assert [str(slot.state) for slot in fleet.slots[:2]] == ["ready", "ready"]
    outcomes = env.records().outcome
    assert set(outcomes) <= {FINISHED, FAILED}
    assert (outcomes == FINISHED).sum() >= 90  # what had a token there is lost, nothing else


def test_a_late_or_failing_policy_leaves_all_as_it_is(make_live):
    class Broken:
        name, clairvoyant = "broken", False

        def reset(self, spec, seed):
            self.asked = 0

        def act(self, observation, state):
            self.asked += 1
            if self.asked == 2:
                raise KeyError("lost my way")
            time.sleep(0.3 if self.asked in (1, 3) else 0.0)
            return evenly(APART if self.asked == 1 else MERGED)

    env = make_live(control_within_s=0.2, workload=stream_of(60, gap_s=0.05))
    episode = run_episode(env, Broken(), 0)
    reasons = [[entry["reason"] for entry in decision["overrides"]] for decision in episode.decisions]
    assert not reasons[0]  # for the first one the clock waits
    assert "lost my way" in reasons[1][0]
    assert "no decision within 0.2 s" in reasons[2][0]
    replicas = [decision["executed"] and decision["executed"]["replicas"] for decision in episode.decisions]
    assert replicas[:4] == [[[0], [1]], None, None, [[0, 1]]]


def test_the_envelope_refuses_and_says_why(make_live):
    env = make_live(limits=EnvelopeSettings(min_dwell_s=60.0, most_per_hour=3))
    env.reset(seed=0)
    env.step(evenly(FIRST_ALONE))
    *_, info = env.step(evenly(APART))  # rank 1
    assert not info["refused"]
    while env.core.fleet.switch is not None:
        env.step(None)
    *_, info = env.step(evenly(MERGED))
    assert "slot 1 was reconfigured" in info["refused"]
    assert "dwell is 60 s" in info["refused"]
    assert info["num_refused"] == 1
    mask = info["action_mask"]
    assert mask[:2].all()  # to stay, with either assignment
    assert not mask[2:].any()
    budget = make_live(limits=EnvelopeSettings(min_dwell_s=0.0, most_per_hour=0))
    budget.reset(seed=0)
    budget.step(evenly(APART))
    assert "the budget is 0" in budget.step(evenly(MERGED))[-1]["refused"]


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (Deployment(SPEC.cluster, (Replica(ReplicaKind(1, 2), (0, 1)),)), "on a CPU the first request ends"),
        (
            Deployment(
                SPEC.cluster,
                (Replica(ReplicaKind(1, 1, "prefill"), (0,)), Replica(ReplicaKind(1, 1, "decode"), (1,))),
            ),
            "nothing here sends KV from a prefill worker",
        ),
    ],
)
def test_what_the_platform_cannot_have(deployment, message):
    assert message in Platform(LaunchSettings(), ("0", "1")).why_not_all(deployment)
    on_gpus = Platform(LaunchSettings(device="cuda"), ("0", "1"))
    pipeline = deployment.replicas[0].kind.pp > 1
    assert (on_gpus.why_not_all(deployment) == "") is pipeline
    if pipeline:
        settings = on_gpus.settings_of(deployment.replicas[0])
        assert (settings.slot, settings.tp_size, settings.pp_size) == ("0,1", 1, 2)


def test_ranks_are_cores_of_their_own():
    replica = Replica(TWO, (0, 1))
    settings = Platform(LaunchSettings(), ("0-1", "2-3")).settings_of(replica)
    assert (settings.slot, settings.tp_size) == ("0-1|2-3", 2)
    assert settings.cores == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="must differ where each is a rank"):
        Platform(LaunchSettings(), ("0", "0"))


def test_prefill_and_decode_workers_are_no_choice(make_live):
    spec = DeploymentSpec(
        model="llama-3.1-8b", num_machines=1, gpus_per_machine=2, max_pp=1, disaggregation=True
    )
    env = make_live(spec=spec)
    env.reset(seed=0)
    assert all(not candidate.divided for candidate in env.core.candidates)
    divided = Deployment(
        SPEC.cluster,
        (Replica(ReplicaKind(1, 1, "prefill"), (0,)), Replica(ReplicaKind(1, 1, "decode"), (1,))),
    )
    *_, info = env.step(evenly(divided))
    assert "live servers serve a request from end to end" in info["refused"]


@pytest.mark.parametrize(
    "policy", ["vllm_static", "vllm_reload", "llumnix_deployment", "oserve_moving", "stay"]
)
def test_the_spaces_terms_and_files_of_simulation(make_live, policy):
    """Every policy runs in both bodies as it is."""
    words = {"forecaster": "moving_average", "profiling": "environment"} if policy == "oserve_moving" else {}
    name = policy.removesuffix("_moving")
    live = make_live(workload=stream_of(30, gap_s=0.05))
    config = live.config
    names = ("workload", "cluster", "split", "span_s", "num_types", "past_requests", "past_spans")
    shared = {key: getattr(config, key) for key in (*names, "num_candidates", "profiling", "drain_limit_s")}
    simulated = make_env("deployment", **shared)
    assert live.observation_space == simulated.observation_space
    assert live.action_space == simulated.action_space
    episodes = [run_episode(env, make_policy(name, **words), 0) for env in (simulated, live)]
    assert episodes[0].metrics.keys() == episodes[1].metrics.keys()
    terms = [episode.decisions[0]["reward_terms"].keys() for episode in episodes]
    assert terms[0] == terms[1]
    np.testing.assert_array_equal(episodes[0].records.arrival_s, episodes[1].records.arrival_s)
    assert (episodes[1].records.outcome == FINISHED).all()
    assert not any(decision["overrides"] or decision["refused"] for decision in episodes[1].decisions)


def test_a_policy_is_asked_at_its_own_period(make_live):
    """Several times within a span, which the end of the episode cuts short: its percentile is charged once, then."""
    env = make_live(workload=stream_of(60, gap_s=0.05), span_s=60.0)
    policy = make_policy("stay")
    policy.period_s = 0.2
    episode = run_episode(env, policy, 0)
    steps = np.diff([decision["now_s"] for decision in episode.decisions])
    assert len(steps) >= 1  # a span is longer than the episode
    assert (steps >= 0.19).all()
    charged = [decision["reward_terms"]["p99"] for decision in episode.decisions]
    assert np.flatnonzero(charged).tolist() == [len(charged) - 1]
    assert (episode.records.outcome == FINISHED).all()


def test_a_planner_of_divisions_is_told_why_it_has_none(make_live):
    """Dynamo proposes prefill and decode workers span by span; the first deployment goes on serving."""
    spec = DeploymentSpec(
        model="llama-3.1-8b", num_machines=1, gpus_per_machine=2, max_pp=1, disaggregation=True
    )
    env = make_live(spec=spec, workload=stream_of(30, gap_s=0.05))
    episode = run_episode(env, make_policy("dynamo", period_s=None), 0)
    assert all("from end to end" in decision["refused"] for decision in episode.decisions)
    assert episode.metrics["commands_refused"] == len(episode.decisions)
    assert (episode.records.outcome == FINISHED).all()


def test_a_learned_policy_chooses_among_what_there_is(make_live):
    """A network without training: whatever it prefers is a choice that can be had."""
    env = make_live(workload=stream_of(100, gap_s=0.03))
    space = env.observation_space
    network = TrainableNetwork(state_size(space), action_size(space), 8)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.uniform_(-1.0, 1.0, generator=torch.Generator().manual_seed(5))
    episode = run_episode(env, ChoicePolicy(network.export(), "untrained", space), 0)
    assert not any(decision["refused"] or decision["overrides"] for decision in episode.decisions)
    assert all(decision["executed"] is not None for decision in episode.decisions)
    assert (episode.records.outcome == FINISHED).all()


def test_a_second_episode_begins_as_the_first(make_live):
    env = make_live(workload=stream_of(30, gap_s=0.05))
    for seed in (0, 1):
        env.reset(seed=seed)
        assert env.state.now_s == 0
        env.step(evenly(APART if seed == 0 else MERGED))
        env.step(evenly(MERGED))
    assert env.core.fleet.switches == []
    fleet = env.core.fleet
    assert sorted(str(slot.state) for slot in fleet.slots) == ["ready", "stopped", "stopped", "stopped"]


def test_an_impossible_cluster_is_refused(make_live):
    with pytest.raises(ValueError, match=r"cluster\.num_machines must be 1"):
        make_live(spec=DeploymentSpec(model="llama-3.1-8b", num_machines=2))
    with pytest.raises(ValueError, match="must be fcfs or priority"):
        make_live(spec=DeploymentSpec(model="llama-3.1-8b", num_machines=1, order="edf"))
