"""Runs one server as its child and leaves nothing of it behind; a script of the standard library alone.

    python -I -S guardian.py OPTIONS COMMAND...

OPTIONS is a JSON object with the fields of `Options`. The server has its own process group, and is killed by the kernel
if this process is (`PR_SET_PDEATHSIG`, prctl(2)). Orphans of the server become children of this process
(`PR_SET_CHILD_SUBREAPER`). The first line of standard output is the server's process id. Standard input is a pipe that
the runner holds open: at a line `stop`, the server gets SIGTERM and `stop_within_s`; at its end without one, which the
kernel brings about however the runner ended, it gets `orphan_within_s`. Then the group is killed.

A server that has answered `/health` once and then does not for `hung_after_s` is killed, and the exit status is `HUNG`.
Otherwise the exit status is the server's. A log longer than `log_bytes` is moved to `NAME.1`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple

HUNG = 86  # exit status
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LOOK_EVERY_S = 0.1
_PROBE_EVERY_S, _PROBE_WITHIN_S = 2.0, 5.0
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # by this process, not by its server


class Options(NamedTuple):
    """How to run a server.

    Attributes:
        log: File that its output is appended to.
        port: Its port on the loopback interface; 0: its health is not watched.
        cores: Cores that it stays on; empty: any.
        log_bytes: Size from which the log is moved aside, bytes; 0: never.
        hung_after_s: Longest time without an answer to `/health`, seconds; 0: no limit.
        stop_within_s: Time to shut down on a line `stop`, seconds.
        orphan_within_s: Time to shut down when the runner is gone, seconds.
    """

    log: str
    port: int = 0
    cores: tuple[int, ...] = ()
    log_bytes: int = 0
    hung_after_s: float = 0.0
    stop_within_s: float = 15.0
    orphan_within_s: float = 3.0


def die_with_parent() -> None:
    """Lets the kernel kill this process when the thread that started it ends; Linux only, elsewhere nothing."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Health:
    """Asks a server for its health in a thread.

    Attributes:
        failing_since_s: Start of the first of the failed probes since the last answer, monotonic; None: it answers, or
            has not answered yet.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.failing_since_s: float | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def hung(self, after_s: float) -> bool:
        """Whether it has not answered for so long."""
        since_s = self.failing_since_s
        return since_s is not None and time.monotonic() - since_s >= after_s

    def _watch(self) -> None:
        known = False
        while True:
            begun_s, healthy = time.monotonic(), self._probe()
            known = known or healthy
            if healthy:
                self.failing_since_s = None
            elif known and self.failing_since_s is None:
                self.failing_since_s = begun_s
            time.sleep(_PROBE_EVERY_S if known else _LOOK_EVERY_S)

    def _probe(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), _PROBE_WITHIN_S) as connection,
        ):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return b" 200" in connection.recv(64)
        return False


class Guardian:
    """The server of this process.

    Args:
        options: How to run it.
        command: Its command line.
    """

    def __init__(self, options: Options, command: list[str]) -> None:
        self.options = options
        self.status: int | None = None  # exit status of the server; None: it runs
        with open(options.log, "ab") as log:  # noqa: PTH123 -- pathlib would double the time to start
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=self._before,
            )
        self.pid = process.pid

    def _before(self) -> None:
        die_with_parent()
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        cores = set(self.options.cores)
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, (cores & os.sched_getaffinity(0)) or os.sched_getaffinity(0))

    def watch(self) -> int:
        """Waits until the server is to end, ends it, and returns the exit status."""
        own = self.options
        health = Health(own.port) if own.port and own.hung_after_s else None
        while True:
            ready, _, _ = select.select([0], [], [], _LOOK_EVERY_S)
            self._reap()
            if self.status is not None:
                break
            if ready:
                told = os.read(0, 64)
                self._end_within(own.stop_within_s if told else own.orphan_within_s, hurries=bool(told))
                break
            if health is not None and health.hung(own.hung_after_s):
                self._say(f"no answer to /health for {own.hung_after_s:g} s: killed")
                self.status = HUNG
                break
            self._bound_log()
        self._kill()
        return self.status or 0

    def _end_within(self, limit_s: float, hurries: bool) -> None:
        """Asks the group to end and waits; `hurries`: no longer than standard input is open."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # of a paused one
        deadline_s = time.monotonic() + limit_s
        while self._signal(0) and time.monotonic() < deadline_s:
            if hurries and select.select([0], [], [], 0)[0] and not os.read(0, 64):
                return
            time.sleep(_LOOK_EVERY_S / 4)
            self._reap()

    def _kill(self) -> None:
        """Kills the group, and what has left it, and waits for its end."""
        deadline_s = time.monotonic() + self.options.orphan_within_s
        while time.monotonic() < deadline_s:
            self._signal(signal.SIGKILL)
            children = _children()
            for child in children:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            if not self._reap():
                return
            time.sleep(_LOOK_EVERY_S / 10)

    def _signal(self, number: int) -> bool:
        """Signals the group; False: nothing is left of it."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _reap(self) -> bool:
        """Collects ended children; False: there are no children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid and self.status is None:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code

    def _bound_log(self) -> None:
        """Moves a long log aside; what is written meanwhile may be lost."""
        own = self.options
        with contextlib.suppress(OSError):
            if own.log_bytes and os.stat(own.log).st_size > own.log_bytes:  # noqa: PTH116
                shutil.copyfile(own.log, f"{own.log}.1")
                os.truncate(own.log, 0)

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError), open(self.options.log, "a", encoding="utf-8") as log:  # noqa: PTH123
            log.write(f"serving-gym: {text}\n")


def _children() -> list[int]:
    """Children of this process, on Linux."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
        return [int(word) for word in file.read().split()]
    return []


def main(words: list[str]) -> int:
    """Runs a server to its end; returns its exit status."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    options = Options(**json.loads(words[0]))
    try:
        guardian = Guardian(options, words[1:])
    except OSError as error:
        print(f"error {error}", flush=True)
        return 127
    with contextlib.suppress(BrokenPipeError):
        print(f"pid {guardian.pid}", flush=True)
    return guardian.watch()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
