"""The node and its environment over a server that switches, with a server that only pretends to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from serving_gym.envs.dp_tp.config import DEFAULT_SLOS
from serving_gym.envs.dp_tp.env import DPTPEnv
from serving_gym.envs.dp_tp.live.env import LiveDPTPEnv
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.commands import Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import Group
from serving_gym.envs.interface.metrics import FINISHED
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.live.access import Access
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.switching.backend import SwitchingBackend
from serving_gym.envs.live.switching.plugin.endpoint import authorised
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.schema import Workload
from tests.live.fake_server import FakeServer
from tests.live.switching.fake import FakeSwitchingServer

SPEC = ClusterSpec(
    num_gpus=2,
    model="llama-3.1-8b",
    gpu="H100",
    order="fcfs",
    max_num_seqs=16,
    block_size=16,
    kv_blocks_override=100,
)
SLOS = (SLO(0.5, 0.05),)


def settings(server: FakeServer, **words: object) -> LiveSettings:
    return LiveSettings((server.url,), scrape_interval_s=0.02, stale_after_s=0.5, silence_s=2.0, **words)  # type: ignore[arg-type]


@pytest.fixture
def server() -> Iterator[FakeSwitchingServer]:
    with FakeSwitchingServer() as server:
        yield server


@pytest.fixture
def backend(server: FakeSwitchingServer) -> Iterator[SwitchingBackend]:
    with SwitchingBackend(SPEC, SLOS, settings(server)) as backend:
        yield backend


def stream_of(n: int, gap_s: float = 0.01) -> Workload:
    return Workload(np.arange(n) * gap_s, np.full(n, 20), np.full(n, 6))


def test_a_run_begins_apart_and_serves_everyone(
    backend: SwitchingBackend, server: FakeSwitchingServer
) -> None:
    state = backend.reset(stream_of(5))
    assert (state.layout, state.target_layout, state.transitions) == ((1, 1), (1, 1), ())
    assert server.orders == [{"layout": [1, 1], "mode": "hard"}]
    assert state.engines["status"].tolist() == [
        EngineStatus.ACTIVE,
        EngineStatus.ACTIVE,
        EngineStatus.INACTIVE,
    ]
    assert state.engines["width"].tolist() == [1, 1, 2]
    assert state.engines["first_gpu"].tolist() == [0, 1, 0]
    assert state.engines["kv_capacity_tokens"].tolist() == [1600, 1600, 3200]
    while not backend.idle:
        backend.advance(backend.now_s + 0.05)
    assert (backend.results().outcome == FINISHED).all()


def test_the_first_layout_is_had_at_once_and_no_restart_later(backend: SwitchingBackend) -> None:
    backend.reset(stream_of(20, 0.05))
    assert backend.apply(Redeploy((2,), weights="whole")).accepted
    assert backend.observe().layout == (2,)
    assert not backend.apply(Redeploy((2,), execution="shift")).accepted
    backend.advance(0.1)
    receipt = backend.apply(Redeploy((1, 1)))
    assert (receipt.accepted, receipt.reason) == (False, "Redeploy: an attached server cannot be restarted")
    assert not backend.apply(SetLayout((1,))).accepted
    assert backend.refused_commands == 3


def test_a_switch_that_drains_is_a_transition(backend: SwitchingBackend, server: FakeSwitchingServer) -> None:
    backend.reset(stream_of(20, 0.05))
    backend.advance(0.1)
    server.drain_s = 30.0
    assert backend.apply(SetLayout((2,), SwitchMode.SOFT)).accepted
    assert server.orders[-1] == {"layout": [2], "mode": "soft"}
    state = backend.observe()
    assert (state.layout, state.target_layout) == ((1, 1), (2,))
    (transition,) = state.transitions
    assert (transition.region, transition.target, transition.mode) == (
        Group(0, 2),
        (Group(0, 2),),
        SwitchMode.SOFT,
    )
    assert transition.due_s is None
    assert 0.0 <= transition.started_s <= state.now_s
    assert state.engines["status"][:2].tolist() == [EngineStatus.DRAINING] * 2
    refused = backend.apply(SetLayout((1, 1)))
    assert (refused.accepted, refused.reason) == (False, "ranks 0 to 1 are being reconfigured")
    assert backend.apply(SetLayout((2,), SwitchMode.HARD)).accepted
    assert backend.observe().layout == (2,)
    assert backend.switches()[-1]["mode"] == "hard"


def test_figures_of_a_group_are_its_row(backend: SwitchingBackend, server: FakeSwitchingServer) -> None:
    left, right = Group(0, 1), Group(1, 1)
    server.figures = {
        left: {"generated_tokens": 500, "preemptions": 2, "busy_s": 3.0}
    }  # before the run began
    backend.reset(stream_of(2))
    server.figures = {
        left: {
            "generated_tokens": 520,
            "preemptions": 2,
            "busy_s": 3.5,
            "num_running": 3,
            "kv_used_blocks": 7,
        },
        right: {"num_running": 2, "status": "paused", "context_tokens": 90},
    }
    rows = backend.observe().engines
    assert (rows["generated_tokens"][0], rows["preemptions"][0], rows["busy_s"][0]) == (20, 0, 0.5)
    assert (rows["num_running"].tolist(), rows["kv_used_blocks"][0]) == ([3, 2, 0], 7)
    assert (rows["status"][1], rows["context_tokens"][1]) == (EngineStatus.PAUSED, 90)


def test_what_is_no_node_is_refused(server: FakeSwitchingServer) -> None:
    with pytest.raises(ValueError, match="the server has 2 ranks, but the cluster has 4 base engines"):
        SwitchingBackend(ClusterSpec(num_gpus=4, order="fcfs"), SLOS, settings(server))
    with pytest.raises(ValueError, match="must name the one server"):
        SwitchingBackend(SPEC, SLOS, LiveSettings((server.url, server.behind)))
    with pytest.raises(ValueError, match=r"cluster\.weights must be whole"):
        SwitchingBackend(ClusterSpec(num_gpus=2, weights="sharded", order="fcfs"), SLOS, settings(server))
    with FakeServer() as plain, pytest.raises(ValueError, match="is it a server with the plugin"):
        SwitchingBackend(SPEC, SLOS, settings(plain))


# -- the environment ---------------------------------------------------------------------------------------------------


def words(n: int = 6) -> dict[str, object]:
    traffic = {
        "low_rate_rps": [20.0, 30.0],
        "burst_rate_rps": None,
        "input_tokens": [8, 40],
        "output_tokens": [2, 8],
    }
    return {
        "cluster": SPEC,
        "workload": WorkloadSpec("flying_bursty", num_requests=n, params=traffic),
        "decision_interval_s": 0.1,
        "slos": DEFAULT_SLOS,
    }


def test_an_episode_has_the_spaces_the_arrivals_and_the_ends_of_the_simulated_one(
    server: FakeSwitchingServer,
) -> None:
    simulated, live = DPTPEnv(**words()), LiveDPTPEnv(settings(server), **words())
    assert live.observation_space == simulated.observation_space
    assert live.action_space == simulated.action_space
    simulated.reset(seed=3)
    observation, info = live.reset(seed=3)
    mask = info["action_mask"]
    assert live.observation_space.contains(observation)
    over, reward, steps = False, 0.0, 0
    while not over:
        action = int(np.flatnonzero(mask)[steps % int(mask.sum())])
        observation, gained, terminated, truncated, info = live.step(action)
        assert live.observation_space.contains(observation)
        assert info["refused"] == ""
        reward, steps, over, mask = reward + gained, steps + 1, terminated or truncated, info["action_mask"]
    assert terminated
    assert reward < 0  # latency costs
    records = live.records()
    over = False
    while not over:
        *_, terminated, truncated, _ = simulated.step(None)
        over = terminated or truncated
    assert np.array_equal(records.arrival_s, simulated.records().arrival_s)
    assert np.array_equal(records.output_tokens, simulated.records().output_tokens)
    assert (records.outcome == FINISHED).all()
    assert live.gpu_seconds == 2 * live.state.now_s
    with pytest.raises(RuntimeError, match="cannot be forked"):
        live.fork()
    live.close()


def test_a_switch_costs_what_it_touches_and_the_first_layout_nothing(server: FakeSwitchingServer) -> None:
    env = LiveDPTPEnv(settings(server), **words(30))
    env.reset(seed=0)
    *_, info = env.step(Redeploy((2,), weights="whole"))
    assert (info["refused"], info["reward_terms"]["switch"]) == ("", 0.0)
    *_, info = env.step(SetLayout((1, 1), SwitchMode.HARD))
    assert (info["refused"], info["reward_terms"]["switch"]) == ("", -2.0)
    *_, info = env.step(Redeploy((2,)))
    assert info["refused"] == "Redeploy: an attached server cannot be restarted"
    assert info["num_refused"] == 1
    env.close()


def test_latency_costs_as_in_simulation() -> None:
    """The running sum against the simulator's own, at every decision of an episode."""
    env = DPTPEnv(**words(40))
    env.reset(seed=1)
    simulator = env.core.simulator
    ledger = Ledger(simulator.workload, env.core.slos, 1)
    compared, over = 0, False
    while not over:
        *_, terminated, truncated, _ = env.step(None)
        over = terminated or truncated
        expected = simulator.latency_cost
        records = env.records()
        ledger.order = records.index.tolist()
        count = len(ledger.order)
        ledger.first_token_s[:count], ledger.end_s[:count] = records.first_token_s, records.finish_s
        ledger.outcome[:count] = records.outcome
        assert ledger.latency_cost(simulator.now_s) == pytest.approx(expected, rel=1e-6, abs=1e-9)
        compared += 1
    assert compared > 3


def test_its_api_key_is_asked_for_and_given(monkeypatch: pytest.MonkeyPatch) -> None:
    class Guarded(FakeSwitchingServer):
        keys = ("one", "other")

    with Guarded() as server:
        with pytest.raises(
            ValueError, match=r"/switching answers HTTP 401: set backend\.access\.api_key_env"
        ):
            SwitchingBackend(SPEC, SLOS, settings(server))
        monkeypatch.setenv("ITS_KEY", "other")
        with SwitchingBackend(SPEC, SLOS, settings(server, access=Access(api_key_env="ITS_KEY"))) as backend:
            assert backend.reset(stream_of(2)).layout == (1, 1)


@pytest.mark.parametrize(
    ("header", "keys", "passes"),
    [
        ("", [], True),
        ("Bearer wrong", [], True),
        ("Bearer right", ["right"], True),
        ("bearer right", ["left", "right"], True),
        ("Bearer wrong", ["right"], False),
        ("Basic right", ["right"], False),
        ("right", ["right"], False),
        ("", ["right"], False),
    ],
)
def test_who_may_switch(header: str, keys: list[str], passes: bool) -> None:
    assert authorised(header, keys) == passes
