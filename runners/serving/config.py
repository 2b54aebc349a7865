"""Configuration of `runners.serve`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.live.endpoints import is_loopback
from serving_gym.runners.configuration.schema import RunConfig
from serving_gym.runners.serving.host import MODES
from serving_gym.runners.serving.protocols import PROTOCOLS
from serving_gym.runners.serving.scaling_settings import ScalingSettings

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class ServeConfig(RunConfig):
    """Configuration of `runners.serve`.

    Attributes:
        policy: Name and constants of the policy.
        protocols: Protocols to listen for, by name (`runners.serving.protocols`).
        mode: Use of the responses: live, shadow or canary.
        share: Share of requests whose responses are to be followed in canary mode.
        address: Address to listen on.
        port: Port of the first protocol; 0: any free port; None: its default port.
        ports: Ports by name of the protocol; None: its default port.
        allow_remote: Whether the address may be other than loopback.
        seed: Seed of the policy.
        scaling: What an autoscaling policy scales, and what is known of it.
    """

    policy: dict[str, Any]
    protocols: tuple[str, ...] = ("http",)
    mode: str = "live"
    share: float = 0.1
    address: str = LOOPBACK
    port: int | None = None
    ports: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(PROTOCOLS))
    allow_remote: bool = False
    seed: int = 0
    scaling: ScalingSettings = field(default_factory=ScalingSettings)

    bodies: ClassVar[tuple[str, ...]] = ("simulator", "vllm")  # vllm: servers that run, to read gauges from

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mode", self.mode, MODES)
        self._check_protocols()
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {self.share}")
        if not self.allow_remote and not is_loopback(self.address):
            raise ValueError(
                f"address={self.address} is not a loopback address; allow it with allow_remote=true"
            )

    def _check_protocols(self) -> None:
        if not self.protocols:
            raise ValueError(f"protocols must name at least one of {', '.join(PROTOCOLS)}")
        for name in self.protocols:
            check_choice("protocol", name, PROTOCOLS)
        if len(set(self.protocols)) < len(self.protocols):
            raise ValueError(f"protocols must not name one twice, got [{', '.join(self.protocols)}]")
        given = {f"ports.{name}": port for name, port in self.ports.items() if port is not None}
        for name in given:
            check_choice("port", name, [f"ports.{protocol}" for protocol in self.protocols])
        for name, port in {"port": self.port, **given}.items():
            if port is not None and not 0 <= port < 2**16:
                raise ValueError(f"{name} must lie in [0, 65535], got {port}")

    def port_of(self, protocol: str, default: int) -> int:
        """Port to listen on for a protocol.

        Args:
            protocol: Its name.
            default: Its default port.
        """
        own = self.ports.get(protocol)
        if own is None and protocol == self.protocols[0]:
            own = self.port
        return default if own is None else own
