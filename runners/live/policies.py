"""Policies as they decide on live servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from serving_gym.runners.configuration.policies import policy_config
from serving_gym.runners.configuration.schema import LIVE_BACKENDS, RunConfig
from serving_gym.runners.rollouts.policy_process import PolicyProcess, RemotePolicy

if TYPE_CHECKING:
    from serving_gym.baselines.policy import Policy


@contextlib.contextmanager
def deciding(
    config: RunConfig,
    policies: Mapping[str, Policy],
    configs: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[tuple[dict[str, Policy], PolicyProcess | None]]:
    """The policies that decide, in a process of their own where the servers are live, and that process.

    Args:
        config: The command's configuration.
        policies: Loaded policies, by name.
        configs: Name and constants of those whose names do not say them.
    """
    backend, env = config.backend, str(config.env["name"])
    if backend.name not in LIVE_BACKENDS or not backend.policy_process:
        yield dict(policies), None
        return
    within_s = backend.decide_within_s if env == "routing" else backend.control_within_s
    given = configs or {}
    with PolicyProcess(env) as process:
        remote: dict[str, Policy] = {
            name: RemotePolicy(process, given.get(name) or policy_config(name, env), policy, name, within_s)
            for name, policy in policies.items()
        }
        yield remote, process
