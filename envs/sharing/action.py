"""The sharing action: a slot, a new instance on a node, or to hold the request."""

from __future__ import annotations

from typing import NamedTuple

from serving_gym.envs.interface.sharing import SharingSetting


class Choice(NamedTuple):
    """What an action says; to hold has neither."""

    slot: int | None = None  # the request joins the instance there
    node: int | None = None  # a new instance of the request's model there


def num_actions(setting: SharingSetting) -> int:
    """Slots, a new instance on each node, and to hold."""
    return setting.num_slots + setting.num_nodes + 1


def decode_action(action: int, setting: SharingSetting) -> Choice:
    """What an action of the action space says."""
    if action < setting.num_slots:
        return Choice(slot=action)
    node = action - setting.num_slots
    return Choice(node=node) if node < setting.num_nodes else Choice()
