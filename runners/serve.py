"""Serves a policy to an external front end: it sends a state and receives an action.

    python -m runners.serve env=routing policy=preserve cluster=fleet_h100_x4 port=8300 mode=shadow

`protocols` names how it is asked (`runners.serving.protocols`): http, ... `mode` sets how the front end should use the
responses: `live` responses are to be followed, `shadow` responses are only compared with the front end's own choice
(`chosen`), and in `canary` mode a `share` of them is to be followed. `GET /status` returns counts and times, which are
also written to `status.json` at the end (Ctrl-C or SIGTERM).
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from serving_gym.runners.command_line.cli import command
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.tables import print_results_in
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.protocols import listeners_of
from serving_gym.runners.serving.service import PolicyService


@command("serve", ServeConfig)
def main(config: ServeConfig, out: Path) -> None:
    """Serves until it is stopped."""
    service = PolicyService.of(config)
    try:
        asyncio.run(_serve(service))
        write_json(out / "status.json", service.host.status())
    finally:
        service.close()
    print_results_in(out)


async def _serve(service: PolicyService) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    listeners = listeners_of(service)
    started = []
    try:
        for protocol, listener in listeners.items():
            address = await listener.start()
            started.append(listener)
            print(f"{service.host.policy.name} answers {protocol} at {address}", flush=True)
        await stopped.wait()
    finally:
        for listener in reversed(started):
            await listener.stop()


if __name__ == "__main__":
    sys.exit(main(None))
