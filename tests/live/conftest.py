from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.backend import LiveBackend
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.command_line.cli import let_warnings_through
from tests.live.fake_server import Behaviour, FakeServer

SLOS = (SLO(0.5, 0.05),)

MakeServer = Callable[..., FakeServer]
MakeBackend = Callable[..., LiveBackend]


@pytest.fixture(autouse=True)
def warnings_are_heard() -> None:
    """Loggers speak, which a command run by an earlier test may have silenced."""
    let_warnings_through()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def make_server(stack: ExitStack) -> MakeServer:
    """A fake server that ends with the test."""
    return lambda **behaviour: stack.enter_context(FakeServer(Behaviour(**behaviour)))


@pytest.fixture
def make_backend(stack: ExitStack) -> MakeBackend:
    """A live body attached to servers, let go of before they end."""

    def make(*servers: FakeServer, spec: dict[str, object] | None = None, **settings: object) -> LiveBackend:
        words = {"num_gpus": len(servers), "router": "round_robin", "order": "fcfs"} | (spec or {})
        urls = tuple(server.url for server in servers)
        fast = {"scrape_interval_s": 0.02, "stale_after_s": 0.5, "silence_s": 2.0} | settings
        return stack.enter_context(LiveBackend(ClusterSpec(**words), SLOS, LiveSettings(urls, **fast)))

    return make


def stream_of(n: int, gap_s: float = 0.01, prompt: int = 20, output: int = 6, **columns: object) -> Workload:
    """Requests at equal distances."""
    return Workload(
        arrival_s=np.arange(n) * gap_s,
        input_tokens=np.full(n, prompt),
        output_tokens=np.full(n, output),
        **columns,
    )
