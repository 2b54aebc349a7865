"""Proactive defragmentation: an instance preempts its neighbours to take a request (LLM-Mesh, section 7.1).

Only neighbours with a lower batch size than its own, the lowest first, and only if every request of theirs passes
shadow validation on another node. Where one is not enough, the next lowest goes as well (ours: the text speaks of
neighbours and gives no number).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter


def preemptible(neighbours: Iterable[tuple[int, int]], batch: int) -> list[int]:
    """Neighbours that an instance may preempt, in that order.

    Args:
        neighbours: (instance, batch size) of the others on its node; of equals the first goes first.
        batch: Its own batch size.
    """
    return [other for other, size in sorted(neighbours, key=itemgetter(1)) if size < batch]


def preempt(
    neighbours: Iterable[tuple[int, int]],
    batch: int,
    relocate: Callable[[int], bool],
    fits: Callable[[], bool],
) -> list[int] | None:
    """Neighbours to preempt so that an instance can take a request; None where that does not help.

    Args:
        neighbours: (instance, batch size) of the others on its node.
        batch: Its own batch size.
        relocate: Moves all requests of a neighbour elsewhere, in a trial; False where one would miss its SLO, and then
            nothing has been moved.
        fits: Whether the instance passes with what has been relocated so far.
    """
    victims = []
    for other in preemptible(neighbours, batch):
        if relocate(other):
            victims.append(other)
            if fits():
                return victims
    return None
