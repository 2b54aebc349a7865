"""Refuses settings of the `backend` group that would have no effect, so that none is dropped silently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from serving_gym.runners.configuration.schema import BackendConfig

# Settings of servers that this command starts.
_OF_LAUNCHED = (
    "python",
    "device",
    "slots",
    "serves",
    "sleep_mode",
    "log_iterations",
    "envelope",
    "deadlines",
)
# Settings that have no effect in an environment ("": a stream of requests without a policy), and why.
_ITS_LIMIT = "a policy's time is backend.control_within_s there"
_NO_SERVERS = "its policies start and stop no servers"
_WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "": {
        "decide_within_s": "no policy decides",
        "control_within_s": "no policy decides",
        "policy_process": "no policy decides",
        "envelope": _NO_SERVERS,
        "deadlines": _NO_SERVERS,
    },
    "routing": {
        "control_within_s": "a policy's time is backend.decide_within_s there",
        "envelope": _NO_SERVERS,
        "deadlines": _NO_SERVERS,
    },
    "dp_tp": {"decide_within_s": _ITS_LIMIT, "envelope": _NO_SERVERS, "deadlines": _NO_SERVERS},
    "autoscaling": {"decide_within_s": _ITS_LIMIT},
    "deployment": {
        "decide_within_s": _ITS_LIMIT,
        "sleep_mode": "replicas are stopped there, not put to sleep",
    },
    "sharing": {"decide_within_s": _ITS_LIMIT},
}


def check_used(backend: BackendConfig, env: str) -> None:
    """Refuses settings that differ from their defaults and would have no effect.

    Args:
        backend: The `backend` group.
        env: Name of the environment; empty: a stream of requests without a policy.

    Raises:
        ValueError: There is one; says why it has none.
    """
    reasons = dict(_WITHOUT_EFFECT[env])
    if not backend.launch:
        reasons |= dict.fromkeys(_OF_LAUNCHED, "it is for servers that backend.launch=true starts")
    else:
        reasons["allow_remote"] = "launched servers listen on the loopback interface"
        reasons["model"] = "launched servers serve one model (backend.serves)"
    usual = BackendConfig()
    where = f"with env={env}" if env else "here"
    for name, reason in reasons.items():
        for path in _differing(getattr(backend, name), getattr(usual, name), f"backend.{name}"):
            raise ValueError(f"{path} has no effect {where}: {reason}; leave it out")


def _differing(value: Any, usual: Any, path: str) -> Iterator[str]:
    """Dotted names of values that differ from their defaults."""
    if is_dataclass(usual) and type(value) is type(usual):
        for entry in fields(usual):
            yield from _differing(
                getattr(value, entry.name), getattr(usual, entry.name), f"{path}.{entry.name}"
            )
    elif value != usual:
        yield path
