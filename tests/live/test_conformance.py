"""One scripted sequence on both bodies: what a policy may count on, whichever cluster it drives."""

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest

from serving_gym.envs.interface.backend import Backend
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.commands import Redeploy, SetLayout
from serving_gym.envs.interface.metrics import FINISHED, REFUSED, UNFINISHED, RequestRecords, summarise
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, TOTALS, ClusterState
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload
from tests.live.fake_server import Behaviour, FakeServer

SLOS = (SLO(1.0, 0.1), SLO(1.0, 0.1))
CLASSES = ("standard", "priority")
TOO_LONG = 10**7  # tokens that no engine holds

MakeBackend = Callable[[ClusterSpec, tuple[int, ...]], Backend]


def simulated(stack: ExitStack) -> MakeBackend:
    return lambda spec, triggers: Simulator(spec, SLOS, triggers)


def live(stack: ExitStack) -> MakeBackend:
    def make(spec: ClusterSpec, triggers: tuple[int, ...]) -> Backend:
        behaviour = Behaviour(num_blocks=10_000, max_model_len=100_000)
        servers = [stack.enter_context(FakeServer(behaviour)) for _ in range(spec.num_base)]
        settings = LiveSettings(tuple(server.url for server in servers), scrape_interval_s=0.05)
        return stack.enter_context(LiveBackend(spec, SLOS, settings, triggers))

    return make


@pytest.fixture(params=[simulated, live])
def make_backend(request: pytest.FixtureRequest) -> MakeBackend:
    with ExitStack() as stack:
        yield request.param(stack)


def spec_of(num_gpus: int = 2, **words: object) -> ClusterSpec:
    plain = {
        "model": "llama-3.1-8b",
        "gpu": "H100",
        "router": "round_robin",
        "order": "priority",
        "max_group": 1,
    }
    return ClusterSpec(num_gpus=num_gpus, **(plain | words))


def workload() -> Workload:
    return Workload(
        arrival_s=np.array([0.0, 0.05, 0.1, 0.15, 0.2]),
        input_tokens=np.array([40, 40, TOO_LONG, 40, 40]),
        output_tokens=np.array([8, 8, 8, 1, 8]),
        class_id=np.array([0, 1, 0, 0, 0]),
        priority=np.array([1, 0, 1, 1, 1]),
        classes=CLASSES,
    )


def check_state(state: ClusterState, spec: ClusterSpec) -> None:
    assert state.engines.dtype == ENGINE_STATE_DTYPE
    assert state.engines.shape == (2 * spec.num_base - 1 if spec.max_group is None else spec.num_base,)
    assert state.totals.shape == (len(CLASSES), len(TOTALS))
    assert state.layout == state.target_layout == (1,) * spec.num_base
    assert state.transitions == ()
    assert state.stale == ()
    assert len(state.active) == spec.num_base
    assert (state.active["width"] == spec.base_width).all()
    assert (state.active["kv_capacity_tokens"] > 0).all()


@pytest.mark.parametrize("max_group", [1, None])
def test_one_script_on_both_bodies(make_backend: MakeBackend, max_group: int | None) -> None:
    spec = spec_of(max_group=max_group)
    backend = make_backend(spec, ())
    state = backend.reset(workload())
    check_state(state, spec)
    assert state.now_s == 0.0
    assert state.totals.sum() == 0
    assert len(backend.results()) == 0

    assert backend.apply(SetLayout((1, 1))).accepted
    refused = backend.apply(SetLayout((4,)))
    assert not refused.accepted
    assert "does not add up to 2 base engines" in refused.reason
    assert not backend.apply(Redeploy((4,))).accepted

    assert not backend.advance(0.12)
    state = backend.observe()
    check_state(state, spec)
    assert 0.12 <= state.now_s < 0.15
    assert state.totals[:, TOTALS.index("arrived")].tolist() == [2, 1]
    assert len(backend.results()) == 3

    assert not backend.advance(2.0)
    state, records = backend.observe(), backend.results()
    check_state(state, spec)
    check_records(records)
    assert state.engines["num_running"].sum() == state.engines["num_waiting"].sum() == state.num_pooled == 0
    assert state.engines["prefilled_tokens"].sum() == 160
    assert state.engines["generated_tokens"].sum() in (
        25,
        25 - 4,
    )  # the simulator counts first tokens as prefill's
    totals = dict(zip(TOTALS, state.totals.sum(axis=0).tolist(), strict=True))
    assert (totals["arrived"], totals["refused"], totals["failed"], totals["finished"]) == (5, 1, 0, 4)
    assert totals["good"] == totals["ttft_met"] == totals["tpot_met"] == totals["first_tokens"] == 4
    assert totals["generated_tokens"] == 25


def check_records(records: RequestRecords) -> None:
    assert records.outcome.tolist() == [FINISHED, FINISHED, REFUSED, FINISHED, FINISHED]
    assert records.engine.tolist() == [0, 1, -1, 0, 1]
    assert records.generated_tokens.tolist() == [8, 8, 0, 1, 8]
    assert records.arrival_s.tolist() == [0.0, 0.05, 0.1, 0.15, 0.2]
    assert records.class_id.tolist() == [0, 1, 0, 0, 0]
    done = records.finished
    assert (records.arrival_s[done] <= records.first_scheduled_s[done]).all()
    assert (records.first_scheduled_s[done] < records.first_token_s[done]).all()
    assert (records.first_token_s[done] <= records.finish_s[done]).all()
    assert np.isnan(records.finish_s[2])
    summary = summarise(records, dict(zip(CLASSES, SLOS, strict=True)), CLASSES, 2.0)
    assert (summary["arrived"], summary["completed"], summary["refused"]) == (5, 4, 1)
    assert summary["slo_attainment"] == 0.8
    assert np.isinf(summary["ttft_p99_s"])


def test_a_trigger_stops_both_bodies(make_backend: MakeBackend) -> None:
    backend = make_backend(spec_of(), (1,))
    backend.reset(workload())
    assert backend.advance(1.0)
    state = backend.observe()
    assert 0.05 <= state.now_s < 0.1
    (waiting,) = state.waiting
    assert (waiting.index, waiting.input_tokens, waiting.class_id, waiting.priority) == (1, 40, 1, 0)
    assert not backend.advance(1.0)
    assert backend.observe().waiting == ()


def test_what_is_not_done_is_unfinished_and_a_reset_forgets_it(make_backend: MakeBackend) -> None:
    backend = make_backend(spec_of(1), ())
    long = Workload(
        np.array([0.0, 0.0]),
        np.array([40, 40]),
        np.array([2000, 2000]),
        classes=CLASSES,
        class_id=np.array([0, 1]),
    )
    backend.reset(long)
    backend.advance(0.1)
    records = backend.results()
    assert records.outcome.tolist() == [UNFINISHED, UNFINISHED]
    assert (records.generated_tokens < 2000).all()
    state = backend.observe()
    assert state.engines[0]["num_running"] == 2
    assert state.engines[0]["context_tokens"] > 80
    assert backend.reset(workload()).totals.sum() == 0
    assert len(backend.results()) == 0


def test_mistakes_are_the_same_on_both_bodies(make_backend: MakeBackend) -> None:
    backend = make_backend(spec_of(1), ())
    with pytest.raises(ValueError, match=r"workload has 1 classes .* but 2 SLOs are declared"):
        backend.reset(Workload(np.array([0.0]), np.array([4]), np.array([4])))
