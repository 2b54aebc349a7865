"""Sessions on live servers: turns wait for real answers and go on from them; clients lose patience and hang up."""

from __future__ import annotations

import time

import numpy as np
import pytest

from serving_gym.envs.interface.metrics import FAILED, FINISHED, REASON_NAMES, RequestRecords
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.turns import Turns
from serving_gym.envs.workload.schema import Workload
from tests.live.conftest import MakeBackend, MakeServer, stream_of
from tests.live.fake_server import answer_of


def three_turns(**columns: object) -> Workload:
    """One session: the second turn 0.5 s after the first answer, the third 0.25 s after the second."""
    return Workload(
        arrival_s=[0.0, 0.5, 0.75], input_tokens=[64, 96, 128], output_tokens=[8, 8, 8], session_id=[0, 0, 0],
        delay_s=[0.0, 0.5, 0.25], after_offsets=[0, 0, 1, 2], after=[0, 1], **columns,  # type: ignore[arg-type]
    ).validate()  # fmt: skip


def played(backend: LiveBackend, workload: Workload) -> RequestRecords:
    backend.reset(workload)
    backend.run_to_completion()
    return backend.results()


def test_a_turn_arrives_its_delay_after_the_answer_before_has_ended(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server(token_s=0.03)
    backend = make_backend(server)
    records = played(backend, three_turns())
    assert (records.outcome == FINISHED).all()
    expected = [0.0, records.finish_s[0] + 0.5, records.finish_s[1] + 0.25]
    np.testing.assert_allclose(records.arrival_s, expected, rtol=0, atol=1e-12)
    assert (records.e2e_s >= 7 * 0.03).all()
    assert (records.ttft_s < 0.2).all()
    assert (backend.send_lag_s() >= 0).all()
    assert [len(body["prompt"]) for body in server.bodies] == [64, 96, 128]
    assert all("return_token_ids" not in body for body in server.bodies)  # nothing is shared by name


def test_later_turns_hold_the_real_answers(make_server: MakeServer, make_backend: MakeBackend) -> None:
    """Blocks of 16 tokens: an answer begins in the middle of one, which the next turn's own text fills."""
    workload = three_turns(
        hash_offsets=[0, 4, 10, 18],
        hash_ids=[*range(4), *range(6), *range(6), 6, 7],
        hash_block_tokens=16,
    )
    server = make_server()
    played(make_backend(server), workload)
    prompts = [body["prompt"] for body in server.bodies]
    answers = [answer_of(body) for body in server.bodies]
    for turn in (0, 1):
        history = prompts[turn] + answers[turn]
        assert prompts[turn + 1][: len(history)] == history
        assert len(set(prompts[turn + 1][len(history) :])) > 1
    assert [body.get("return_token_ids") for body in server.bodies] == [True, True, None]


def test_a_fork_of_a_session_holds_its_history_and_others_do_not(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    """Rows 1 and 2 wait for row 0: one goes on from it, one begins anew. Row 3 waits for both and goes on from 0."""
    ids = [[0, 1], [0, 1, 2, 3], [9, 10], [0, 1, 2, 4, 5]]
    workload = Workload(
        arrival_s=np.zeros(4),
        input_tokens=[32, 64, 32, 80],
        output_tokens=[24, 4, 6, 2],
        session_id=np.zeros(4),
        delay_s=[0.0, 0.01, 0.02, 0.05],
        after_offsets=[0, 0, 1, 2, 4],
        after=[0, 0, 1, 2],
        hash_offsets=np.concatenate([[0], np.cumsum([len(row) for row in ids])]),
        hash_ids=[block for row in ids for block in row],
        hash_block_tokens=16,
    ).validate()
    server = make_server()
    records = played(make_backend(server), workload)
    assert records.index.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(records.arrival_s[3], max(records.finish_s[1:3]) + 0.05, rtol=0, atol=1e-12)
    first, goes_on, anew, joins = (body["prompt"] for body in server.bodies)
    history = first + answer_of(server.bodies[0])
    assert goes_on[:56] == history == joins[:56]
    assert goes_on[56:] != joins[56:64]
    assert anew[:16] != first[:16]


def test_servers_that_do_not_tell_tokens_are_named_once(
    make_server: MakeServer, make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    workload = three_turns(
        hash_offsets=[0, 4, 10, 18], hash_ids=[*range(4), *range(6), *range(8)], hash_block_tokens=16
    )
    server = make_server(tells_tokens=False)
    assert (played(make_backend(server), workload).outcome == FINISHED).all()
    (record,) = caplog.records
    assert f"{server.url} does not tell the tokens of its answers" in record.getMessage()
    assert server.bodies[1]["prompt"][:64] == server.bodies[0]["prompt"]


def test_what_comes_after_a_lost_answer_never_arrives(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server(break_after=3))
    records = played(backend, three_turns())
    assert backend.idle
    assert records.index.tolist() == [0]
    assert backend.observe().totals[0, 0] == 1


def test_sessions_interleave_and_records_are_in_order_of_arrival(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    """The first answer of one session takes long, so that its second turn comes after the other session's."""
    workload = Workload(
        arrival_s=[0.0, 0.01, 0.02, 0.03],
        input_tokens=[20] * 4,
        output_tokens=[60, 2, 2, 2],
        session_id=[0, 1, 0, 1],
        delay_s=[0.0, 0.0, 0.02, 0.02],
        after_offsets=[0, 0, 0, 1, 2],
        after=[0, 1],
    ).validate()
    records = played(make_backend(make_server(token_s=0.01)), workload)
    assert records.index.tolist() == [0, 1, 3, 2]
    assert (np.diff(records.arrival_s) >= 0).all()
    assert (records.outcome == FINISHED).all()


def impatient(count: int, patience_s: float) -> Workload:
    return stream_of(count, gap_s=0.0, patience_s=np.full(count, patience_s))


def test_a_client_without_a_token_hangs_up_when_its_patience_is_over(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    """Two are served at once, and take longer than the others wait."""
    server = make_server(max_num_seqs=2, token_s=0.1)
    backend = make_backend(server)
    records = played(backend, impatient(4, 0.3))
    assert (records.outcome == FINISHED).sum() == 2
    lost = records.outcome != FINISHED
    assert [REASON_NAMES[code] for code in records.reason[lost]] == ["patience"] * 2
    assert (records.generated_tokens[lost] == 0).all()
    assert server.aborted == 2
    assert backend.details()["errors"].count("patience") == 2
    ends_s = backend._session.ledger.end_s[lost]
    assert (np.abs(ends_s - 0.3) < 0.1).all()


def test_patience_ends_at_the_first_token(make_server: MakeServer, make_backend: MakeBackend) -> None:
    records = played(make_backend(make_server(token_s=0.1)), impatient(3, 0.2))
    assert (records.outcome == FINISHED).all()


def test_a_client_hangs_up_while_no_server_takes_its_request(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server()
    backend = make_backend(server)
    backend.reset(impatient(3, 0.3).shifted(0.3))
    server.behaviour.metrics_status = 500
    backend.run_to_completion()
    records = backend.results()
    assert server.bodies == []
    assert [REASON_NAMES[code] for code in records.reason] == ["patience"] * 3
    assert (records.engine == -1).all()


def test_turns_after_a_client_hung_up_never_arrive(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server(first_token_s=1.0))
    records = played(backend, three_turns(patience_s=[0.1, np.inf, np.inf]))
    assert records.index.tolist() == [0]
    assert backend.idle


def test_turns_count_what_may_still_come() -> None:
    """Row 3 waits for 1 and 2, row 4 for 3; row 2 is lost, and with it 3 and 4."""
    workload = Workload(
        arrival_s=np.zeros(5), input_tokens=np.ones(5), output_tokens=np.ones(5), session_id=np.zeros(5),
        delay_s=[0, 0.5, 0.25, 1.0, 1.0], after_offsets=[0, 0, 1, 2, 4, 5], after=[0, 0, 1, 2, 3],
    ).validate()  # fmt: skip
    turns = Turns(workload)
    assert turns.first.tolist() == [0]
    assert sorted(turns.descendants(0)) == [1, 2, 3, 4]
    turns.arrive(0)
    assert turns.answered(0, 2.0) == [(1, 2.5), (2, 2.25)]
    turns.arrive(1)
    turns.arrive(2)
    assert turns.answered(1, 4.0) == []
    assert turns.left == 2
    turns.unanswered(2)
    assert turns.left == 0


def test_a_request_is_ended_after_the_cluster_s_timeout_whatever_it_has(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server(token_s=0.08, max_num_seqs=1)
    backend = make_backend(server, spec={"request_timeout_s": 0.3})
    records = played(backend, stream_of(3, gap_s=0.0, output=20))
    assert records.outcome.tolist() == [FAILED] * 3
    assert [REASON_NAMES[code] for code in records.reason] == ["request_timeout_s"] * 3
    assert 0 < records.generated_tokens[0] < 20
    deadline_s = time.monotonic() + 5
    while server.aborted < 3 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert server.aborted == 3
    assert backend.observe().engines[0]["context_tokens"] == 0


def test_a_request_that_no_server_has_is_ended_too(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server()
    backend = make_backend(server, spec={"request_timeout_s": 0.2}, silence_s=20.0)
    backend.reset(stream_of(1, gap_s=0.0))
    server.behaviour.metrics_status = 500
    time.sleep(0.2)
    backend.run_to_completion()
    assert [REASON_NAMES[code] for code in backend.results().reason] == ["request_timeout_s"]
    assert server.bodies == []
