"""TTFTs of requests that a router sent, as their first tokens come back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from serving_gym.envs.routing.state import RoutingState

NoteT = TypeVar("NoteT")


@dataclass(frozen=True, slots=True)
class FirstToken(Generic[NoteT]):
    """A first token that has come back.

    Attributes:
        index: Row of the workload.
        place: Where the request was sent.
        at_s: When it came.
        ttft_s: After the request was sent.
        note: What was noted when it was sent.
    """

    index: int
    place: int
    at_s: float
    ttft_s: float
    note: NoteT


class FirstTokens(Generic[NoteT]):
    """Requests whose first token is awaited, each with a note.

    A request whose answer began and ended between two decisions is gone from `in_flight` and is left out.
    """

    def __init__(self) -> None:
        self._awaited: dict[int, tuple[int, float, NoteT]] = {}

    def sent(self, index: int, place: int, now_s: float, note: NoteT) -> None:
        """A request goes to a place."""
        self._awaited[index] = (place, now_s, note)

    def collect(self, state: RoutingState) -> Iterator[FirstToken[NoteT]]:
        """First tokens that have come since the last call, in the order of their requests."""
        if not self._awaited:
            return
        flights = state.in_flight
        ended = self._awaited.keys() - set(flights["index"].tolist())
        for index in ended:
            del self._awaited[index]
        begun = flights[flights["first_token_s"] >= 0]
        mine = np.array([index in self._awaited for index in begun["index"].tolist()], bool)
        for row in np.sort(begun[mine], order="index"):
            index = int(row["index"])
            place, sent_s, note = self._awaited.pop(index)
            if place == row["place"]:
                at_s = float(row["first_token_s"])
                yield FirstToken(index, place, at_s, at_s - sent_s, note)
