"""Starts a vLLM server on this machine, and always stops it at the end."""

from __future__ import annotations

import contextlib
import json
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from serving_gym.envs.live.guardian import HUNG, Options
from serving_gym.envs.live.guardian import __file__ as guardian_script
from serving_gym.envs.live.launch_settings import LaunchSettings, environment
from serving_gym.envs.live.tiny_model import write_tiny_model

_POLL_S = 0.25
_TAIL_LINES = 3
_KILLED_WITHIN_S = 5.0  # what its guardian may take to kill it after `stop_within_s`
_ENDING = (signal.SIGTERM, signal.SIGHUP)
LOG_BYTES = 16 << 20  # a longer log is moved aside


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
        self._guardian: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._killed = ""  # why it was killed

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
        running = self._guardian is not None and self._guardian.poll() is None
        return self._pid if running else None

    @property
    def ending(self) -> str:
        """How the last server ended, where it was not stopped."""
        if self._killed:
            return self._killed
        if self._guardian is not None and self._guardian.poll() == HUNG:
            return f"it did not answer /health for {self.settings.hung_after_s:g} s and was killed"
        return "it ended by itself"

    def kill(self, reason: str) -> None:
        """Kills a server that hangs, without waiting; it then counts as one that has died.

        Args:
            reason: Why, for the log.
        """
        if self.pid is not None:
            self._killed = reason
            _signal_group(self._pid, signal.SIGKILL)

    def stop(self) -> None:
        """Stops the server and its child processes, by force after a time limit or when interrupted."""
        self.begin_to_stop()
        self.finish_stopping()

    def begin_to_stop(self) -> None:
        """Asks the server to end, without waiting."""
        guardian = self._guardian
        if guardian is not None and guardian.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended
                guardian.stdin.write(b"stop\n")
                guardian.stdin.flush()

    def finish_stopping(self) -> None:
        """Waits until a server that was asked to end has ended, and kills it if that takes too long."""
        self._await_end()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _await_end(self) -> None:
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            try:
                guardian.wait(self.settings.stop_within_s + _KILLED_WITHIN_S)
            except BaseException as error:
                _signal_group(self._pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                guardian.kill()
                guardian.wait()
            finally:
                if (guardian.returncode or 0) < 0:  # it was killed, and has left the children of its server
                    _signal_group(self._pid, signal.SIGKILL)
                for pipe in (guardian.stdin, guardian.stdout):
                    with contextlib.suppress(OSError):
                        if pipe is not None:
                            pipe.close()  # at which its guardian kills it at once

    def reserve(self) -> str:
        """Chooses its address, which then stays the same; returns it."""
        self._port = self._port or _free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        return self.url

    def start(self) -> None:
        """Starts or restarts it at the same address, without waiting for it to answer.

        Raises:
            ValueError: the command cannot be run.
        """
        self._await_end()
        self.folder.mkdir(parents=True, exist_ok=True)
        model = self.settings.model or str(write_tiny_model(self.folder / "model"))
        self.reserve()
        assert self._port is not None
        command = self.settings.arguments(model, self._port)
        options = Options(
            log=str(self.log.resolve()),
            port=self._port,
            cores=tuple(sorted(self.settings.cores)),
            log_bytes=0 if self.settings.log_iterations else LOG_BYTES,
            hung_after_s=self.settings.hung_after_s,
            stop_within_s=self.settings.stop_within_s,
        )
        self.log.touch()
        self._killed, self._pid = "", 0
        self._guardian = guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian_script, json.dumps(options._asdict()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(self.settings),
            cwd=self.folder,
            start_new_session=True,  # Ctrl-C reaches this process, which stops it
        )
        assert guardian.stdout is not None
        said, _, about = guardian.stdout.readline().decode(errors="replace").strip().partition(" ")
        if said != "pid":
            raise ValueError(f"cannot start {command[0]!r}: {about or 'its guardian process ended'}")
        self._pid = int(about)

    def wait_until_ready(self) -> None:
        """Waits for its first answer.

        Raises:
            ValueError: it ends before, or takes too long.
        """
        deadline_s = time.monotonic() + self.settings.start_within_s
        while not answers(f"{self.url}/health"):
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


def stop_all(servers: Sequence[LocalServer]) -> None:
    """Stops servers side by side; when interrupted, kills all of them at once."""
    for server in servers:
        server.begin_to_stop()
    try:
        for server in servers:
            server.finish_stopping()
    except BaseException:
        for server in servers:
            server.kill("interrupted")
        raise


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into a normal exit inside the block, so that context managers stop their servers.

    A signal that is ignored (`nohup`) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before: dict[signal.Signals, Any] = {}
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a server answers a GET with HTTP 200 within a few seconds."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _signal_group(group: int, number: signal.Signals) -> None:
    if group <= 0:  # not known yet; 0 would be this process's own group
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
