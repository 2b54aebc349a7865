"""Serves a policy of any environment to an external front end: it sends a state and receives a decision.

    python -m runners.serve env=routing policy=preserve cluster=fleet_h100_x4 port=8300 mode=shadow
    python -m runners.serve env=autoscaling policy=hpa_kv cluster=fleet_autoscaled protocols=[http,grpc]
    python -m runners.serve env=routing schema=true

`protocols` names how it is asked (`runners.serving.protocols`). `mode` sets how the front end should use the answers:
`live` answers are to be followed, `shadow` answers are only compared with the front end's own choice (`chosen`), and in
`canary` mode a `share` of them is to be followed. A decision that is late (`deadline_ms`) or missing is the
`fallback`'s. SIGHUP reads the policy anew. Ends with Ctrl-C or SIGTERM; writes `decisions.jsonl`, `serve.jsonl` and
`status.json`. docs/serving.md has the protocols.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from serving_gym.runners.command_line.cli import command
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.tables import print_results_in
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.listeners import listeners_of
from serving_gym.runners.serving.service import PolicyService
from serving_gym.runners.serving.wire import schema_of


@command("serve", ServeConfig)
def main(config: ServeConfig, out: Path) -> None:
    """Serves until it is stopped."""
    if config.schema:
        schema = schema_of(config.env["name"])
        write_json(out / f"{config.env['name']}.json", schema)
        print(json.dumps(schema, indent=1))
        return
    service = PolicyService.of(config)
    try:
        asyncio.run(_serve(service))
        write_json(out / "status.json", service.status())
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
    reading: set[asyncio.Task[None]] = set()
    try:
        starting, stopping = loop.create_task(service.start()), loop.create_task(stopped.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        for protocol, listener in listeners.items():
            address = await listener.start()
            started.append(listener)
            print(f"{service.host.policy.name} answers {protocol} at {address}", flush=True)
        loop.add_signal_handler(signal.SIGHUP, lambda: reading.add(loop.create_task(_read_anew(service))))
        await stopping
    finally:
        for listener in reversed(started):
            await listener.stop()
        await service.stop()


async def _read_anew(service: PolicyService) -> None:
    """Reads the policy anew; one that cannot be read changes nothing."""
    try:
        print(f"{await service.change()} was read anew", flush=True)
    except ValueError as error:
        service.count("policy_change_failures")
        service.log.error("policy not changed", extra={"fields": {"reason": str(error)}})
        print(f"error: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(None))
