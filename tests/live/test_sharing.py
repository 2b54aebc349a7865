"""The sharing environment over instances that speak as vLLM does, started and stopped in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.metrics import FAILED, FINISHED, REFUSED
from serving_gym.envs.interface.sharing import (
    Configure,
    Event,
    InstanceStatus,
    Load,
    NewInstance,
    RequestPhase,
    Reschedule,
    ResizeKV,
    TokenScheduler,
    Unload,
)
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.transitions import Deadlines, Slot, SlotState
from serving_gym.envs.machines.shared_nodes import NodeSpec, SharingSpec
from serving_gym.envs.sharing.live.env import LiveSharingEnv
from serving_gym.envs.sharing.live.fleet import SharedFleet
from serving_gym.envs.sharing.state import Share
from serving_gym.envs.simulator.sharing.build import ManagerSpec
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env
from tests.live.conftest import stream_of
from tests.live.fake_local import FAST, FREE, FakeLocalServer
from tests.live.fake_server import Behaviour

POOL = 4096 * 2 * 4 * 64 * 2 * 4  # bytes of 4096 tokens of a tiny Llama
SPEC = SharingSpec(
    nodes=(NodeSpec("gpu", "cpu", 2, memory_gb=0.1),),
    engine="",
    slots_per_node=2,
    max_num_seqs=16,
    block_tokens=32,
    max_tokens=2048,
    load_fixed_s=0.2,
    keep_alive_s=60.0,
)
A, B = "tiny-llama#0", "tiny-llama#1"


def two_models(n: int = 30, gap_s: float = 0.05, **words: object) -> Workload:
    """Requests of two models in turn."""
    return stream_of(n, gap_s, models=(A, B), model_id=np.arange(n) % 2, **words)


@pytest.fixture
def make_live(tmp_path):
    """The environment over two nodes of fake servers, on a trace of its own."""
    with ExitStack() as stack:

        def make(
            workload: Workload | None = None,
            limits: EnvelopeSettings = FREE,
            control_within_s: float = 5.0,
            servers: tuple[FakeLocalServer, ...] = (),
            spec: SharingSpec = SPEC,
            base: LaunchSettings | None = None,
            **config,
        ) -> LiveSharingEnv:
            path = write_trace(workload or two_models(), tmp_path / "trace.parquet")
            there = servers or tuple(FakeLocalServer() for _ in range(4))
            launch = base or LaunchSettings(max_model_len=2048)
            for server in there:
                server.settings = launch

            def make_fleet(episode):
                slots = [
                    Slot(server, lambda: 0, Deadlines(drain_s=2.0), lambda url, within_s: None)  # type: ignore[arg-type]
                    for server in there
                ]
                manager = episode.config.manager
                fleet = SharedFleet(
                    slots, episode.setting, lambda model, node: launch, manager, "fcfs", FAST, limits
                )
                stack.callback(fleet.close)
                return fleet

            words = {
                "workload": WorkloadSpec(name="file", path=str(path), split="all"),
                "cluster": spec,
                "split": "all",
                "drain_limit_s": 10.0,
                "manager": ManagerSpec(retry_s=0.05, patience_s=5.0),
                **config,
            }
            return LiveSharingEnv(make_fleet, control_within_s, **words)

        yield make


def play(env, decide: Callable[[object], object]) -> list[dict]:
    """Plays an episode with decisions by state; returns every info."""
    observation, info = env.reset(seed=0)
    infos, done = [info], False
    while not done:
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, info = env.step(decide(env.state))
        assert np.isfinite(reward)
        infos.append(info)
        done = terminated or truncated
    return infos


def first_fit(env) -> Callable[[object], int]:
    """The first place that is possible, or to hold."""
    return lambda state: int(np.flatnonzero(env.action_masks())[0])


def test_models_are_loaded_where_requests_go_and_every_one_is_served(make_live):
    servers = tuple(FakeLocalServer() for _ in range(4))
    env = make_live(servers=servers)
    infos = play(env, first_fit(env))
    assert not any(info["refused"] or info["overrides"] for info in infos)
    records = env.records()
    assert len(records.index) == 30
    assert (records.outcome == FINISHED).all()
    assert set(records.engine[::2]) == {0}  # the first slot that is empty
    assert set(records.engine[1::2]) == {1}
    assert [len(server.served) for server in servers] == [15, 15, 0, 0]
    assert servers[0].settings.kv_bytes >= POOL
    assert records.first_token_s[0] - records.arrival_s[0] >= 0.1  # it waited for the load
    assert len(env.transition_times()["start_s"]) == 2
    hours = -sum(info["reward_terms"].get("node_hours/gpu", 0.0) for info in infos)
    assert hours * 3600 == pytest.approx(env.gpu_seconds, rel=1e-6)
    assert 0.5 * env.state.now_s <= env.gpu_seconds <= env.state.now_s  # of one of two nodes
    assert sum(info["dt"] for info in infos) == pytest.approx(env.state.now_s, abs=0.1)


def test_what_is_seen_is_as_in_simulation(make_live):
    """A request that decodes, one that waits for a load, and one at the gateway."""
    slow = Behaviour(first_token_s=0.0, token_s=0.2)
    servers = (FakeLocalServer(behaviour=slow), *(FakeLocalServer(start_s=4.0) for _ in range(3)))
    env = make_live(servers=servers, workload=two_models(3, gap_s=0.4, output=40))
    env.reset(seed=0)
    state = env.state
    assert (state.event, state.offered) == (Event.PLACEMENT, 0)
    mask = env.action_masks()
    assert mask.tolist() == [False] * 4 + [True, True, True]
    env.step(4)  # a new one on node 0
    assert env.state.instances["model"].tolist()[0] == 0
    env.step(5)  # of model 1, on node 1
    assert env.state.requests["index"].tolist() == [0, 1, 2]
    assert env.state.requests["phase"].tolist() == [
        RequestPhase.RUNNING,
        RequestPhase.WAITING,
        RequestPhase.HELD,
    ]
    assert env.state.requests["instance"].tolist() == [0, 2, -1]
    assert env.state.requests["generated_tokens"][0] > 0
    instances = env.state.instances
    assert instances["status"].tolist() == [
        InstanceStatus.SERVING,
        InstanceStatus.EMPTY,
        InstanceStatus.LOADING,
        InstanceStatus.EMPTY,
    ]
    assert instances["num_running"].tolist() == [1, 0, 0, 0]
    assert instances["num_waiting"].tolist() == [0, 0, 1, 0]
    assert instances["kv_bytes"][0] == instances["kv_target_bytes"][0] >= POOL
    assert instances["kv_used_tokens"][0] == 20 + env.state.requests["generated_tokens"][0]
    assert env.state.nodes["num_instances"].tolist() == [1, 1]
    assert env.state.nodes["held_bytes"].tolist() == [
        int(instances["weights_bytes"][i] + instances["kv_target_bytes"][i]) for i in (0, 2)
    ]
    assert env.state.num_held == 1
    mask = env.action_masks()
    assert mask[0]
    assert not mask[2]  # another model's
    assert env.state.totals[0, 0] == 3


def test_an_idle_instance_is_unloaded_and_its_slot_serves_another(make_live):
    load = stream_of(2, gap_s=1.5, models=(A, B), model_id=np.arange(2))
    env = make_live(workload=load, spec=replace(SPEC, keep_alive_s=0.3))
    infos = play(env, first_fit(env))
    assert [info["executed"] for info in infos[1:]] == [
        {"request": 0, "slot": 0},
        {"request": 1, "slot": 0},
    ]
    steps = [str(step.state) for step in env.fleet.slots[0].steps]
    assert steps[:7] == ["stopped", "starting", "canary", "ready", "cordoned", "draining", "stopped"]
    assert steps.count("starting") == 2
    assert (env.records().outcome == FINISHED).all()
    assert env.gpu_seconds < env.state.now_s - 0.5


def test_an_instance_that_sleeps_is_woken_for_its_own_model(make_live, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "serving_gym.envs.live.transitions.post",
        lambda url, within_s, body=None: asked.append(url.rsplit("/", 1)[1]),
    )
    base = LaunchSettings(device="cuda", sleep_mode=True, max_model_len=2048)
    load = stream_of(3, gap_s=1.5, models=(A, B), model_id=np.array([0, 0, 1]))
    env = make_live(workload=load, base=base, spec=replace(SPEC, keep_alive_s=0.3, slots_per_node=2))
    play(env, first_fit(env))
    assert asked[:3] == ["sleep?level=1", "wake_up", "sleep?level=1"]
    assert (env.records().outcome == FINISHED).all()
    assert [server.starts for server in (slot.server for slot in env.fleet.slots)] == [1, 1, 0, 0]


def test_commands_of_policies_that_say_more(make_live):
    slow = Behaviour(first_token_s=0.6, token_s=0.05)
    servers = (FakeLocalServer(behaviour=slow), *(FakeLocalServer() for _ in range(3)))
    env = make_live(servers=servers, workload=stream_of(3, gap_s=0.3, models=(A,), output=20))
    env.reset(seed=0)
    commands = (
        Configure(TokenScheduler.EXCLUSIVE, True, 30.0),
        Load(0, 1, POOL),
        Load(7, 0, POOL),
        Load(0, 5, POOL),
        Load(0, 0, 10**9),
        Load(0, 0, 10),
        Unload(3),
        ResizeKV(2, POOL),
        Reschedule(2, None),
        Configure(TokenScheduler.POLICY),
        Configure(keep_alive_s=-1.0),
    )
    *_, info = env.step(Share(NewInstance(0, POOL), commands))
    assert info["executed"] == {"request": 0, "slot": 0}
    assert info["refused"].split("; ") == [
        "load.model must lie in [0, 1), got 7",
        "there is no node 5, there are 2",
        "the node has no room for an instance of the model",
        "a KV pool must hold a block at least",
        "the instance is empty or being unloaded",
        "a server of vLLM keeps the KV pool that it was started with",
        "the request is not in the system",
        "servers of vLLM give out their iterations themselves",
        "configure.keep_alive_s must lie in [0, 1e6), got -1.0",
    ]
    events = []
    while not env.core.done:
        state = env.state
        events.append(Event(state.event))
        moves = state.event is Event.PLACEMENT and state.requests["index"][state.offered] == 1
        # the first one has no token yet: it goes to the other instance
        share = Share(0 if state.event == Event.PLACEMENT else None)
        if moves:
            share = replace(share, commands=(Reschedule(0, 2), Unload(2)))
        *_, info = env.step(share)
        if moves:
            assert info["refused"] == "the instance still has requests"  # it is on its way
    assert {Event.OPERATION, Event.FINISHED, Event.PLACEMENT} <= set(events)
    records = env.records()
    assert (records.outcome == FINISHED).all()
    assert records.engine.tolist() == [2, 0, 0]
    assert len(servers[0].served) == 3


def test_an_instance_that_dies_leaves_its_slot_and_its_unstarted_requests_return(make_live):
    slow = Behaviour(first_token_s=0.3, token_s=0.05, max_num_seqs=1)
    servers = (FakeLocalServer(behaviour=slow), *(FakeLocalServer() for _ in range(3)))
    env = make_live(servers=servers, workload=stream_of(8, gap_s=0.1, models=(A,), output=10))
    env.reset(seed=0)
    died = False
    while not env.core.done:
        if not died and env.state.instances["num_running"][0]:
            servers[0].stop()
            died = True
        env.step(first_fit(env)(env.state))
    assert died
    assert env.state.num_ooms == 1
    outcomes = env.records().outcome
    assert (outcomes == FAILED).sum() == 1  # it had a token
    assert (outcomes == FINISHED).sum() == 7


def test_a_load_that_fails_counts_and_its_requests_return(make_live):
    class Broken(FakeLocalServer):
        def start(self):
            raise ValueError("no memory")

    env = make_live(
        servers=(Broken(), *(FakeLocalServer() for _ in range(3))),
        workload=stream_of(2, gap_s=0.5, models=(A,)),
    )
    env.reset(seed=0)
    env.step(4)
    while not env.core.done:
        env.step(5 if not env.action_masks()[2] else 2)
    assert env.state.num_ooms == 1
    assert (env.records().outcome == FINISHED).all()
    assert "no memory" in env.fleet.slots[0].steps[-1].note


def test_patience_has_an_end(make_live):
    env = make_live(manager=ManagerSpec(retry_s=0.05, patience_s=0.4), workload=two_models(4))
    infos = play(env, lambda state: None)
    assert (env.records().outcome == REFUSED).all()
    assert infos[-1]["num_refused"] == 0  # nobody asked for what was refused
    assert env.gpu_seconds == 0


def test_a_late_or_failing_policy_holds(make_live):
    class Broken:
        name, clairvoyant = "broken", False

        def reset(self, spec, seed):
            self.asked = 0

        def act(self, observation, state):
            self.asked += 1
            if self.asked == 1:
                raise KeyError("lost my way")
            time.sleep(0.3 if self.asked == 2 else 0.0)
            return int(np.flatnonzero(observation["places"][:, 0])[0])

    env = make_live(control_within_s=0.2)
    episode = run_episode(env, Broken(), 0)
    reasons = [[entry["reason"] for entry in decision["overrides"]] for decision in episode.decisions]
    assert "lost my way" in reasons[0][0]
    assert "no decision within 0.2 s" in reasons[1][0]
    assert not any(reasons[2:])
    assert episode.decisions[0]["executed"] is None
    assert (episode.records.outcome == FINISHED).all()


def test_the_envelope_refuses_and_says_why(make_live):
    env = make_live(limits=EnvelopeSettings(most_per_hour=1), workload=two_models(4))
    env.reset(seed=0)
    env.step(4)
    assert not env.action_masks()[4:6].any()  # nothing can be loaded any more
    *_, info = env.step(Share(NewInstance(1, POOL)))
    assert "the budget is 1" in info["refused"]
    *_, info = env.step(5)
    assert "no slot that may be reconfigured now" in info["refused"]


@pytest.mark.parametrize("policy", ["first_fit", "place_score", "sllm", "random", "llm_mesh"])
def test_every_policy_runs_in_both_bodies(make_live, policy):
    live = make_live(workload=two_models(16))
    names = ("workload", "cluster", "split", "drain_limit_s", "manager")
    simulated = make_env("sharing", **{name: getattr(live.config, name) for name in names})
    assert live.observation_space == simulated.observation_space
    assert live.action_space == simulated.action_space
    episodes = [run_episode(env, make_policy(policy), 0) for env in (simulated, live)]
    assert episodes[0].metrics.keys() == episodes[1].metrics.keys()
    terms = [episode.decisions[0]["reward_terms"].keys() for episode in episodes]
    assert terms[0] == terms[1]
    np.testing.assert_array_equal(episodes[0].records.arrival_s, episodes[1].records.arrival_s)
    assert (episodes[1].records.outcome == FINISHED).all()


def test_a_second_episode_begins_with_nothing(make_live):
    env = make_live(workload=two_models(6))
    for seed in (0, 1):
        env.reset(seed=seed)
        assert env.state.now_s < 1.0
        assert not env.state.instances["status"].any()
        assert all(slot.state is SlotState.STOPPED for slot in env.fleet.slots)
        env.step(4)
    with pytest.raises(RuntimeError, match="cannot be forked"):
        env.fork()


def test_iterations_are_no_decision(make_live):
    with pytest.raises(ValueError, match="vLLM gives out its iterations itself"):
        make_live(token_scheduler="policy")
