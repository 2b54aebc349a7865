"""The operations of Algorithm 1 on the sizes of replicas: merge, split and swap.

Partners, parts and delta are drawn evenly from what leaves every replica with a size that some strategy has. Where
there is nothing to draw from, nothing happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

SizesByReplica = dict[int, int]


def merge(
    sizes: SizesByReplica, r: int, over: Iterable[int], allowed: Collection[int], random: np.random.Generator
) -> None:
    """d_r <- d_r + d_r'; remove r'.

    Args:
        sizes: GPUs of each replica; changed.
        r: An over-utilised replica.
        over: All of them; those that are gone are passed over.
        allowed: Sizes that some strategy has.
        random: Draws r'.
    """
    partners = [o for o in over if o != r and o in sizes and sizes[r] + sizes[o] in allowed]
    if partners:
        sizes[r] += sizes.pop(partners[int(random.integers(len(partners)))])


def split(sizes: SizesByReplica, r: int, allowed: Collection[int], random: np.random.Generator) -> None:
    """Split d_r into (d_r1, d_r2); replace r with r1, r2.

    Args:
        sizes: GPUs of each replica; changed.
        r: An under-utilised replica; it becomes r1, r2 is new.
        allowed: Sizes that some strategy has.
        random: Draws d_r2.
    """
    parts = [part for part in range(1, sizes[r]) if part in allowed and sizes[r] - part in allowed]
    if parts:
        part = parts[int(random.integers(len(parts)))]
        sizes[max(sizes) + 1] = part
        sizes[r] -= part


def swap(
    sizes: SizesByReplica,
    givers: Iterable[int],
    takers: Iterable[int],
    allowed: Collection[int],
    random: np.random.Generator,
) -> None:
    """d_o <- d_o + delta, d_u <- d_u - delta.

    Args:
        sizes: GPUs of each replica; changed.
        givers: Under-utilised replicas that u is drawn from; those that are gone are passed over.
        takers: Over-utilised replicas that o is drawn from.
        allowed: Sizes that some strategy has.
        random: Draws u, o and delta.
    """
    moves = [
        (giver, taker, delta)
        for giver in givers
        for taker in takers
        if giver in sizes and taker in sizes
        for delta in range(1, sizes[giver])
        if sizes[giver] - delta in allowed and sizes[taker] + delta in allowed
    ]
    if moves:
        giver, taker, delta = moves[int(random.integers(len(moves)))]
        sizes[giver] -= delta
        sizes[taker] += delta
