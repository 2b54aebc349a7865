"""Where a request is tried first (LLM-Mesh, sections 4 and 7.2).

CPU nodes come before GPU nodes. Among several instances of a model the one with the highest batch size comes first: it
can grow further by preemption, and the others are the sooner done and gone. New instances go to the fullest node that
has room, which leaves whole nodes free (ours: the text speaks of instances only). The spread strategy, which the text
sets against it, prefers the lowest batch size and the emptiest node.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Packing(StrEnum):
    """Which of several instances of a model, or of several nodes, is tried first."""

    BIN_PACKING = "bin_packing"
    SPREAD = "spread"


def instance_order(
    candidates: Iterable[tuple[int, int, int]], packing: Packing = Packing.BIN_PACKING
) -> list[int]:
    """Instances in the order in which a request is tried on them.

    Args:
        candidates: (instance, rank of its kind of node, batch size); the lower rank comes first.
        packing: How those of one rank are ordered; equals by number.
    """
    sign = -1 if packing is Packing.BIN_PACKING else 1
    ordered = sorted((rank, sign * batch, instance) for instance, rank, batch in candidates)
    return [instance for _, _, instance in ordered]


def node_order(
    candidates: Iterable[tuple[int, int, float]], packing: Packing = Packing.BIN_PACKING
) -> list[int]:
    """Nodes in the order in which a new instance is tried on them.

    Args:
        candidates: (node, rank of its kind, share of its memory that is promised).
        packing: How those of one rank are ordered; equals by number.
    """
    sign = -1 if packing is Packing.BIN_PACKING else 1
    ordered = sorted((rank, sign * share, node) for node, rank, share in candidates)
    return [node for _, _, node in ordered]
