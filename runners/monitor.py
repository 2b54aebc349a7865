"""Shows a live cluster in the terminal: engines, queues, KV caches, and the decisions of a policy that serves.

    python -m runners.monitor http://127.0.0.1:8000 http://127.0.0.1:8001 http://127.0.0.1:8300
    python -m runners.monitor backend.endpoints=[http://127.0.0.1:8000] duration_s=600
    python -m runners.monitor http://127.0.0.1:8000 http://127.0.0.1:8300 log=runs/serve/DATE
    python -m runners.monitor http://127.0.0.1:8000 once=true

An address is that of a server (its page of metrics is read: vLLM, SGLang and others) or of `runners.serve` (its
`/v1/status` is read). A page that cannot be read is shown as stale with its reason. `log` names the decision log of
`runners.serve`: what the policy gains over the fallback rule is estimated from its newest decisions, again and again
(see `runners.replay`).

Ends with Ctrl-C, SIGTERM, or after `duration_s`; `once=true` reads twice, prints one frame and ends. Writes
`readings.jsonl` (every reading, as it is read) and `summary.json`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live

from serving_gym.calibration.fields import check_positive
from serving_gym.envs.interface.metrics import to_jsonable
from serving_gym.envs.live.access import Access
from serving_gym.envs.live.endpoints import check_endpoints
from serving_gym.envs.live.http import HttpClient
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.live.attach import check_installed
from serving_gym.runners.monitoring.frame import frame
from serving_gym.runners.monitoring.gain import GainWatch
from serving_gym.runners.monitoring.pages import Watched, read_all
from serving_gym.runners.monitoring.summary import Summary
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.tables import print_results_in

_WIDTH = 160  # of frames in a file or a pipe, characters


@dataclass(frozen=True)
class WatchedServers:
    """Addresses to watch.

    Attributes:
        endpoints: `http://HOST:PORT` of vLLM servers and of `runners.serve`.
        allow_remote: Whether they may be on other machines.
        access: API key, headers and TLS of all addresses.
    """

    endpoints: tuple[str, ...] = ()
    allow_remote: bool = False
    access: Access = field(default_factory=Access)


@dataclass(frozen=True)
class MonitorConfig:
    """Configuration of `runners.monitor`.

    Attributes:
        out: Run directory.
        backend: The addresses.
        interval_s: Time between two readings, s.
        stale_after_s: Age from which a reading is stale, and longest time that a page may take, s.
        duration_s: Time after which it ends, s; None: when it is stopped.
        once: Whether to print one frame and end.
        log: Decision log of `runners.serve`, or its run directory; None: no gain is estimated.
        decisions: Newest decisions of the log from which the gain is estimated.
        estimate_every_s: Time between two estimates, s.
    """

    out: str
    backend: WatchedServers = field(default_factory=WatchedServers)
    interval_s: float = 1.0
    stale_after_s: float = 5.0
    duration_s: float | None = None
    once: bool = False
    log: str | None = None
    decisions: int = 2000
    estimate_every_s: float = 30.0

    def __post_init__(self) -> None:
        check_positive(self, "interval_s", "stale_after_s", "duration_s", "estimate_every_s", "decisions")


@command("monitor", MonitorConfig)
def _monitor(config: MonitorConfig, out: Path) -> None:
    """Runs the command."""
    check_installed()
    urls = check_endpoints(config.backend.endpoints, config.backend.allow_remote)
    gain = None
    if config.log is not None:
        gain = GainWatch(Path(config.log), config.decisions, config.estimate_every_s)
    asyncio.run(_watch(config, [Watched(url) for url in urls], gain, out))
    print_results_in(out)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command; addresses may stand by themselves."""
    given = list(sys.argv[1:] if words is None else words)
    urls = [word for word in given if word.startswith(("http://", "https://"))]
    rest = [word for word in given if word not in urls]
    return _monitor([*rest, *([f"backend.endpoints=[{','.join(urls)}]"] if urls else [])])


async def _watch(config: MonitorConfig, watched: list[Watched], gain: GainWatch | None, out: Path) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    summary, begun_s = Summary(), time.monotonic()
    estimating = None
    if gain is not None:
        estimating = asyncio.create_task(gain.follow())
    within_s = min(config.stale_after_s, max(config.interval_s, 1.0))
    try:
        async with HttpClient({each.url: config.backend.access for each in watched}) as client:
            with (
                (out / "readings.jsonl").open("a", encoding="utf-8") as readings,
                Live(console=console, auto_refresh=False) as live,
            ):
                while True:
                    due_s = time.monotonic() + config.interval_s
                    await read_all(client, watched, within_s)
                    now_s = time.monotonic()
                    row = summary.add(watched, now_s, begun_s, config.stale_after_s)
                    readings.write(json.dumps(to_jsonable(row), allow_nan=False) + "\n")
                    readings.flush()
                    title = f"{time.strftime('%H:%M:%S')}, watched for {now_s - begun_s:.0f} s"
                    live.update(
                        frame(watched, now_s, config.stale_after_s, title, gain.sentences if gain else ()),
                        refresh=True,
                    )
                    if _is_over(config, summary.rounds, now_s - begun_s, gain):
                        break
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stopped.wait(), max(due_s - time.monotonic(), 0.0))
                    if stopped.is_set():
                        break
        if not console.is_terminal:  # the last frame has no line end there
            console.print()
    finally:
        if estimating is not None:
            estimating.cancel()
        seconds, found = time.monotonic() - begun_s, gain.found if gain else {}
        write_json(out / "summary.json", summary.result(watched, seconds, found))


def _is_over(config: MonitorConfig, rounds: int, seconds: float, gain: GainWatch | None) -> bool:
    if config.once and rounds >= 2:  # two readings, so that there are tokens a second
        return gain is None or gain.is_ready
    return config.duration_s is not None and seconds >= config.duration_s


if __name__ == "__main__":
    sys.exit(main(None))
