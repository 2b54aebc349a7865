import numpy as np
import pytest

from serving_gym.envs.interface.slo import SLO, LengthSLO
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.live.endpoints import check_endpoints
from serving_gym.envs.live.events import EventStream
from serving_gym.envs.live.gauges import (
    CacheConfig,
    Gauges,
    MetricNames,
    MissingMetricError,
    UnreadablePageError,
    find_names,
    read_cache_config,
)
from serving_gym.envs.live.ledger import EngineLoad, Ledger
from serving_gym.envs.live.metric_names import VLLM, usual_names
from serving_gym.envs.live.observation import Snapshot, split_requests
from serving_gym.envs.live.prompts import FIRST_TOKEN_ID, Prompts
from serving_gym.envs.live.routers import Candidate, Router, WeightedRouter
from tests.live.conftest import stream_of
from tests.live.fake_server import CACHE_CONFIG, NEEDED

USUAL = MetricNames(VLLM, usual_names(VLLM))
LONG = LengthSLO(0.5, 1.0, 0.01)


def page(*left_out: str, engines: int = 2) -> str:
    told = [name for name in NEEDED if name not in left_out]
    lines = [f'{name}{{engine="{e}"}} {e + 1}.0' for name in told for e in range(engines)]
    return "# HELP vllm:num_requests_running x\n" + "\n".join(lines) + "\nother_metric 3.0\n"


def test_engines_of_one_server_are_added_up() -> None:
    assert USUAL.read(page(), "http://x") == Gauges(3, 3, 1.0, 3, 3, 3)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
def test_a_value_that_is_no_amount_is_named(value: str) -> None:
    text = page().replace(
        'vllm:num_requests_running{engine="1"} 2.0', f'vllm:num_requests_running{{engine="1"}} {value}'
    )
    with pytest.raises(UnreadablePageError, match="http://x/metrics has vllm:num_requests_running"):
        USUAL.read(text, "http://x")


def test_every_part_of_a_page_is_told_from_the_whole() -> None:
    whole = page(engines=1)
    for length in range(len(whole) - len("\nother_metric 3.0\n")):
        with pytest.raises(UnreadablePageError, match="http://x/metrics"):
            USUAL.read(whole[:length], "http://x")


EVENTS = [b'{"n": 1}', b'{"n":\n2}', b"[DONE]"]
STREAM = (
    '\ufeff: a comment\n\nevent: token\ndata: {"n": 1}\nid: 7\n\n\n'
    'data: {"n":\ndata:2}\n\nretry: 10\n\ndata:[DONE]\n\ndata: never ended\n'
)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_events_come_out_whole_wherever_their_stream_is_split(end: str) -> None:
    stream = STREAM.replace("\n", end).encode()
    for size in range(1, len(stream) + 1):
        events = EventStream()
        pieces = [stream[first : first + size] for first in range(0, len(stream), size)]
        assert [event for piece in pieces for event in events.feed(piece)] == EVENTS


def test_events_end_as_early_as_they_can() -> None:
    events = EventStream()
    assert events.feed(b"data: 1\r") == []
    assert events.feed(b"\r") == [b"1"]
    assert events.feed(b"\ndata:  2\n\r") == [b" 2"]
    assert events.feed(b"\ndata\n\n") == [b""]


@pytest.mark.parametrize("name", NEEDED)
def test_every_missing_metric_is_named(name: str) -> None:
    with pytest.raises(MissingMetricError, match=f"http://x/metrics has no {name}"):
        USUAL.read(page(name), "http://x")


def test_a_renamed_metric_is_pointed_at() -> None:
    renamed = page().replace("vllm:kv_cache_usage_perc", "vllm:kv_caches_usage_perc")
    names = find_names(renamed, "http://x")
    assert names.missing == ("KV usage",)
    assert names.describe(renamed).endswith("KV usage (nearest: vllm:kv_caches_usage_perc)")
    assert names.read(renamed, "http://x").kv_usage_ratio is None


def test_the_size_of_the_kv_cache() -> None:
    text = f'{CACHE_CONFIG}{{block_size="32",num_gpu_blocks="512",kv="a,b"}} 1.0\n'
    assert read_cache_config(text, "http://x", VLLM) == CacheConfig(num_blocks=511, block_size=32)
    assert read_cache_config(text.replace("512", "None"), "http://x", VLLM) is None
    assert read_cache_config("", "http://x", VLLM) is None


def test_prompts_have_their_lengths_and_share_their_prefixes() -> None:
    workload = stream_of(
        3,
        prompt=20,
        hash_offsets=np.array([0, 2, 4, 4]),
        hash_ids=np.array([7, 8, 7, 9]),
        hash_block_tokens=8,
    )
    prompts = Prompts(workload, vocab_size=64)
    first, second, third = (prompts.token_ids(row) for row in range(3))
    assert [len(first), len(second), len(third)] == [20, 20, 20]
    assert first[:8] == second[:8]
    assert first[8:16] != second[8:16]
    assert first[16:] != second[16:]
    assert min(first + second + third) >= FIRST_TOKEN_ID
    assert max(first + second + third) < 64
    assert prompts.token_ids(1) == second
    assert Prompts(workload, vocab_size=64, salt=1).token_ids(1) != second


def test_a_prompt_ends_inside_its_last_block() -> None:
    workload = stream_of(
        1, prompt=10, hash_offsets=np.array([0, 2]), hash_ids=np.array([1, 2]), hash_block_tokens=8
    )
    assert len(Prompts(workload, vocab_size=64).token_ids(0)) == 10


def engines(*of: tuple[bool, int, int, int]) -> list[Candidate]:
    return [Candidate(*values) for values in of]


@pytest.mark.parametrize(
    ("router", "expected"), [("round_robin", [0, 1, 2]), ("least_requests", [1, 1, 1]), ("jsq", [2, 2, 2])]
)
def test_routers_choose_as_in_simulation(router: str, expected: list[int]) -> None:
    chooser = Router(router)
    cluster = engines((True, 100, 5, 50), (True, 100, 3, 60), (True, 100, 4, 40))
    assert [chooser.choose(cluster, 80) for _ in range(3)] == expected


def test_routers_pass_over_what_cannot_take_a_request() -> None:
    cluster = engines((False, 100, 0, 0), (True, 50, 0, 0), (True, 100, 9, 90))
    assert Router("jsq").choose(cluster, 80) == 2
    assert Router("round_robin").choose(cluster, 80) == 2
    assert Router("jsq").choose(cluster, 200) == -1


def test_shares_are_kept_in_turn() -> None:
    """Two to one: owed 2/3, 1/3; then -1/3 + 2/3 and 2/3; then 1 and 0; and as at first. The other type has its own."""
    router, cluster = WeightedRouter(), engines((True, 100, 5, 50), (True, 100, 3, 60), (True, 100, 0, 0))
    router.types = np.array([0, 0, 0, 1, 0, 0, 0])
    router.share_out(np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 0.0]]))
    assert [router.choose(cluster, 80, row) for row in range(7)] == [0, 1, 0, 1, 0, 1, 0]


def test_without_a_share_that_can_take_it_the_least_loaded_has_it() -> None:
    router, cluster = WeightedRouter(), engines((False, 100, 0, 0), (True, 100, 3, 60), (True, 100, 0, 9))
    router.types = np.zeros(2, np.int64)
    router.share_out(np.array([[1.0], [0.0], [0.0]]))
    assert router.choose(cluster, 80, 0) == 2
    assert router.choose(cluster, 200, 1) == -1


def test_a_promise_may_grow_with_the_prompt() -> None:
    """0.8 s to the first token: late by 0.5 s, and in time where 0.01 s a token of 100 are promised."""
    ledger = Ledger(stream_of(2, prompt=100, class_id=np.array([0, 1])), (SLO(0.5, 1.0), LONG), 1)
    for row in range(2):
        ledger.book_arrival(row)
        ledger.book_sent(row, 0, 0.0)
        ledger.book_tokens(row, 1, 0.8)
    met = TOTALS.index("ttft_met")
    assert ledger.totals[:, met].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("gauges", "own", "decoding", "fresh", "expected"),
    [
        ((2, 0), 3, 1, True, (3, 0)),  # what came since the reading finds room
        ((4, 2), 6, 4, True, (4, 2)),
        ((4, 2), 3, 1, True, (3, 0)),  # some left since the reading
        ((4, 4), 6, 4, True, (4, 4)),  # two of another client's
        ((0, 0), 6, 4, False, (4, 2)),  # stale: own counts and the batch limit
    ],
)
def test_running_and_waiting(
    gauges: tuple[int, int], own: int, decoding: int, fresh: bool, expected: tuple[int, int]
) -> None:
    reading = Gauges(*gauges, 0.0, 0, 0, 0)
    snapshot = Snapshot(reading, reading, in_flight_then=6, fresh=fresh, answering=True)
    load = EngineLoad(in_flight=set(range(own)), decoding=decoding)
    assert split_requests(snapshot, load, max_num_seqs=4) == expected


def test_addresses_are_tidied() -> None:
    assert check_endpoints(["http://localhost:8000/v1", "http://[::1]:80/"]) == (
        "http://localhost:8000",
        "http://[::1]:80",
    )
    assert check_endpoints(["http://192.0.2.1:8000"], allow_remote=True) == ("http://192.0.2.1:8000",)
