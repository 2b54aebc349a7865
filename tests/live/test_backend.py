import re
import time
from collections.abc import Callable

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec, Fault
from serving_gym.envs.interface.commands import Redeploy, SetLayout
from serving_gym.envs.interface.metrics import (
    FAILED,
    FINISHED,
    LENGTH,
    NO_REASON,
    REASON_NAMES,
    REFUSED,
    UNFINISHED,
)
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.workload.schema import Workload
from tests.live.conftest import SLOS, MakeBackend, MakeServer, stream_of
from tests.live.fake_server import KV_USAGE, RUNNING


def test_every_request_is_served_with_its_exact_lengths(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server()
    backend = make_backend(server)
    workload = stream_of(12)
    backend.reset(workload)
    backend.run_to_completion()
    records = backend.results()
    assert (records.outcome == FINISHED).all()
    assert (records.generated_tokens == 6).all()
    assert [len(body["prompt"]) for body in server.bodies] == [20] * 12
    assert all(body["max_tokens"] == body["min_tokens"] == 6 and body["ignore_eos"] for body in server.bodies)
    assert all("priority" not in body for body in server.bodies)
    for earlier, later in (
        (records.arrival_s, records.first_scheduled_s),
        (records.first_scheduled_s, records.first_token_s),
        (records.first_token_s, records.finish_s),
    ):
        assert (earlier <= later).all()
    details = backend.details()
    assert [len(gaps) for gaps in details["itls"]] == [5] * 12
    assert np.allclose([sum(gaps) for gaps in details["itls"]], records.finish_s - records.first_token_s)
    assert (backend.send_lag_s() >= 0).all()


def test_tokens_that_come_together_are_all_counted(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server(tokens_per_chunk=4))
    backend.reset(stream_of(2, output=10))
    backend.run_to_completion()
    assert (backend.results().generated_tokens == 10).all()
    assert [len(gaps) for gaps in backend.details()["itls"]] == [9 - 3] * 2


def test_the_same_stream_in_half_the_time(make_server: MakeServer, make_backend: MakeBackend) -> None:
    backend = make_backend(make_server(), speed=2.0)
    backend.reset(stream_of(5, gap_s=0.1))
    backend.run_to_completion()
    assert np.allclose(backend.results().arrival_s, np.arange(5) * 0.05)


def test_the_state_joins_gauges_with_own_counts(make_server: MakeServer, make_backend: MakeBackend) -> None:
    server = make_server(max_num_seqs=2, first_token_s=0.01, token_s=0.5)
    backend = make_backend(server, spec={"max_num_seqs": 2})
    backend.reset(stream_of(5, gap_s=0.0))
    backend.advance(0.3)
    state = backend.observe()
    row = state.engines[0]
    assert (row["num_running"], row["num_waiting"], row["num_prefilling"]) == (2, 3, 0)
    assert (row["context_tokens"], row["pending_prefill_tokens"]) == (2 * 21, 3 * 20)
    assert (row["kv_capacity_blocks"], row["kv_capacity_tokens"]) == (512, 512 * 16)
    assert state.totals[0, 0] == 5
    assert state.stale == ()
    assert 0 < row["busy_s"] <= state.now_s


def test_no_clock_before_the_first_advance(make_server: MakeServer, make_backend: MakeBackend) -> None:
    backend = make_backend(make_server())
    backend.reset(stream_of(3))
    time.sleep(0.05)
    state = backend.observe()
    assert state.now_s == 0.0
    assert state.totals.sum() == 0
    assert len(backend.results()) == 0


def test_a_quantity_that_a_server_does_not_tell_is_counted_by_the_client(
    make_server: MakeServer, make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server(omit=(KV_USAGE, RUNNING), token_s=0.5)
    backend = make_backend(server)
    (record,) = caplog.records
    assert "counted by the client, as the server does not tell it: running, KV usage" in record.getMessage()
    backend.reset(stream_of(3, gap_s=0.0))
    backend.advance(0.2)
    row = backend.observe().engines[0]
    assert (row["num_running"], row["kv_used_blocks"]) == (3, -(-3 * 21 // 16))


BROKEN_PAGES: dict[str, Callable[[str], str]] = {
    "nan": lambda page: page.replace(f'{RUNNING}{{engine="0"}} ', f'{RUNNING}{{engine="0"}} NaN # '),
    "infinite": lambda page: page.replace(f'{RUNNING}{{engine="0"}} ', f'{RUNNING}{{engine="0"}} +Inf # '),
    "half": lambda page: page[: len(page) // 2],
    "missing": lambda page: page.replace(RUNNING, "vllm:other"),
    "no_number": lambda page: page.replace(f'{RUNNING}{{engine="0"}} ', f'{RUNNING}{{engine="0"}} many '),
    "no_label": lambda page: page.replace(f'{RUNNING}{{engine="0"}} ', f'{RUNNING}{{engine="0 '),
}


@pytest.mark.parametrize("broken", BROKEN_PAGES.values(), ids=BROKEN_PAGES)
def test_a_page_that_cannot_be_read_is_stale_until_the_next_that_can(
    make_server: MakeServer,
    make_backend: MakeBackend,
    caplog: pytest.LogCaptureFixture,
    broken: Callable[[str], str],
) -> None:
    server = make_server(token_s=0.5)
    backend = make_backend(server)
    backend.reset(stream_of(4, gap_s=0.0))
    backend.advance(0.15)
    assert backend.observe().stale == ()
    server.behaviour.rewrite_page = broken
    backend.advance(0.35)
    state = backend.observe()
    assert state.stale == (0,)
    assert (state.engines[0]["status"], state.engines[0]["num_running"]) == (EngineStatus.ACTIVE, 4)
    server.behaviour.rewrite_page = str
    backend.advance(0.5)
    assert backend.observe().stale == ()
    assert not caplog.records


def test_a_page_that_stays_unreadable_makes_its_server_unavailable_and_is_logged_once(
    make_server: MakeServer, make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = make_server(), make_server()
    backend = make_backend(broken, sound, stale_after_s=0.4)
    backend.reset(stream_of(60, gap_s=0.04))
    backend.advance(0.1)
    broken.behaviour.omit = (RUNNING,)
    backend.advance(1.0)
    state, sent = backend.observe(), len(broken.bodies)
    assert state.stale == (0,)
    assert state.engines["status"].tolist()[:2] == [EngineStatus.DOWN, EngineStatus.ACTIVE]
    backend.advance(1.3)
    assert len(broken.bodies) == sent
    (record,) = caplog.records
    assert f"{broken.url}/metrics has no {RUNNING}" in record.getMessage()
    broken.behaviour.omit = ()
    backend.run_to_completion()
    assert len(broken.bodies) > sent
    assert (backend.results().outcome == FINISHED).all()


def test_a_page_that_stays_unreadable_before_a_run(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server()
    backend = make_backend(server, stale_after_s=0.1)
    server.behaviour.rewrite_page = BROKEN_PAGES["nan"]
    with pytest.raises(ValueError, match=rf"cannot read http.*{RUNNING} nan, which is no finite number"):
        backend.reset(stream_of(1))


def test_stale_gauges_are_marked_and_own_counts_stand_in(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server(token_s=0.5)
    backend = make_backend(server, stale_after_s=0.1)
    backend.reset(stream_of(3, gap_s=0.0))
    backend.advance(0.1)
    server.behaviour.metrics_delay_s = 30.0
    backend.advance(0.5)
    state = backend.observe()
    assert state.stale == (0,)
    assert state.engines[0]["num_running"] == 3


def test_a_server_slow_to_answer_is_waited_for_before_a_run(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server(metrics_delay_s=0.3)
    backend = make_backend(server, stale_after_s=0.1)
    state = backend.reset(stream_of(3))
    assert state.engines[0]["kv_capacity_blocks"] == 512
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()


def test_a_full_queue_refuses(make_server: MakeServer, make_backend: MakeBackend) -> None:
    backend = make_backend(make_server(status=503))
    backend.reset(stream_of(3))
    backend.run_to_completion()
    assert (backend.results().outcome == REFUSED).all()
    assert all("HTTP 503" in reason and "full" in reason for reason in backend.details()["errors"])
    assert backend.observe().totals[0, 2] == 3


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ({"break_after": 3}, ""),
        ({"hang_after": 3}, "no token came for 0.2 s"),
        ({"short_by": 2, "finish_reason": "stop"}, "4 tokens came where 6 were asked for"),
    ],
)
def test_lost_answers_stay_in_the_records(
    behaviour: dict[str, object], said: str, make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server(**behaviour), silence_s=0.2)
    backend.reset(stream_of(4))
    backend.run_to_completion()
    records = backend.results()
    assert (records.outcome == FAILED).all()
    assert (records.generated_tokens == 6 - behaviour.get("short_by", 3)).all()
    assert np.isinf(records.ttft_s).all()
    assert not np.isnan(records.first_token_s).any()
    assert all(said in reason and reason for reason in backend.details()["errors"])
    assert backend.observe().engines[0]["context_tokens"] == 0


@pytest.mark.parametrize(
    ("garbage", "said"),
    [
        ("{", "unreadable answer: JSONDecodeError"),
        ("[1]", "unreadable answer: AttributeError"),
        ('{"usage": {"completion_tokens": 1e999}}', "unreadable answer: ValueError inf is no whole number"),
        (
            '{"usage": {"completion_tokens": 7000000000}}',
            "unreadable answer: ValueError 7000000000 is no whole",
        ),
        ('{"usage": {"completion_tokens": NaN}}', "unreadable answer: ValueError nan is no whole number"),
        ("[" * 100_000, "unreadable answer: RecursionError"),
        ('{"error": {"message": "out of blocks"}}', "server error: {'message': 'out of blocks'}"),
    ],
)
def test_unreadable_answers(
    garbage: str, said: str, make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server(garbage=garbage))
    backend.reset(stream_of(2))
    backend.run_to_completion()
    assert (backend.results().outcome == FAILED).all()
    assert all(reason.startswith(said) for reason in backend.details()["errors"])


def test_an_error_of_our_own_ends_the_run(
    make_server: MakeServer, make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def book_tokens(self: Ledger, row: int, tokens: int, now_s: float) -> None:
        raise RuntimeError("the books do not balance")

    backend = make_backend(make_server())
    backend.reset(stream_of(50))
    monkeypatch.setattr(Ledger, "book_tokens", book_tokens)
    with pytest.raises(RuntimeError, match="the books do not balance"):
        backend.run_to_completion()


@pytest.mark.parametrize(
    "written",
    [
        {"after_colon": ""},
        {"line_end": "\r"},
        {"line_end": "\r\n", "bytes_at_once": 1},
        {"done": False},
        {"line_end": "\r", "after_colon": "", "done": False, "bytes_at_once": 3},
    ],
    ids=lambda written: ",".join(written),
)
def test_every_stream_that_the_standard_allows_is_read(
    make_server: MakeServer, make_backend: MakeBackend, written: dict[str, object]
) -> None:
    backend = make_backend(make_server(**written))
    backend.reset(stream_of(3))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()
    assert (backend.results().generated_tokens == 6).all()


@pytest.mark.parametrize(
    "said", ['{"error": {"message": "out of memory"}}', '{"object": "error", "message": "out of memory"}']
)
def test_an_error_inside_a_stream_fails_its_request(
    make_server: MakeServer, make_backend: MakeBackend, said: str
) -> None:
    backend = make_backend(make_server(garbage=said))
    backend.reset(stream_of(1))
    backend.run_to_completion()
    assert backend.results().outcome.tolist() == [FAILED]
    assert "out of memory" in backend.details()["errors"][0]


def test_an_answer_that_the_server_cuts_is_finished(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    """A server may end an answer at its own limit, and says so; an answer that stops early for no reason has failed."""
    for finish_reason, outcome, reason in (("length", FINISHED, LENGTH), ("stop", FAILED, NO_REASON)):
        backend = make_backend(make_server(short_by=2, finish_reason=finish_reason))
        backend.reset(stream_of(1))
        backend.run_to_completion()
        records = backend.results()
        assert (records.outcome[0], records.reason[0], records.generated_tokens[0]) == (outcome, reason, 4)


LONG = Workload(  # within; at the limit; beyond it; no room; beyond
    arrival_s=np.arange(5) * 0.01,
    input_tokens=np.array([10, 90, 90, 100, 101]),
    output_tokens=np.array([6, 10, 11, 1, 6]),
    max_output_tokens=np.array([500, 10, 11, 5, 6]),
)


@pytest.mark.parametrize("where", ["server", "backend", "cluster", "pool"])
def test_requests_end_at_the_longest_that_is_allowed(
    make_server: MakeServer, make_backend: MakeBackend, where: str
) -> None:
    pool = {"num_blocks": 25, "block_size": 4}
    server = make_server(**{"server": {"max_model_len": 100}, "pool": pool}.get(where, {}))
    spec = {"max_model_len": 100} if where == "cluster" else {}
    settings = {"max_model_len": 100} if where == "backend" else {}
    backend = make_backend(server, spec=spec, **settings)
    backend.reset(LONG)
    backend.run_to_completion()
    records = backend.results()
    assert records.outcome.tolist() == [FINISHED] * 3 + [REFUSED] * 2
    assert records.generated_tokens.tolist() == [6, 10, 10, 0, 0]
    reasons = [REASON_NAMES[code] for code in records.reason]
    assert reasons == ["stop", "stop", "length", *["prompt longer than max_model_len"] * 2]
    assert backend.details()["errors"] == ["", "", "", *["prompt longer than max_model_len"] * 2]
    assert [body["max_tokens"] for body in server.bodies] == [6, 10, 10]


def test_what_no_engine_could_hold_is_refused(make_server: MakeServer, make_backend: MakeBackend) -> None:
    server = make_server(num_blocks=4, block_size=16)
    backend = make_backend(server)
    backend.reset(stream_of(2, prompt=64))
    backend.run_to_completion()
    assert (backend.results().outcome == REFUSED).all()
    assert server.bodies == []


def test_a_reset_drops_what_is_in_flight(make_server: MakeServer, make_backend: MakeBackend) -> None:
    server = make_server(token_s=5.0)
    backend = make_backend(server)
    backend.reset(stream_of(3, gap_s=0.0))
    backend.advance(0.2)
    assert (backend.results().outcome == UNFINISHED).all()
    assert backend.details()["errors"] == ["unfinished"] * 3
    server.behaviour.token_s = 0.001
    state = backend.reset(stream_of(1))
    assert server.aborted == 3
    assert state.engines[0]["num_running"] == 0
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()


def test_leaving_drops_what_is_in_flight(make_server: MakeServer, make_backend: MakeBackend) -> None:
    server = make_server(token_s=5.0)
    with make_backend(server) as backend:
        backend.reset(stream_of(3, gap_s=0.0))
        backend.advance(0.2)
    deadline_s = time.monotonic() + 5
    while server.aborted < 3 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert server.aborted == 3


def test_requests_take_turns(make_server: MakeServer, make_backend: MakeBackend) -> None:
    backend = make_backend(make_server(), make_server())
    backend.reset(stream_of(6))
    backend.run_to_completion()
    assert backend.results().engine.tolist() == [0, 1, 0, 1, 0, 1]


def test_a_dead_server_is_passed_over(make_server: MakeServer, make_backend: MakeBackend) -> None:
    dying, living = make_server(), make_server()
    backend = make_backend(dying, living)
    backend.reset(stream_of(6, gap_s=0.1))
    dying.behaviour.metrics_status = 500
    backend.advance(0.05)
    time.sleep(0.1)
    backend.run_to_completion()
    assert backend.results().engine.tolist()[2:] == [1, 1, 1, 1]
    assert backend.observe().engines["status"].tolist()[:2] == [5, 1]


def test_no_server_takes_a_request(make_server: MakeServer, make_backend: MakeBackend) -> None:
    server = make_server()
    backend = make_backend(server, silence_s=0.3)
    backend.reset(stream_of(2, gap_s=0.2))
    server.behaviour.metrics_status = 500
    backend.advance(0.0)
    time.sleep(0.1)
    backend.run_to_completion()
    assert backend.results().outcome[-1] == FAILED
    assert "no server could take it" in backend.details()["errors"][-1]


def test_a_request_that_asks_for_a_decision_stops_the_wait(make_server: MakeServer) -> None:
    server = make_server()
    workload = stream_of(4, gap_s=0.05, class_id=np.array([0, 1, 0, 0]), classes=("a", "b"))
    spec = ClusterSpec(num_gpus=1, router="jsq")
    with LiveBackend(spec, SLOS * 2, LiveSettings((server.url,)), trigger_classes=(1,)) as backend:
        backend.reset(workload)
        assert backend.advance(10.0)
        assert [waiting.index for waiting in backend.observe().waiting] == [1]
        assert not backend.advance(0.3)
        assert backend.observe().waiting == ()


def test_commands_that_attached_servers_cannot_carry_out(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server(), make_server())
    backend.reset(stream_of(1))
    assert backend.apply(SetLayout((1, 1))).accepted
    assert "keep the layout (1, 1)" in backend.apply(SetLayout((2,))).reason
    assert "cannot be restarted" in backend.apply(Redeploy((2,))).reason
    assert "does not add up to 2" in backend.apply(SetLayout((4,))).reason
    assert backend.refused_commands == 3
    with pytest.raises(ValueError, match="faults cannot be injected"):
        backend.reset(stream_of(1), (Fault(1.0, 0),))


@pytest.mark.parametrize(
    ("endpoints", "spec", "said"),
    [
        ((), {}, "backend.endpoints is empty"),
        (("127.0.0.1:8000",), {}, "is not an address"),
        (("http://127.0.0.1",), {}, "is not an address"),
        (("http://192.0.2.1:8000",), {}, "beyond loopback"),
        (("http://127.0.0.1:1", "http://127.0.0.1:1/v1"), {}, "more than once"),
        (("http://127.0.0.1:1",), {"num_gpus": 2}, "names 1 servers, but the cluster has 2"),
        (("http://127.0.0.1:1",), {}, "no server answers at http://127.0.0.1:1"),
        (("http://127.0.0.1:1",), {"router": "hold"}, "router='hold' is not available"),
        (
            ("http://127.0.0.1:1", "http://127.0.0.1:2"),
            {"num_gpus": 2, "layout": (2,)},
            "cluster.layout=(2,)",
        ),
    ],
)
def test_mistakes(endpoints: tuple[str, ...], spec: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        LiveBackend(ClusterSpec(**({"num_gpus": 1, "router": "jsq"} | spec)), SLOS, LiveSettings(endpoints))
