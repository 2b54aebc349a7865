"""What the client itself adds to a result is on record, and so is what others do on its servers."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.client_health import ClientHealth, LagMeter
from serving_gym.envs.live.gauges import Gauges
from serving_gym.envs.live.neighbours import Neighbours, one_server_twice
from serving_gym.envs.live.scraper import Reading
from serving_gym.envs.live.settings import LiveSettings
from tests.live.conftest import SLOS, MakeBackend, MakeServer, stream_of
from tests.live.fake_server import RUNNING


def test_a_client_that_is_in_time_has_nothing_to_warn_of(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    server = make_server(first_token_s=0.3)
    backend = make_backend(server)
    backend.reset(stream_of(10))
    backend.run_to_completion()
    health = backend.client_health()
    assert 0 <= health.send_lag_p50_s <= health.send_lag_p99_s <= health.send_lag_max_s < 1.0
    assert 0 <= health.loop_lag_p99_s <= health.loop_lag_max_s
    assert 0 <= health.send_lag_share < 0.5
    assert health.cores >= 1
    assert (health.overrides, health.overrides_share) == (0, None)
    assert health.servers == {server.url: "vLLM 0.32.0"}
    assert (health.failed, health.foreign_requests, health.remarks) == ({}, {}, ())
    frame = backend.results().to_frame()
    assert frame["send_lag_s"].max() == health.send_lag_max_s


def test_a_client_that_stands_still_is_late_and_says_so(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server())
    backend.reset(stream_of(20, gap_s=0.02))
    backend.advance(0.1)
    backend._loop.call(lambda: time.sleep(0.5))
    backend.run_to_completion()
    health = backend.client_health()
    assert health.send_lag_max_s > 0.3
    assert health.loop_lag_max_s > 0.4
    assert health.send_lag_share > 0.05
    assert any("the client was late with requests" in warning for warning in health.warnings())


def test_lags_have_their_percentiles() -> None:
    meter = LagMeter()

    async def measure() -> None:
        task = asyncio.create_task(meter.run())
        for _ in range(5):
            await asyncio.sleep(0.02)
            time.sleep(0.1)
        task.cancel()

    asyncio.run(measure())
    assert 0.05 < meter.p99_s <= meter.max_s
    assert LagMeter().p99_s == 0.0


def test_every_warning_has_its_figure() -> None:
    health = ClientHealth(
        send_lag_p99_s=0.2,
        send_lag_share=0.3,
        loop_lag_p99_s=0.1,
        load=5.0,
        cores=2,
        overrides_share=0.4,
        remarks=("r",),
    )
    assert health.warnings() == [
        "r",
        "40 % of the decisions were not the policy's (overrides)",
        "the client was late with requests: 30 % of TTFT is its own lag (p99 200 ms)",
        "tokens were timed up to 100 ms late (p99 of the client's loop)",
        "the machine was overloaded: load 5.0 on 2 cores",
    ]


def test_requests_of_others_are_noticed(
    make_server: MakeServer, make_backend: MakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    backend = make_backend(server)
    backend.reset(stream_of(20, gap_s=0.05))
    others = f'{RUNNING}{{engine="0"}} '
    server.behaviour.rewrite_page = lambda page: page.replace(others, f"{others}7").replace("70.0", "7.0")
    backend.run_to_completion()
    health = backend.client_health()
    assert health.foreign_requests[server.url] > 0
    assert any("another client is using it" in warning for warning in health.warnings())
    assert sum("another client is using it" in record.getMessage() for record in caplog.records) == 1


def reading(requests: int, own: int) -> Reading:
    return Reading(Gauges(requests, 0, 0.0, 0, 0, 0), 0.0, own)


def test_gauges_that_lag_behind_are_no_others() -> None:
    neighbours = Neighbours(["a"])
    for requests, own in ((5, 5), (5, 0), (4, 0), (0, 0), (3, 3), (3, 0), (0, 0), (2, 2), (2, 0), (0, 0)):
        neighbours.note(0, reading(requests, own), own)
    assert neighbours.most == [0]
    for _ in range(8):
        neighbours.note(0, reading(5, 3), 3)
    assert neighbours.most == [2]
    neighbours.note(0, Reading(Gauges(None, None, None, None, None, None), 0.0, 0), 0)
    assert neighbours.most == [2]


def test_two_names_of_one_server(make_server: MakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    other = server.url.replace("127.0.0.1", "localhost")
    spec = ClusterSpec(num_gpus=2, router="round_robin")
    with LiveBackend(spec, SLOS, LiveSettings((server.url, other), scrape_interval_s=0.02)) as backend:
        backend.reset(stream_of(2))
        (remark,) = backend.client_health().remarks
    said = f"{server.url} and {other} are one server under two names: its requests and its load count twice"
    assert remark == said
    assert [record.getMessage() for record in caplog.records] == [said]


def test_servers_that_are_two() -> None:
    urls = [
        "http://127.0.0.1:1",
        "http://127.0.0.1:2",
        "http://127.0.0.1:1/base",
        "http://no-such-host.invalid:1",
    ]
    assert asyncio.run(one_server_twice(urls)) == []
    assert len(asyncio.run(one_server_twice(["https://[::1]", "https://localhost:443/"]))) == 1


def test_lag_is_known_for_every_request_that_has_come(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    backend = make_backend(make_server(token_s=5.0))
    backend.reset(stream_of(3, gap_s=0.0))
    backend.advance(0.2)
    lag_s = backend.results().send_lag_s
    assert lag_s is not None
    assert np.isfinite(lag_s).all()
