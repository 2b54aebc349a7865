"""Configuration of `runners.serve`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.live.endpoints import is_loopback
from serving_gym.runners.configuration.schema import RunConfig
from serving_gym.runners.serving.host import MODES
from serving_gym.runners.serving.protocols import PROTOCOLS, READ_SERVERS
from serving_gym.runners.serving.scaling_settings import ScalingSettings

LOOPBACK = "127.0.0.1"
NO_FALLBACK = "none"
_SHORTEST_TOKEN = 16


@dataclass(frozen=True, kw_only=True)
class ServeConfig(RunConfig):
    """Configuration of `runners.serve`.

    Attributes:
        policy: Name and constants of the policy.
        protocols: Protocols to listen for, by name (`runners.serving.protocols`).
        mode: Use of the responses: live, shadow or canary.
        share: Share of requests whose responses are to be followed in canary mode.
        fallback: Policy whose decision replaces one that is late or missing; none: nothing does; None: a rule of the
            environment (routing: least_request; others: leave all as it is).
        deadline_ms: Longest time of a decision, after which the fallback answers; None: the environment's.
        hang_s: Time without an answer after which the policy's process is started again.
        compare: Share of decisions about which the fallback is asked as well, for comparison.
        isolate: Whether the policy runs in a process of its own.
        log_decisions: Whether decisions are written to `decisions.jsonl`.
        log_mb: Size of that file after which it is rotated, MB; four older ones are kept.
        address: Address to listen on.
        port: Port of the first protocol; 0: any free port; None: its default port.
        ports: Ports by name of the protocol; None: its default port.
        allow_remote: Whether the address may be other than loopback.
        token_file: File with a token that callers must send (`Authorization: Bearer TOKEN`); None: none.
        max_connections: Most open connections of a listener.
        max_body_kb: Longest body of a request, kB; None: the environment's.
        max_rows: Most rows of a table in a state.
        read_s: Longest time until a request has been received, seconds.
        schema: Write the JSON schema of the exchange to `out` and to standard output, and end.
        seed: Seed of the policy.
        scaling: What an autoscaling policy scales, and what is known of it.
    """

    policy: dict[str, Any]
    protocols: tuple[str, ...] = ("http",)
    mode: str = "live"
    share: float = 0.1
    fallback: str | None = None
    deadline_ms: float | None = None
    hang_s: float = 10.0
    compare: float = 1.0
    isolate: bool = True
    log_decisions: bool = True
    log_mb: float = 256.0
    address: str = LOOPBACK
    port: int | None = None
    ports: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(PROTOCOLS))
    allow_remote: bool = False
    token_file: str | None = None
    max_connections: int = 1000
    max_body_kb: int | None = None
    max_rows: int = 20_000
    read_s: float = 5.0
    schema: bool = False
    seed: int = 0
    scaling: ScalingSettings = field(default_factory=ScalingSettings)

    bodies: ClassVar[tuple[str, ...]] = ("simulator", "vllm")  # vllm: servers that run, to read gauges from

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mode", self.mode, MODES)
        self._check_protocols()
        for name in ("share", "compare"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        for name in (
            "deadline_ms",
            "hang_s",
            "log_mb",
            "max_connections",
            "max_body_kb",
            "max_rows",
            "read_s",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive, got {value}")
        if not self.allow_remote and not is_loopback(self.address):
            raise ValueError(
                f"address={self.address} is not a loopback address; allow it with allow_remote=true"
            )
        _ = self.token

    def _check_protocols(self) -> None:
        if not self.protocols:
            raise ValueError(f"protocols must name at least one of {', '.join(PROTOCOLS)}")
        for name in self.protocols:
            check_choice("protocol", name, PROTOCOLS)
        if len(set(self.protocols)) < len(self.protocols):
            raise ValueError(f"protocols must not name one twice, got [{', '.join(self.protocols)}]")
        if self.backend.name != "simulator" and not set(self.protocols) & set(READ_SERVERS):
            raise ValueError(
                f"backend={self.backend.name}: none of protocols=[{', '.join(self.protocols)}] reads servers; "
                f"{', '.join(READ_SERVERS)} do"
            )
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

    @property
    def token(self) -> str | None:
        """The token that callers must send; None: none.

        Raises:
            ValueError: The file cannot be read, or holds no token.
        """
        if self.token_file is None:
            return None
        try:
            token = Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"token_file={self.token_file} cannot be read: {error}") from None
        if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
            raise ValueError(
                f"token_file={self.token_file} must hold one token of at least {_SHORTEST_TOKEN} printable characters"
            )
        return token
