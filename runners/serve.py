"""Serves a routing policy over HTTP to an external front end: it posts a state and receives an action.

    python -m runners.serve env=routing policy=preserve cluster=fleet_h100_x4 port=8300 mode=shadow

`mode` sets how the front end should use the responses: `live` responses are to be followed, `shadow` responses are only
compared with the front end's own choice (`chosen`), and in `canary` mode a `share` of them is to be followed. See
`runners.serving.server` for the protocol. `GET /status` returns counts and times, which are also written to
`status.json` at the end (Ctrl-C or SIGTERM).
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.live.endpoints import is_loopback
from serving_gym.envs.routing.observation import StateEncoder
from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.policies import check_spaces, load_policy
from serving_gym.runners.configuration.schema import RunConfig
from serving_gym.runners.live.attach import check_installed
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.tables import print_results_in
from serving_gym.runners.serving.host import MODES, PolicyHost
from serving_gym.runners.serving.server import LOOPBACK, PolicyServer


@dataclass(frozen=True, kw_only=True)
class ServeConfig(RunConfig):
    """Configuration of `runners.serve`.

    Attributes:
        policy: Name and constants of the policy.
        mode: Use of the responses: live, shadow or canary.
        share: Share of requests whose responses are to be followed in canary mode.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.
        allow_remote: Whether the address may be other than loopback.
        seed: Seed of the policy.
    """

    policy: dict[str, Any]
    mode: str = "live"
    share: float = 0.1
    address: str = LOOPBACK
    port: int = 8300
    allow_remote: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mode", self.mode, MODES)
        if self.env["name"] != "routing":
            raise ValueError(f"env={self.env['name']} cannot be served; only env=routing has a wire form")
        if self.env.get("admission"):
            raise ValueError("env.admission must be false here: the wire form has places and holding only")
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port must lie in [0, 65535], got {self.port}")
        if not self.allow_remote and not is_loopback(self.address):
            raise ValueError(
                f"address={self.address} is not a loopback address; allow it with allow_remote=true"
            )


def policy_host(config: ServeConfig) -> PolicyHost:
    """Builds the policy and its host for the environment's setting."""
    env: Any = config.environment.make().unwrapped
    spec = env.policy_spec
    encoder = StateEncoder(spec.fleet, spec.slos, env.config.scales, env.config.num_rows)
    policy = load_policy(config.policy, config.env["name"])
    check_spaces(policy, env)
    return PolicyHost(policy, spec, encoder, config.mode, config.share, config.seed)


@command("serve", ServeConfig)
def main(config: ServeConfig, out: Path) -> None:
    """Serves until it is stopped."""
    check_installed()
    host = policy_host(config)
    asyncio.run(_serve(PolicyServer(host, config.port, config.address)))
    write_json(out / "status.json", host.status())
    print_results_in(out)


async def _serve(server: PolicyServer) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        print(f"{server.host.policy.name} answers at {await server.start()}", flush=True)
        await stopped.wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    sys.exit(main(None))
