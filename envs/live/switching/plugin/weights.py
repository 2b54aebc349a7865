"""Model Weights Manager (Flying Serving, section 4.1): shards of every degree as views of one resident copy.

Weights are loaded once per rank, whole, and never moved. What a rank of a group of p computes with is

    W_active = W.narrow(dim, rank * size / p, size / p)                                                   (1)

with `dim` the outputs of column-parallel layers and the inputs of row-parallel ones. One slice of a fused projection
[Q | K | V] or [gate | up] is a set of heads only if the heads lie interleaved: rows are stored as

    [Q_0 | K_0 | V_0 | Q_1 | K_1 | V_1 | ...]    for as many pieces as the node has ranks,

so that every rank of every degree holds whole pieces, one view each ("contiguous in virtual memory", 4.1.2). A rank of
fewer ranks than pieces computes several, and its output is put back into the order [Q | K | V] that the model expects:
a copy of activations, never of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


def interleaved_rows(segments: Sequence[int], pieces: int) -> Tensor:
    """Order of the rows of a fused weight in storage.

    Args:
        segments: rows of each part, as in [Q | K | V].
        pieces: ranks of the widest group.

    Returns:
        (sum of segments,) int64: row of the usual order for each row in storage.

    Raises:
        ValueError: a part does not divide into the pieces.
    """
    if any(size % pieces for size in segments):
        raise ValueError(f"parts of {tuple(segments)} rows do not divide over {pieces} ranks")
    starts = [sum(segments[:k]) for k in range(len(segments))]
    parts = [
        torch.arange(start, start + size).view(pieces, -1)
        for start, size in zip(starts, segments, strict=True)
    ]
    return torch.cat(parts, dim=1).flatten()


def restore_order(outputs: Tensor, segments: Sequence[int], pieces: int) -> Tensor:
    """Puts the outputs of interleaved rows back into the usual order.

    Args:
        outputs: (..., sum of segments), pieces one after the other.
        segments: outputs of each part on this rank.
        pieces: pieces that this rank holds.
    """
    by_piece = outputs.view(*outputs.shape[:-1], pieces, -1)
    parts = torch.split(by_piece, [size // pieces for size in segments], dim=-1)
    return torch.cat([part.flatten(-2) for part in parts], dim=-1)


def active(weight: Tensor, dim: int, rank: int, degree: int) -> Tensor:
    """Equation (1): a rank's shard, as a view.

    Raises:
        ValueError: the dimension does not divide by the degree.
    """
    size = weight.shape[dim]
    if size % degree:
        raise ValueError(f"dimension {dim} has size {size}, which does not divide by degree {degree}")
    return weight.narrow(dim, rank * size // degree, size // degree)


@dataclass(frozen=True)
class Kinds:
    """vLLM's classes of parallel layers; arguments so that this file needs none of them."""

    column: type[nn.Module]
    row: type[nn.Module]
    embedding: type[nn.Module]


@dataclass(frozen=True)
class Restoring:
    """The forward of a fused column-parallel layer that holds several pieces."""

    forward: Callable[..., Any]
    segments: tuple[int, ...]
    pieces: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the layer's own forward; its output comes in the usual order."""
        result = self.forward(*args, **kwargs)
        if not isinstance(result, tuple):
            return restore_order(result, self.segments, self.pieces)
        return (restore_order(result[0], self.segments, self.pieces), *result[1:])


def fused(layer: nn.Module) -> bool:
    """Whether a column-parallel layer computes several projections at once."""
    return len(layer.output_partition_sizes) > 1  # type: ignore[arg-type]


def interleave(model: nn.Module, kinds: Kinds, pieces: int) -> None:
    """Reorders the fused weights of a whole model, once, layer by layer.

    Raises:
        ValueError: a fused layer cannot be divided over the pieces.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, kinds.column) and fused(layer):
            if getattr(layer, "gather_output", False):
                raise ValueError(f"{name} gathers the output of a fused projection, which cannot switch")
            order = interleaved_rows(layer.output_partition_sizes, pieces)  # type: ignore[arg-type]
            for parameter in layer.parameters(recurse=False):
                parameter.data = parameter.data[order.to(parameter.device)]


def expect_pieces(model: nn.Module, kinds: Kinds, pieces: int) -> None:
    """Makes the fused layers of a model that holds several pieces give their outputs in the usual order."""
    if pieces == 1:
        return
    for layer in model.modules():
        if isinstance(layer, kinds.column) and fused(layer):
            segments = tuple(layer.output_partition_sizes)  # type: ignore[arg-type]
            layer.forward = Restoring(layer.forward, segments, pieces)


def share(whole: nn.Module, shard: nn.Module, kinds: Kinds, rank: int, degree: int) -> None:
    """Makes every parameter and buffer of a sharded model a view of the whole one.

    Args:
        whole: model of degree 1, its fused weights interleaved.
        shard: the same model as vLLM builds it for a degree.
        kinds: vLLM's layers.
        rank: place in the group.
        degree: ranks of the group.

    Raises:
        ValueError: a parameter differs in shape and belongs to no layer that is known to be sharded.
    """
    layers = dict(shard.named_modules(remove_duplicate=False))
    resident = dict(whole.named_parameters(remove_duplicate=False)) | dict(
        whole.named_buffers(remove_duplicate=False)
    )
    named = [*shard.named_parameters(remove_duplicate=False), *shard.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        layer = layers[name.rpartition(".")[0]]
        tensor.data = _view(name, resident[name].data, tensor, layer, kinds, rank, degree)


def _view(
    name: str, weight: Tensor, tensor: Tensor, layer: nn.Module, kinds: Kinds, rank: int, degree: int
) -> Tensor:
    if weight.shape == tensor.shape:
        return weight
    dim = _sharded_dim(layer, kinds)
    view = weight if dim is None else active(weight, dim, rank, degree)
    if view.shape != tensor.shape:
        raise ValueError(
            f"cannot tell how {name} of shape {tuple(weight.shape)} is sharded: a rank of {degree} has "
            f"{tuple(tensor.shape)} in a {type(layer).__name__}"
        )
    return view


def _sharded_dim(layer: nn.Module, kinds: Kinds) -> int | None:
    if isinstance(layer, (kinds.column, kinds.embedding)):
        return 0
    return 1 if isinstance(layer, kinds.row) else None


def distinct_bytes(models: Sequence[nn.Module]) -> int:
    """Memory that the parameters of some models take together: storages are counted once."""
    storages = {}
    for model in models:
        for parameter in model.parameters():
            storage = parameter.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
