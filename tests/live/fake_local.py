"""A launched server that is started and stopped in this process."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.launcher import _free_port
from serving_gym.envs.live.settings import LiveSettings
from tests.live.fake_server import Behaviour, FakeServer

FREE = EnvelopeSettings(min_dwell_s=0.0, most_per_hour=1000, most_usage_after=1.0)
FAST = LiveSettings(("unused",), scrape_interval_s=0.02, stale_after_s=0.5, silence_s=3.0)


@dataclass
class FakeLocalServer:
    """Stands in for `LocalServer`: a start takes a while, a stop is at once.

    Attributes:
        start_s: How long a start takes.
        behaviour: What the server does.
        served: Requests it was sent, in all its lives.
        starts: How often it was started.
    """

    start_s: float = 0.1
    behaviour: Behaviour = field(default_factory=Behaviour)
    settings: LaunchSettings = field(default_factory=LaunchSettings)
    folder: Path = Path()
    url: str = ""
    server: FakeServer | None = None
    served: list[dict[str, object]] = field(default_factory=list)
    starts: int = 0
    ending: str = "it ended by itself"

    def reserve(self) -> str:
        self.url = self.url or f"http://127.0.0.1:{_free_port()}"
        return self.url

    @property
    def pid(self) -> int | None:
        return None if self.server is None else self.starts

    def start(self) -> None:
        time.sleep(self.start_s)
        self.starts += 1
        port = int(self.reserve().rsplit(":", 1)[1])
        self.server = FakeServer(self.behaviour, self.served, port=port)
        self.server.__enter__()

    def wait_until_ready(self) -> None:
        pass

    def kill(self, reason: str) -> None:
        self.ending = reason
        self.stop()

    def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.__exit__(None, None, None)
