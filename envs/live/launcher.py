"""Starts a vLLM server on this machine, and always stops it at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from serving_gym.envs.live.launch_settings import LaunchSettings, environment
from serving_gym.envs.live.tiny_model import write_tiny_model

_POLL_S = 0.25
_TAIL_LINES = 3


class LocalServer:
    """A vLLM server of the tiny model in its own process group; a context manager.

    Args:
        settings: launch settings.
        folder: folder for model and log; None: a temporary one, removed with the server.

    Raises:
        ValueError: it cannot be started, or does not answer in time; the message ends with the last lines of its log.
    """

    def __init__(self, settings: LaunchSettings, folder: Path | None = None) -> None:
        self.settings = settings
        self._temporary = tempfile.TemporaryDirectory(prefix="serving-gym-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary is not None else folder or Path()
        self.log = self.folder / "vllm.log"
        self.url = ""
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalServer:
        try:
            self.start()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Process id, and process group id, of the server; None if it is not running."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else None

    def stop(self) -> None:
        """Stops the server and its child processes, by force after a time limit."""
        process, self._process = self._process, None
        if process is not None:
            _signal_group(process.pid, signal.SIGTERM)
            deadline_s = time.monotonic() + self.settings.stop_within_s
            while _group_alive(process) and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
            if _group_alive(process):
                _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    def reserve(self) -> str:
        """Chooses its address, which then stays the same; returns it."""
        self._port = self._port or _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        return self.url

    def start(self) -> None:
        """Starts or restarts it at the same address, without waiting for it to answer."""
        model = self.settings.model or str(write_tiny_model(self.folder / "model"))
        self.reserve()
        assert self._port is not None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.settings.arguments(model, self._port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self.settings),
                cwd=self.folder,
                start_new_session=True,  # its own process group: Ctrl-C reaches this process, which stops the group
            )
        _keep_on(self._process.pid, self.settings.cores)

    def wait_until_ready(self) -> None:
        """Waits for its first answer.

        Raises:
            ValueError: it ends before, or takes too long.
        """
        deadline_s = time.monotonic() + self.settings.start_within_s
        while not _answers(f"{self.url}/health"):
            if self.pid is None:
                raise ValueError(f"the launched vLLM server ended before it answered: {self._last_words()}")
            if time.monotonic() > deadline_s:
                raise ValueError(
                    f"the launched vLLM server did not answer within {self.settings.start_within_s:g} s: "
                    f"{self._last_words()}"
                )
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-_TAIL_LINES:]) or "it said nothing"


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Turns SIGTERM into a normal exit inside the block, so that context managers stop their servers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _keep_on(process: int, cores: frozenset[int]) -> None:
    """Pins a process and its children to cores, as far as they are available and the system supports it."""
    if cores and hasattr(os, "sched_setaffinity"):
        allowed = cores & os.sched_getaffinity(0)
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process, allowed or os.sched_getaffinity(0))


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _group_alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether the server or one of its children still runs."""
    process.poll()  # reaps the leader, which would otherwise remain a member
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
