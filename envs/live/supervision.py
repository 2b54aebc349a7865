"""Supervises several launched servers; a server that dies is restarted after a delay that doubles each time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from serving_gym.envs.live.launch_settings import LaunchSettings, shares_gpu
from serving_gym.envs.live.launcher import LocalServer, answers, stop_all

_LOOK_EVERY_S = 0.25
_log = logging.getLogger(__name__)
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart of a server that died.

    Attributes:
        server: Index of the server.
        at_s: Time, monotonic seconds.
        waited_s: Delay after its death was detected, seconds.
    """

    server: int
    at_s: float
    waited_s: float


class LocalServers:
    """Launched servers; a context manager, which stops them at the end.

    Args:
        settings: Launch settings of each.
        folder: Folder for models and logs, with a subfolder for each server.
        back_off_s: Delay of the restart after a server's first death, seconds; twice that after the second, and so on.

    Attributes:
        restarts: Restarts, in order.

    Raises:
        ValueError: one cannot be started, or does not answer in time.
    """

    def __init__(
        self, settings: Sequence[LaunchSettings], folder: Path, back_off_s: float = FIRST_BACK_OFF_S
    ) -> None:
        self.servers = [LocalServer(each, folder / str(number)) for number, each in enumerate(settings)]
        self.back_off_s = back_off_s
        self._begun_s: dict[int, float] = {}
        self._took_s: dict[int, float] = {}
        self.restarts: list[Restart] = []
        self._down_s: dict[
            int, float
        ] = {}  # since when servers that are started again do not answer, monotonic
        self._ending = threading.Event()
        self._watch = threading.Thread(target=self._look_after, name="serving-gym-servers", daemon=True)

    @property
    def urls(self) -> tuple[str, ...]:
        """Their addresses; restarts do not change them."""
        return tuple(server.url for server in self.servers)

    def __enter__(self) -> LocalServers:
        try:
            for number, server in enumerate(self.servers):
                for earlier in range(number):
                    if shares_gpu(server.settings, self.servers[earlier].settings):
                        self._await(earlier)
                server.folder.mkdir(parents=True, exist_ok=True)
                self._begun_s[number] = time.monotonic()
                server.start()
            for number in range(len(self.servers)):
                self._await(number)
            self._watch.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def ready_s(self) -> list[float]:
        """Time of each from its start to its first answer, s; servers on different slots start in parallel."""
        return [self._took_s[number] for number in sorted(self._took_s)]

    def coming(self) -> bool:
        """Whether a server that has ended is being started again, and may still be up in time."""
        now_s = time.monotonic()
        return any(
            now_s - down_s < self.servers[number].settings.start_within_s
            for number, down_s in list(self._down_s.items())
        )

    def await_all(self) -> None:
        """Waits until every server answers that is being started again.

        Raises:
            ValueError: one does not come up in time.
        """
        while any(server.pid is None for server in self.servers) or self._down_s:
            if self._down_s and not self.coming():
                raise ValueError(f"{self.servers[min(self._down_s)].url} does not come up again")
            time.sleep(_LOOK_EVERY_S)

    def kill_hung(self, number: int, reason: str) -> None:
        """Kills a server that makes no progress, which is then started again; called in any thread."""
        if number not in self._down_s:
            self.servers[number].kill(f"it hung ({reason}) and was killed")

    def stop(self) -> None:
        """Stops all servers."""
        self._ending.set()
        if self._watch.is_alive():
            self._watch.join()
        stop_all(self.servers)

    def _await(self, number: int) -> None:
        """Waits for a server's first answer, if it has not answered yet."""
        if number not in self._took_s:
            self.servers[number].wait_until_ready()
            self._took_s[number] = time.monotonic() - self._begun_s[number]

    def _look_after(self) -> None:
        deaths = [0] * len(self.servers)
        died_s: dict[int, float] = {}
        while not self._ending.wait(_LOOK_EVERY_S):
            now_s = time.monotonic()
            for number, server in enumerate(self.servers):
                if server.pid is not None:
                    if number in self._down_s and answers(f"{server.url}/health"):
                        del self._down_s[number]
                    continue
                if number not in died_s:
                    died_s[number] = now_s
                    self._down_s.setdefault(number, now_s)
                    _log.warning("%s: %s; it is started again", server.url, server.ending)
                waited_s = now_s - died_s[number]
                if waited_s >= min(self.back_off_s * 2 ** deaths[number], LONGEST_BACK_OFF_S):
                    self._start_again(number)
                    deaths[number] += 1
                    del died_s[number]
                    self.restarts.append(Restart(number, now_s, waited_s))

    def _start_again(self, number: int) -> None:
        try:
            self.servers[number].start()
        except (ValueError, OSError) as error:
            _log.warning("%s cannot be started again: %s", self.servers[number].url, error)
