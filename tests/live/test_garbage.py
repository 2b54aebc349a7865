"""Nothing that a server may answer raises anything but what is foreseen, or is taken for an answer."""

import contextlib
import gzip
import json
import math
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving_gym.envs.live.events import EventStream
from serving_gym.envs.live.gauges import MetricNames, UnreadablePageError, find_names, read_cache_config
from serving_gym.envs.live.http import MOST_TEXT, AnswerError, HttpClient
from serving_gym.envs.live.metric_names import FAMILIES, VLLM, usual_names
from serving_gym.envs.live.scraper import Scraper
from serving_gym.envs.live.servers import Server, probe
from serving_gym.envs.live.stream import StreamEnd, _read, completion_request, stream_completion
from tests.live.raw_server import RawServer, http

NAMES = MetricNames(VLLM, usual_names(VLLM))
PAGE = "".join(f'{name}{{engine="0"}} 1.0\n' for name in usual_names(VLLM).values())
STREAM = b"".join(
    b"data: %s\n\n" % json.dumps({"choices": [{"text": "a"}], "usage": {"completion_tokens": n}}).encode()
    for n in (1, 2)
)
MODELS = json.dumps({"data": [{"id": "tiny", "max_model_len": 512}]}).encode()
WITHIN_S = 5.0
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([10**40, -1, 1e300, math.inf, math.nan]))
WORDS = [
    "choices",
    "usage",
    "completion_tokens",
    "error",
    "code",
    "object",
    "token_ids",
    "text",
    "metrics",
    "time_to_first_token_ms",
    "finish_reason",
    "data",
    "id",
    "max_model_len",
    "root",
]
HEADERS = (
    b"",
    b"Content-Encoding: gzip\r\n",
    b"Content-Type: text/plain; charset=nonsense\r\n",
    b"Location: http://[\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Set-Cookie: \xff=\xfe\r\n",
    b"X: " + b"a" * 9000 + b"\r\n",
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(WORDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def spoilt(whole: bytes) -> st.SearchStrategy[bytes]:
    """A part of something is left out, doubled, or other bytes stand in its place."""
    cuts = st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)), st.binary(max_size=12))
    return cuts.map(lambda cut: whole[: cut[0]] + cut[2] + whole[cut[1] :])


def answers(whole: bytes) -> st.SearchStrategy[bytes]:
    """Answers of every degree of ruin."""
    bodies = st.one_of(
        st.binary(max_size=200), spoilt(whole), JSON.map(lambda value: json.dumps(value).encode())
    )
    statuses = st.sampled_from([100, 200, 200, 200, 204, 206, 307, 400, 429, 500, 502, 999])
    headers = st.sampled_from(HEADERS)
    lengths = st.none() | st.integers(0, 400)
    return st.one_of(st.binary(max_size=200), st.builds(http, bodies, statuses, headers, lengths))


@pytest.fixture(scope="module")
def server() -> Iterator[RawServer]:
    with RawServer(lambda path: b"") as raw:
        yield raw


def ask(server: RawServer, raw: bytes) -> tuple[StreamEnd, list[tuple[int, float]]]:
    async def send() -> StreamEnd:
        async with HttpClient() as client:
            body = completion_request("m", [1], 2)
            return await stream_completion(
                client, server.url, body, lambda n, s: told.append((n, s)), WITHIN_S
            )

    told: list[tuple[int, float]] = []
    server.answer = lambda path: raw
    return server.loop.run(send()), told


@given(raw=answers(STREAM))
@few
def test_any_answer_to_a_request_is_an_end_with_a_reason_or_a_whole_answer(
    server: RawServer, raw: bytes
) -> None:
    end, told = ask(server, raw)
    assert len(end.reason) < 3 * MOST_TEXT
    assert end.reason == "" or end.reason.isprintable()
    assert all(0 < tokens <= 2 for tokens, _ in told)
    assert end.reason or told[-1][0] == 2 or b"length" in raw


@given(raw=answers(PAGE.encode()))
@few
def test_any_page_of_metrics_is_a_reading_or_a_problem(server: RawServer, raw: bytes) -> None:
    async def read() -> Scraper:
        scraper = Scraper((server.url,), 0.1, 1.0)
        async with HttpClient() as client:
            await scraper.read_all(client, WITHIN_S)
            await scraper._ask_health(client, 0, WITHIN_S)
        return scraper

    server.answer = lambda path: raw
    scraper = server.loop.run(read())
    assert (scraper.readings[0] is None) == bool(scraper.problems[0])
    assert scraper.stale(0.0) == ((0,) if scraper.problems[0] else ())


@given(raw=answers(MODELS), page=answers(PAGE.encode()))
@few
def test_any_server_is_attached_to_or_refused_in_a_sentence(
    server: RawServer, raw: bytes, page: bytes
) -> None:
    async def attach() -> Server | str:
        async with HttpClient() as client:
            try:
                return await probe(client, server.url, None)
            except ValueError as error:
                return str(error)

    server.answer = lambda path: page if path.endswith("/metrics") else raw
    found = server.loop.run(attach())
    if isinstance(found, Server):
        assert 0 < found.most_tokens < 2**31
    else:
        assert found
        assert "\n" not in found


@given(JSON.map(json.dumps), st.integers(0, 5), st.integers(1, 5))
def test_any_json_of_a_stream_is_read(text: str, counted: int, wanted: int) -> None:
    chunk = _read(text.encode(), counted, wanted)
    assert chunk.error or (0 <= chunk.tokens <= wanted and len(chunk.finish_reason) <= MOST_TEXT)


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=10))
def test_events_are_the_same_wherever_a_stream_is_split(stream: bytes, sizes: list[int]) -> None:
    whole, split, at = EventStream(), EventStream(), 0
    expected = whole.feed(stream) + whole.finish()
    found = []
    for size in sizes:
        found += split.feed(stream[at : at + size])
        at += size
    assert found + split.feed(stream[at:]) + split.finish() == expected


@given(st.one_of(spoilt(PAGE.encode()), st.binary(max_size=200)), st.sampled_from(FAMILIES))
def test_any_page_is_understood_or_unreadable(page: bytes, family: object) -> None:
    text = page.decode(errors="replace")
    for read in (
        lambda: NAMES.read(text, "http://x"),
        lambda: find_names(text, "http://x").read(text, "http://x"),
        lambda: read_cache_config(text, "http://x", family),  # type: ignore[arg-type]
    ):
        with contextlib.suppress(UnreadablePageError):
            read()


def test_an_event_without_an_end_is_not_kept(server: RawServer) -> None:
    end, _ = ask(server, http(b"data: " + b"x" * (3 << 20)))
    assert end.lost
    assert "an event has more than 1,048,576 bytes" in end.reason
    events = EventStream()
    assert events.feed((b"data: " + b"y" * 1000 + b"\n") * 1000) == []
    with pytest.raises(AnswerError):
        events.feed((b"data: " + b"y" * 1000 + b"\n") * 100)


def test_a_gzip_bomb_is_not_unpacked(server: RawServer) -> None:
    bomb = http(gzip.compress(b"0" * (50 << 20)), headers=b"Content-Encoding: gzip\r\n")
    end, _ = ask(server, bomb)
    assert end.lost
    assert "Content-Encoding 'gzip', which was not asked for" in end.reason

    async def read() -> str:
        scraper = Scraper((server.url,), 0.1, 1.0)
        async with HttpClient() as client:
            await scraper.read_all(client, WITHIN_S)
        return scraper.problems[0]

    assert "Content-Encoding 'gzip'" in server.loop.run(read())


def test_a_page_without_an_end_is_not_kept(server: RawServer) -> None:
    async def read() -> str:
        scraper = Scraper((server.url,), 0.1, 1.0)
        async with HttpClient() as client:
            await scraper.read_all(client, WITHIN_S)
        return scraper.problems[0]

    server.answer = lambda path: http(b"# comment\n" * (1 << 20))
    assert "longer than 8,388,608 bytes" in server.loop.run(read())


def test_a_server_that_never_ends_its_headers_is_given_up(server: RawServer) -> None:
    async def read() -> StreamEnd:
        async with HttpClient() as client:
            body = completion_request("m", [1], 2)
            return await stream_completion(client, silent, body, lambda n, s: None, 0.2)

    listening = socket.create_server(("127.0.0.1", 0))
    silent = f"http://127.0.0.1:{listening.getsockname()[1]}"
    end = server.loop.run(read())
    listening.close()
    assert (end.lost, end.reached, end.reason) == (True, False, "no token came for 0.2 s")
