"""The real vllm-router on loopback before small workers of our own, which record what comes and answer when told."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.baselines.routers.vllm_router.scripts import Script

COMMAND = "vllm-router"
PATIENCE_S = 20.0
PRUNED = "Cache eviction completed"  # what its log says after a pruning
FLAGS = {
    "cache_threshold": "--cache-threshold",
    "balance_abs_threshold": "--balance-abs-threshold",
    "balance_rel_threshold": "--balance-rel-threshold",
    "eviction_interval_s": "--eviction-interval-secs",
    "max_tree_size": "--max-tree-size",
}
# the model that workers have whose model is not known: only for a known one does the router keep workers in order
MODEL = "unknown"


def available() -> bool:
    """Whether the router is installed."""
    return shutil.which(COMMAND) is not None


def version() -> str:
    """The installed router's version."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("vllm-router")
    python = Path(str(shutil.which(COMMAND))).parent / "python"
    code = "import importlib.metadata as m; print(m.version('vllm-router'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def choices(script: Script) -> list[int]:
    """Which worker the router sends each request of a script to."""
    return asyncio.run(_run(script))


class _Workers:
    """Answers a request at once, or when it is told to if the request is held."""

    def __init__(self) -> None:
        self.arrivals: asyncio.Queue[tuple[int, int]] = asyncio.Queue()  # (request, worker)
        self.answers: dict[int, asyncio.Event] = {}

    @contextlib.asynccontextmanager
    async def running(self, num_workers: int) -> AsyncIterator[list[str]]:
        """Serves; yields the workers' addresses."""
        async with contextlib.AsyncExitStack() as stack:
            urls = []
            for worker in range(num_workers):
                app = web.Application()
                app.router.add_get("/health", _healthy)
                app.router.add_post("/v1/completions", self._handler(worker))
                runner = web.AppRunner(app, shutdown_timeout=0.1)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
            yield urls

    def _handler(self, worker: int):
        async def complete(request: web.Request) -> web.Response:
            number = int((await request.json())["user"])
            self.arrivals.put_nowait((number, worker))
            await self.answers[number].wait()
            choice = {"index": 0, "text": "", "finish_reason": "stop", "logprobs": None}
            body = {
                "id": str(number),
                "object": "text_completion",
                "created": 0,
                "model": MODEL,
                "choices": [choice],
            }
            return web.json_response(body)

        return complete


async def _healthy(_: web.Request) -> web.Response:
    return web.Response()


async def _run(script: Script) -> list[int]:
    workers = _Workers()
    async with (
        workers.running(script.num_workers) as urls,
        _router(script, urls) as (address, log),
        aiohttp.ClientSession(address, timeout=aiohttp.ClientTimeout(PATIENCE_S)) as client,
    ):
        return await _Run(workers, urls, client, log).steps(script)


class _Run:
    def __init__(self, workers: _Workers, urls: list[str], client: aiohttp.ClientSession, log: Path) -> None:
        self.workers, self.urls, self.client, self.log = workers, urls, client, log
        self.chosen: list[int] = []
        self.running: dict[int, asyncio.Task[None]] = {}

    async def steps(self, script: Script) -> list[int]:
        """Goes through a script."""
        tracks_load = script.policy != "round_robin"
        prunes = any(step[0] == "prune" for step in script.steps)
        for step in script.steps:
            if step[0] == "prune":
                await self._until(self._prunings() + 1)
                prunings = self._prunings()
            elif step[0] == "send":
                await self._send(step[1], held=step[2])
            else:
                await self._finish(step[1])
            if tracks_load:
                await self._loads_are_known()
            if prunes and self._prunings() != prunings:
                raise RuntimeError("the router pruned its tree in the midst of a burst; run it again")
        for number in list(self.running):
            await self._finish(number)
        return self.chosen

    async def _send(self, prompt: list[int], held: bool) -> None:
        number = len(self.chosen)
        self.workers.answers[number] = asyncio.Event()
        self.running[number] = asyncio.create_task(self._request(number, prompt))
        arrived, worker = await asyncio.wait_for(self.workers.arrivals.get(), PATIENCE_S)
        assert arrived == number
        self.chosen.append(worker)
        if not held:
            await self._finish(number)

    async def _finish(self, number: int) -> None:
        self.workers.answers[number].set()
        await self.running.pop(number)

    async def _request(self, number: int, prompt: list[int]) -> None:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "user": str(number)}
        async with self.client.post("/v1/completions", json=body) as response:
            response.raise_for_status()
            await response.read()

    async def _loads_are_known(self) -> None:
        """Waits until the router counts the requests that run, on every worker."""
        expected = {url: sum(self.chosen[n] == w for n in self.running) for w, url in enumerate(self.urls)}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with self.client.get("/workers") as response:
                    loads = {worker["url"]: worker["load"] for worker in (await response.json())["workers"]}
                if loads == expected:
                    return
                await asyncio.sleep(0.002)

    def _prunings(self) -> int:
        return self.log.read_text(errors="replace").count(PRUNED)

    async def _until(self, prunings: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self._prunings() < prunings:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _router(script: Script, urls: list[str]) -> AsyncIterator[tuple[str, Path]]:
    """The router's address, and its log."""
    port, metrics_port = _free_ports(2)
    options = [word for name, value in script.options.items() for word in (FLAGS[name], str(value))]
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--policy", script.policy, *options]
    arguments += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    arguments += ["--worker-startup-check-interval", "1", "--log-level", "debug", "--worker-urls", *urls]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "router.log"
        with log.open("w") as stream:
            process = await asyncio.create_subprocess_exec(COMMAND, *arguments, stdout=stream, stderr=stream)
        try:
            await _ready(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}", log
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _ready(address: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession(address) as client:
        while process.returncode is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get("/health") as response:
                    if response.ok:
                        return
            await asyncio.sleep(0.05)
    raise RuntimeError(
        f"{COMMAND} ended with {process.returncode}: {log.read_text(errors='replace')[-2000:]}"
    )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
