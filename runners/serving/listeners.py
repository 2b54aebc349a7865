"""Listeners: a class for each protocol (`protocols`).

A listener answers by `await service.decide(state)` (`runners.serving.service.PolicyService`), which does not raise for
a policy's error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from serving_gym.calibration.lookup import check_choice, load_attribute
from serving_gym.runners.serving.protocols import PROTOCOLS

if TYPE_CHECKING:
    from serving_gym.runners.serving.service import PolicyService


class Listener(Protocol):
    """Listens for one protocol.

    Attributes:
        environments: Names of the environments whose policies it can serve.
        default_port: Port where none is configured.
        checks_token: Whether callers must send the token of `token_file`.

    Args:
        service: The policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.

    Raises:
        ValueError: The service's configuration cannot be served by this protocol, or a package is missing.
    """

    environments: ClassVar[tuple[str, ...]]
    default_port: ClassVar[int]
    checks_token: ClassVar[bool]

    def __init__(self, service: PolicyService, address: str, port: int) -> None: ...

    async def start(self) -> str:
        """Starts listening; returns the address."""
        ...

    async def stop(self) -> None:
        """Stops listening; open exchanges get their answers within seconds or are closed."""
        ...


def listener_class(protocol: str) -> type[Listener]:
    """The listener class of a protocol.

    Raises:
        ValueError: There is no such protocol.
    """
    check_choice("protocol", protocol, PROTOCOLS)
    found: type[Listener] = load_attribute(PROTOCOLS[protocol])
    return found


def listeners_of(service: PolicyService) -> dict[str, Listener]:
    """The listeners of a service's configuration, by protocol; they do not listen yet.

    Raises:
        ValueError: A protocol cannot serve the environment, or refuses the configuration.
    """
    config, env = service.config, service.config.env["name"]
    made: dict[str, Listener] = {}
    for name in config.protocols:
        kind = listener_class(name)
        if env not in kind.environments:
            raise ValueError(
                f"protocol {name} cannot serve env={env}; it serves {', '.join(kind.environments)}"
            )
        if config.token is not None and not getattr(kind, "checks_token", False):
            raise ValueError(
                f"protocol {name} has no place for a token: leave out token_file or the protocol"
            )
        made[name] = kind(service, config.address, config.port_of(name, kind.default_port))
    return made
