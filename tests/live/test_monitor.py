"""The monitor: what it shows of engines and of serving processes, and what an unreadable page does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from rich.console import Console

from serving_gym.envs.live.gauges import Gauges
from serving_gym.envs.live.http import HttpClient
from serving_gym.envs.live.loop import LoopThread
from serving_gym.runners import monitor
from serving_gym.runners.command_line.cli import USER_ERROR
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.monitoring.frame import disagreement, frame, sparkline
from serving_gym.runners.monitoring.pages import POLICY, Watched, number_in, read_all
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.server import HttpListener
from serving_gym.runners.serving.service import PolicyService
from tests.live.conftest import MakeServer

STATUS = {
    "policy": "jsq",
    "mode": "canary",
    "share": 0.25,
    "decisions": 200,
    "ready": False,
    "errors": 1,
    "applied": 50,
    "fallback_compared": 80,
    "fallback_disagreed": 8,
    "compared": 160,
    "agreed": 120,
    "us_p50": 90.0,
    "us_p99": 1500.0,
}


@contextmanager
def serving(status: Any, path: str = "/v1/status") -> Iterator[str]:
    """A process that answers with a status as `runners.serve` does."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=status if isinstance(status, str) else json.dumps(status))

    async def start() -> tuple[web.AppRunner, str]:
        app = web.Application()
        app.router.add_get(path, answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop = LoopThread()
    runner, url = loop.run(start())
    try:
        yield url
    finally:
        loop.run(runner.cleanup())
        loop.close()


def read(*watched: Watched, within_s: float = 5.0) -> None:
    async def once() -> None:
        async with HttpClient() as client:
            await read_all(client, watched, within_s)

    asyncio.run(once())


def shown(watched: list[Watched], now_s: float) -> str:
    console = Console(width=200, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(frame(watched, now_s, 5.0, "title"))
    return console.export_text()


def test_one_frame_of_engines_and_a_policy(
    make_server: MakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(STATUS) as policy:
        words = [make_server().url, make_server().url, policy, "once=true", "interval_s=0.05"]
        assert monitor.main([*words, f"out={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert said.count("s ago") == 3
    assert "together" in said
    assert "canary 25%, not" in said
    assert "10.0%" in said  # 8 of 80 decisions differ from the fallback's
    assert "25.0%" in said  # 40 of 160 from the front end's
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert [engine["readings"] for engine in summary["engines"].values()] == [2, 2]
    assert summary["policies"][policy]["disagreement"] == 0.1
    assert len((tmp_path / "readings.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (lambda text: "", "no vllm:num_requests_running"),
        (lambda text: text.replace("0.0", "NaN"), "no finite number"),
        (lambda text: text[: len(text) // 2], "cut off"),
    ],
)
def test_a_page_that_cannot_be_read_is_stale(
    page: Callable[[str], str], reason: str, make_server: MakeServer
) -> None:
    server, other = make_server(), make_server()
    watched = [Watched(server.url), Watched(other.url)]
    read(*watched)
    server.behaviour.rewrite_page = page
    read(*watched)
    broken, fine = watched
    assert broken.gauges == Gauges(0, 0, 0.0, 0, 0, 0)
    assert (broken.readings, broken.failures, fine.readings) == (1, 1, 2)
    assert reason in broken.problem
    now_s = fine.read_s or 0.0
    assert broken.is_stale(now_s, 5.0)
    assert not fine.is_stale(now_s, 5.0)
    assert shown(watched, now_s).count("STALE") == 1
    server.behaviour.rewrite_page = str
    read(*watched)
    assert not broken.problem


def test_a_server_that_hangs_or_is_not_there_holds_nobody_up(make_server: MakeServer) -> None:
    slow, fine, absent = make_server(metrics_delay_s=30.0), make_server(), Watched("http://127.0.0.1:9")
    watched = [Watched(slow.url), Watched(fine.url), absent]
    read(*watched, within_s=0.3)
    assert watched[0].problem == "no answer within 0.3 s"
    assert watched[1].readings == 1
    assert "Connect" in absent.problem
    said = shown(watched, watched[1].read_s or 0.0)
    assert "127.0.0.1:9: Client" in said.replace("\n", "")


@pytest.mark.parametrize(
    "status", ['{"policy": ', "[1]", '{"policy": NaN, "decisions": 1e999}', "[" * 100_000]
)
def test_any_status_leaves_the_monitor_running(status: str) -> None:
    with serving(status) as url:
        watched = Watched(url)
        read(watched)
        read(watched)
        shown([watched], 1e9)


def test_a_served_policy_is_known_by_its_status(tmp_path: Path) -> None:
    words = ["env=routing", "cluster=fleet_h100_x4", "policy=jsq", "isolate=false"]
    config = replace(composed("serve", ServeConfig, words), out=str(tmp_path))
    service = PolicyService.of(config)

    async def run() -> Watched:
        listener = HttpListener(service, "127.0.0.1", 0)
        await service.start()
        try:
            watched = Watched(await listener.start())
            env: Any = service.env
            env.reset(seed=0)
            for _ in range(3):
                await service.decide(env.state, {"kind": "dispatch", "place": 0, "priority": None})
                await asyncio.sleep(0)
            async with HttpClient() as client:
                await read_all(client, [watched], 10.0)
            return watched
        finally:
            await listener.stop()
            await service.stop()
            service.close()

    watched = asyncio.run(run())
    assert watched.kind == POLICY
    assert number_in(watched.status, "decisions") == 3
    assert (number_in(watched.status, "us_p99") or 0.0) > 0
    assert disagreement(watched, fallback=False) is not None
    assert "jsq" in shown([watched], watched.read_s or 0.0)


def test_tokens_a_second_and_a_restart() -> None:
    watched = Watched("http://127.0.0.1:1")
    watched.note_gauges(Gauges(3, 2, 0.5, 0, 100, 1000), 10.0)
    assert watched.rates == (None, None)
    watched.note_gauges(Gauges(3, 4, 0.5, 0, 300, 1500), 12.0)
    assert watched.rates == (100.0, 250.0)
    watched.note_gauges(Gauges(0, 0, 0.0, 0, 0, 0), 14.0)
    assert watched.rates == (None, None)
    assert list(watched.history) == [5, 7, 0]
    assert sparkline([0, 4, 8]) == "▁▅█"


def test_addresses_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert monitor.main(["http://10.0.0.1:8000", f"out={tmp_path}"]) == USER_ERROR
    assert "beyond loopback" in capsys.readouterr().err
    assert monitor.main([f"out={tmp_path}"]) == USER_ERROR
    assert "backend.endpoints is empty" in capsys.readouterr().err
    assert monitor.main(["http://127.0.0.1:80", "interval_s=0", f"out={tmp_path}"]) == USER_ERROR
    assert "interval_s must be positive" in capsys.readouterr().err


def test_it_ends_after_its_time(make_server: MakeServer, tmp_path: Path) -> None:
    words = ["duration_s=0.2", "interval_s=0.05", f"out={tmp_path}", make_server().url]
    assert monitor.main(words) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["rounds"] >= 2
