"""The routing action: a place for the request on the desk, or to hold it."""

from __future__ import annotations

from serving_gym.envs.routing.state import Dispatch


def decode_action(action: int | Dispatch | None, num_rows: int) -> Dispatch:
    """An action spelled out; the last one, and None, hold the request.

    Args:
        action: A place, `num_rows`, a command or None.
        num_rows: Rows for places in the observation.
    """
    if isinstance(action, Dispatch):
        return action
    return Dispatch(None if action is None or action == num_rows else int(action))


def encode_place(place: int | None, num_rows: int) -> int:
    """The action of a replica; None: hold."""
    return num_rows if place is None else int(place)


def refusal(place: int) -> str:
    """Why an action was refused and the request is held."""
    return f"action {place} is no place that can take the request"
