"""Settings of the plugin: an entry of vLLM's `--additional-config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from . import NAME
from .groups import Layout, groups_of
from .routing import ROUTERS


@dataclass(frozen=True)
class SwitchingSettings:
    """Words of the plugin.

    Attributes:
        layout: Groups at the start; None: one group of all ranks.
        router: Chooses the group of a request.
    """

    layout: Layout | None = None
    router: str = "jsq"

    @classmethod
    def of(cls, additional_config: Mapping[str, Any], world: int) -> SwitchingSettings:
        """Reads the entry named after this package; where there is none, the defaults hold.

        Args:
            additional_config: vLLM's setting.
            world: ranks.

        Raises:
            ValueError: an unknown word or a value that is not allowed.
        """
        given = dict(additional_config.get(NAME) or {})
        allowed = [field.name for field in fields(cls)]
        unknown = sorted(set(given) - set(allowed))
        if unknown:
            raise ValueError(f"{NAME} knows no {unknown[0]!r} (allowed: {', '.join(allowed)})")
        layout = given.get("layout")
        settings = cls(None if layout is None else tuple(layout), given.get("router", cls.router))
        groups_of(settings.layout or (world,), world)
        if settings.router not in ROUTERS:
            raise ValueError(f"{NAME}: router must be one of {', '.join(ROUTERS)}, got {settings.router!r}")
        return settings
