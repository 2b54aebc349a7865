"""Model Weights Manager (Flying Serving, section 4.1): tensor-parallel shards as views of one resident copy.

Weights are loaded once per engine and never moved. Merging engines means that each activates part of what it has:

    W_active = W.narrow(dim, rank * size / p, size / p)                                                   (1)

with `dim` the columns of W_QKV and the rows of W_O; matrices are written (inputs, outputs), as in figure 4.

Departure: the text slices the fused W_QKV once. One slice of [Q | K | V] is not a set of heads unless the heads are
stored interleaved, so equation (1) is applied here to each of the three segments; what comes out is still three views.
With more ranks than KV heads (grouped-query attention, about which the text is silent) neighbouring ranks activate the
same KV head, as Megatron-LM and vLLM do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]

ROWS, COLUMNS = 0, 1


def activate(weight: Matrix, dim: int, rank: int, degree: int) -> Matrix:
    """Equation (1): the part of a weight that one rank computes with, as a view.

    Args:
        weight: (inputs, outputs), the whole matrix.
        dim: COLUMNS for column-parallel layers, ROWS for row-parallel ones.
        rank: Place in the group, 0 to degree - 1.
        degree: Engines of the group, p.

    Raises:
        ValueError: the rank is not in the group, or the dimension does not divide by its size.
    """
    size = weight.shape[dim]
    if not 0 <= rank < degree:
        raise ValueError(f"rank must lie between 0 and {degree - 1}, got {rank}")
    if size % degree:
        raise ValueError(f"dimension {dim} has size {size}, which does not divide by degree {degree}")
    part = slice(rank * size // degree, (rank + 1) * size // degree)
    return weight[part] if dim == ROWS else weight[:, part]


@dataclass(frozen=True)
class AttentionShape:
    """Heads of an attention layer.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: Key and value heads; fewer than `num_heads` under grouped-query attention.
        head_dim: Width of a head.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int

    def segments(self, qkv: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """The Q, K and V columns of a fused projection (inputs, (num_heads + 2 num_kv_heads) head_dim), as views."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if qkv.shape[COLUMNS] != q + 2 * kv:
            raise ValueError(
                f"a fused projection of {self} has {q + 2 * kv} columns, got {qkv.shape[COLUMNS]}"
            )
        return qkv[:, :q], qkv[:, q : q + kv], qkv[:, q + kv :]

    def shard(self, degree: int) -> AttentionShape:
        """Heads that one rank of a group computes.

        Raises:
            ValueError: heads do not divide evenly.
        """
        if self.num_heads % degree or max(self.num_kv_heads, degree) % min(self.num_kv_heads, degree):
            raise ValueError(f"{self} does not divide over degree {degree}")
        return AttentionShape(self.num_heads // degree, max(1, self.num_kv_heads // degree), self.head_dim)


def activate_qkv(qkv: Matrix, shape: AttentionShape, rank: int, degree: int) -> tuple[Matrix, Matrix, Matrix]:
    """Column-parallel W_QKV: one rank's heads, three views.

    Args:
        qkv: (inputs, (num_heads + 2 num_kv_heads) head_dim), columns [Q | K | V].
        shape: Heads of the whole layer.
        rank: Place in the group.
        degree: Engines of the group.
    """
    shape.shard(degree)
    q, k, v = shape.segments(qkv)
    kv_degree = min(degree, shape.num_kv_heads)
    kv_rank = rank * kv_degree // degree
    return (
        activate(q, COLUMNS, rank, degree),
        activate(k, COLUMNS, kv_rank, kv_degree),
        activate(v, COLUMNS, kv_rank, kv_degree),
    )


class WeightsManager:
    """The resident weights of one engine and what is active of them."""

    def __init__(self) -> None:
        self._weights: dict[str, tuple[Matrix, int]] = {}
        self.rank, self.degree = 0, 1

    def load(self, name: str, weight: Matrix, dim: int) -> None:
        """Takes a weight, once.

        Raises:
            ValueError: it has been loaded already; parameters are loaded exactly once per engine (section 4.1).
        """
        if name in self._weights:
            raise ValueError(f"weight {name!r} is loaded already; switching does not reload")
        self._weights[name] = (weight, dim)

    def switch(self, rank: int, degree: int) -> None:
        """Takes a place in a group; degree 1 is data parallelism. Nothing is copied.

        Raises:
            ValueError: a weight cannot be divided so; the engine stays as it was.
        """
        for weight, dim in self._weights.values():
            activate(weight, dim, rank, degree)
        self.rank, self.degree = rank, degree

    def active(self, name: str) -> Matrix:
        """What is active of a weight: a view of it."""
        weight, dim = self._weights[name]
        return activate(weight, dim, self.rank, self.degree)
