"""What servers do to requests: nothing is lost that another server can serve, nothing waits for ever."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from serving_gym.envs.interface.metrics import FAILED, FINISHED, REFUSED
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.gauges import Gauges
from serving_gym.envs.live.health import FIRST_EJECTION_S, MOST_FAILURES, Health
from serving_gym.envs.live.replay import MOST_ATTEMPTS
from tests.live import fault_table
from tests.live.conftest import MakeBackend, MakeServer, stream_of

SOON: dict[str, Any] = {"hung_after_s": 0.4, "silence_s": 20.0, "stale_after_s": 0.3}
WAIT_S = 20.0


def advance_until(backend: LiveBackend, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline_s:
        backend.advance(backend.now_s + 0.02)
    assert condition()


def hung_servers(backend: LiveBackend) -> list[tuple[int, str]]:
    told: list[tuple[int, str]] = []
    backend._session.on_hung = lambda number, reason: told.append((number, reason))
    return told


def test_what_a_frozen_server_has_not_begun_is_served_elsewhere_and_it_comes_back(
    make_server: MakeServer, make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    frozen, other = make_server(first_token_s=0.3), make_server()
    backend = make_backend(frozen, other, **SOON)
    told = hung_servers(backend)
    backend.reset(stream_of(400, gap_s=0.01))
    backend.advance(0.25)
    frozen.behaviour.frozen = True
    frozen.behaviour.first_token_s = 0.005
    advance_until(backend, lambda: bool(told))
    assert told == [(0, "it has not answered for 0.4 s")]
    assert backend.observe().engines["status"].tolist()[:2] == [EngineStatus.DOWN, EngineStatus.ACTIVE]
    frozen.behaviour.frozen = False
    sent = len(frozen.bodies)
    advance_until(backend, lambda: len(frozen.bodies) > sent + 5)
    backend.run_to_completion()
    assert len(told) == 1
    assert (backend.results().outcome == FINISHED).all()
    said = [record.getMessage() for record in caplog.records]
    assert (
        sum(
            "is hung: it has not answered for 0.4 s; it gets nothing until it works again" in line
            for line in said
        )
        == 1
    )
    assert any("is back, and gets requests again" in line for line in said)


def test_an_engine_that_stands_still_behind_pages_that_answer_is_hung(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    stuck, other = make_server(stuck=True), make_server()
    backend = make_backend(stuck, other, **(SOON | {"hung_after_s": 0.2}))
    told = hung_servers(backend)
    backend.reset(stream_of(6))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()
    assert backend.results().engine.tolist() == [1] * 6
    assert [number for number, _ in told] == [0]
    assert "has sent no token and counted none for 0.6 s" in told[0][1]


def test_a_server_that_waits_for_work_is_not_hung(make_server: MakeServer, make_backend: MakeBackend) -> None:
    backend = make_backend(make_server(), **(SOON | {"hung_after_s": 0.1}))
    told = hung_servers(backend)
    backend.reset(stream_of(2, gap_s=1.0))
    backend.run_to_completion()
    assert told == []
    assert (backend.results().outcome == FINISHED).all()


@pytest.mark.parametrize("chatter", [": still here\n\n", 'data: {"choices": [{"text": ""}]}\n\n'])
@pytest.mark.parametrize("after", [0, 3])
def test_only_tokens_put_the_silence_limit_off(
    chatter: str, after: int, make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server(hang_after=after, chatter=chatter)
    backend = make_backend(server, silence_s=0.3)
    backend.reset(stream_of(1))
    begun_s = time.monotonic()
    backend.run_to_completion()
    assert time.monotonic() - begun_s < WAIT_S
    assert backend.results().outcome.tolist() == [FAILED]
    assert backend.details()["errors"] == ["no token came for 0.3 s"]
    assert len(server.bodies) == (1 if after else MOST_ATTEMPTS)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_what_a_server_fails_is_served_elsewhere_and_it_is_left_alone(
    status: int, make_server: MakeServer, make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = make_server(status=status), make_server()
    backend = make_backend(failing, other)
    backend.reset(stream_of(24, gap_s=0.02))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()
    assert backend.results().engine.tolist() == [1] * 24
    assert len(failing.bodies) == MOST_FAILURES
    (record,) = caplog.records
    assert f"has failed 3 requests in a row (HTTP {status}" in record.getMessage()
    assert backend.client_health().failed == {}


def test_a_server_that_has_recovered_is_tried_again(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    failing, other = make_server(status=500, failures_left=MOST_FAILURES), make_server()
    backend = make_backend(failing, other)
    backend.reset(stream_of(60, gap_s=0.04))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()
    assert len(failing.bodies) > MOST_FAILURES
    engine, arrival_s = backend.results().engine, backend.results().arrival_s
    assert arrival_s[engine == 0].min() > FIRST_EJECTION_S


@pytest.mark.parametrize(("status", "outcome"), [(500, FAILED), (503, REFUSED)])
def test_where_all_servers_fail_requests_do_after_some_attempts(
    status: int, outcome: int, make_server: MakeServer, make_backend: MakeBackend
) -> None:
    servers = make_server(status=status), make_server(status=status)
    backend = make_backend(*servers)
    backend.reset(stream_of(6))
    backend.run_to_completion()
    assert backend.results().outcome.tolist() == [outcome] * 6
    assert sum(len(server.bodies) for server in servers) == 6 * MOST_ATTEMPTS
    reason = f'HTTP {status}: {{"error": "the queue is full"}}'
    assert backend.results().to_frame()["reason"].tolist() == [reason] * 6
    assert backend.client_health().failed == {reason: 6}


def test_the_only_server_gets_a_pause_before_it_is_tried_again(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server(status=503, failures_left=2)
    backend = make_backend(server)
    backend.reset(stream_of(1))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()
    assert len(server.bodies) == 3
    assert backend.results().first_token_s[0] > 0.3


def test_a_request_that_is_wrong_is_not_tried_elsewhere(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    servers = make_server(status=400), make_server(status=400)
    backend = make_backend(*servers)
    backend.reset(stream_of(8))
    backend.run_to_completion()
    assert (backend.results().outcome == REFUSED).all()
    assert [len(server.bodies) for server in servers] == [4, 4]


def test_redirects_are_not_followed(make_server: MakeServer, make_backend: MakeBackend) -> None:
    elsewhere = make_server()
    headers = {"Location": elsewhere.url.replace("://", "://me:secret@") + "/v1/completions"}
    backend = make_backend(make_server(status=307, headers=headers))
    backend.reset(stream_of(2))
    backend.run_to_completion()
    assert backend.results().outcome.tolist() == [FAILED] * 2
    assert (
        backend.details()["errors"] == ["HTTP 307 points to http://127.0.0.1: redirects are not followed"] * 2
    )
    assert elsewhere.bodies == []


def test_an_error_page_that_is_no_text_is_quoted(make_server: MakeServer, make_backend: MakeBackend) -> None:
    backend = make_backend(make_server(status=502, error_body=b"Bad\xff\x00\nGateway" + b"\xfe" * (1 << 20)))
    backend.reset(stream_of(1))
    backend.run_to_completion()
    (reason,) = backend.results().to_frame()["reason"]
    assert reason.startswith("HTTP 502: Bad\ufffd Gateway\ufffd")
    assert len(reason) < 300


ERRORS = {
    "vllm": '{"error": {"message": "EngineCore is dead", "type": "InternalServerError", "code": 500}}',
    "sglang": '{"object": "error", "message": "scheduler died", "type": "InternalServerError", "code": 500}',
    "openai": '{"error": {"message": "overloaded", "type": "server_error", "param": null, "code": null}}',
    "text": '{"error": "out of memory"}',
}


@pytest.mark.parametrize("said", ERRORS.values(), ids=ERRORS)
def test_an_error_before_the_first_token_of_a_stream_sends_its_request_elsewhere(
    said: str, make_server: MakeServer, make_backend: MakeBackend
) -> None:
    failing, other = make_server(garbage=said), make_server()
    backend = make_backend(failing, other)
    backend.reset(stream_of(8))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()
    assert (backend.results().engine == 1).all()


def test_an_error_that_is_the_requests_own_fault_is_not_tried_elsewhere(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    said = json.dumps({"error": {"message": "bad prompt", "type": "BadRequestError", "code": 400}})
    failing, other = make_server(garbage=said), make_server()
    backend = make_backend(failing, other)
    backend.reset(stream_of(2))
    backend.run_to_completion()
    assert backend.results().outcome.tolist() == [REFUSED, FINISHED]
    assert "bad prompt" in backend.details()["errors"][0]


def test_a_server_that_says_it_is_not_well_gets_nothing(
    make_server: MakeServer, make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    ill, other = make_server(health_status=503), make_server()
    backend = make_backend(ill, other, **SOON)
    told = hung_servers(backend)
    backend.reset(stream_of(30, gap_s=0.05))
    backend.advance(0.5)
    sent = len(ill.bodies)
    backend.run_to_completion()
    assert len(ill.bodies) == sent
    assert told == [(0, "/health answers HTTP 503 for 0.4 s")]
    assert (backend.results().outcome == FINISHED).all()
    assert (
        sum("/health answers HTTP 503; until it is well" in record.getMessage() for record in caplog.records)
        == 1
    )


def test_a_server_without_a_page_for_its_health_is_well(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server(health_status=404), **SOON)
    backend.reset(stream_of(20, gap_s=0.05))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()


def test_tokens_are_counted_by_chunks_where_a_server_does_not_count_them(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server(counts_tokens=False))
    backend.reset(stream_of(3))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()
    assert (backend.results().generated_tokens == 6).all()
    assert [len(gaps) for gaps in backend.details()["itls"]] == [5] * 3


MOVING = Gauges(1, 0, 0.5, 0, 10, 10)


def test_no_server_is_blamed_for_the_time_that_the_client_has_stood_still() -> None:
    health = Health(["a"], 1.0, 0.0)
    health.pass_over(30.0)
    assert health.judge(0, True, 3, "", 30.5) == ""
    assert health.judge(0, True, 3, "", 31.5) == "it has not answered for 1 s"
    assert health.judge(0, True, 3, "", 32.0) == ""
    assert health.hung(0)


def test_a_hung_server_is_back_after_two_readings_in_a_row() -> None:
    health = Health(["a"], 1.0, 0.0)
    health.judge(0, True, 0, "", 2.0)
    health.note_answer(0, MOVING, 2.1)
    health.note_answer(0, None, 2.2)
    health.note_answer(0, MOVING, 2.3)
    assert health.hung(0)
    health.note_answer(0, MOVING, 2.4)
    assert not health.hung(0)


def test_an_engine_that_stood_still_is_back_when_its_metrics_change() -> None:
    health = Health(["a"], 1.0, 0.0)
    for tenth in range(40):
        health.note_answer(0, MOVING, tenth / 10)
        health.judge(0, True, 1, "", tenth / 10)
    assert health.hung(0)
    health.note_answer(0, Gauges(1, 0, 0.6, 0, 10, 11), 4.1)
    assert not health.hung(0)


def test_ejections_double_until_a_request_is_served() -> None:
    health, now_s, lengths_s = Health(["a"], 1.0, 0.0), 0.0, []
    for _ in range(9):
        while not health.ejected(0, now_s):
            health.note_failure(0, "HTTP 500", now_s)
        begun_s = now_s
        while health.ejected(0, now_s):
            now_s += 0.5
        lengths_s.append(now_s - begun_s)
    assert lengths_s == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    health.note_success(0)
    health.note_failure(0, "HTTP 500", now_s)
    assert not health.ejected(0, now_s)


def test_the_table_of_faults_is_printed() -> None:
    lines: list[str] = []
    fault_table.main(lines.append, tuple(fault for fault in fault_table.FAULTS if fault.name == "HTTP 500"))
    assert lines[0].startswith("| fault | lost of 300 | noticed after, s | why |")
    name, lost, noticed_s, why = (cell.strip() for cell in lines[1].strip("|").split("|"))
    assert (name, lost, why) == ("HTTP 500", "0", "")
    assert float(noticed_s) < WAIT_S
