"""What a server with the plugin says of itself, and its last words while it does not answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.interface.layout import Group, Layout
from serving_gym.envs.live.switching.client import SwitchingClient

_WITHIN_S, _AGAIN_WITHIN_S, _AGAIN_AFTER_S = 5.0, 1.0, 1.0
# Figures of a group that count since its server began.
COUNTED = ("preemptions", "generated_tokens", "prefilled_tokens", "busy_s")
_log = logging.getLogger(__name__)


class NodeStatus:
    """Status of the node during a run. A server that has been started again is brought back to the layout it had.

    Args:
        client: The server.

    Attributes:
        lost: Why the server does not answer; empty: it does.
        wanted: Layout that it is to have.
    """

    def __init__(self, client: SwitchingClient) -> None:
        self.client = client
        self.lost = ""
        self.wanted: Layout = ()
        self._last: dict[str, Any] = {}
        self._missed_s = 0.0
        self._base: dict[Group, dict[str, float]] = {}
        self._done: list[dict[str, Any]] = []  # switches of servers that have ended

    def begin(self, layout: Layout) -> None:
        """Begins to count anew.

        Args:
            layout: Layout of the node.

        Raises:
            ValueError: the server does not answer.
        """
        self.lost, self.wanted, self._done = "", layout, []
        self._last = self.client.status()
        self._base = {group_of(row): {name: row[name] for name in COUNTED} for row in self._last["groups"]}

    def read(self) -> dict[str, Any]:
        """Its status (`SwitchingScheduler.status`); the last one while it does not answer."""
        if self.lost and time.monotonic() - self._missed_s < _AGAIN_AFTER_S:
            return self._last
        try:
            status = self.client.status(_AGAIN_WITHIN_S if self.lost else _WITHIN_S)
        except ValueError as error:
            self._missed_s = time.monotonic()
            if not self.lost:
                _log.warning("%s; its last status is shown until it answers again", error)
                self.lost = str(error)
            return self._last
        if self.lost:
            self.lost = ""
            self._come_back(status)
        self._last = status
        return status

    def counted(self, row: Mapping[str, Any], name: str) -> float:
        """A figure of a group since the run began."""
        return float(row[name] - self._base.get(group_of(row), {}).get(name, 0))

    def set_layout(self, layout: Layout, mode: SwitchMode) -> str:
        """Begins to switch; returns why it was refused, or nothing."""
        try:
            refused = self.client.set_layout(layout, mode)
        except ValueError as error:
            return str(error)
        if not refused:
            self.wanted = layout
        return refused

    def switches(self) -> list[dict[str, Any]]:
        """Last switches of the node's servers."""
        return [*self._done, *self.read()["done"]]

    def _come_back(self, status: dict[str, Any]) -> None:
        """The server answers again; counters of another process begin at zero, and its layout is the first."""
        before = {group_of(row): row for row in self._last["groups"]}
        rows = [(row, before.get(group_of(row), row)) for row in status["groups"]]
        if all(row[name] >= old[name] for row, old in rows for name in COUNTED):
            return
        self._done += self._last["done"]
        self._base = {
            group: {name: -self.counted(row, name) for name in COUNTED} for group, row in before.items()
        }
        if tuple(status["target_layout"]) != self.wanted:
            refused = self.set_layout(self.wanted, SwitchMode.HARD)
            if refused:
                _log.warning(
                    "the server that was started again does not take layout %s: %s", self.wanted, refused
                )


def group_of(figures: Mapping[str, Any]) -> Group:
    """The group of a row of the status."""
    return Group(figures["first"], figures["length"])
