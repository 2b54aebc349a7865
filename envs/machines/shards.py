"""Weights of each GPU in a deployment.

A replica divides layers over its pipeline stages and every layer over the ranks of a stage. Two deployments cut the
layers at different points; a shard is a piece that neither of them cuts, so that a GPU holds it whole or not at all.
The embedding goes with the first stage, the output head with the last. Stages are as equal as they can be, longer ones
first (source: ours). Norms and routers are counted as spread like everything else, key/value projections that are
repeated on several ranks as spread too (source: ours, per mille of the weights).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np

from serving_gym.calibration.models import ModelSpec
from serving_gym.envs.machines.cluster import Deployment, Replica

HEAD_BYTES_PER_WEIGHT = (
    2.0  # embedding and head are held in 16 bits whatever the rest is (`calibration.architecture`)
)


@dataclass(frozen=True)
class Shard:
    """A piece of one layer, with the GPUs that have it and that need it.

    Attributes:
        layer: 0 to num_layers + 1: the embedding, the layers, the head.
        start: Where it begins in the layer's width, ratio.
        end: Where it ends, ratio.
        size_bytes: V_m, bytes.
        sources: S_m, GPUs that hold it.
        targets: T_m, GPUs that need it.
    """

    layer: int
    start: Fraction
    end: Fraction
    size_bytes: float
    sources: tuple[int, ...]
    targets: tuple[int, ...]


@lru_cache(maxsize=256)
def stage_layers(num_layers: int, stages: int) -> tuple[range, ...]:
    """Layers of each stage among 0 to num_layers + 1: the embedding is the first of them, the head the last.

    Args:
        num_layers: Layers of the model.
        stages: Pipeline-parallel degree.
    """
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(num_layers), stages)]).tolist()
    firsts = [0, *(end + 1 for end in ends[:-1])]
    lasts = [*ends[:-1], num_layers + 1]
    return tuple(range(first, last + 1) for first, last in zip(firsts, lasts, strict=True))


def layer_bytes(model: ModelSpec) -> list[float]:
    """(num_layers + 2,), weights of the embedding, of each layer and of the head, bytes."""
    head = model.head_params * HEAD_BYTES_PER_WEIGHT
    each = (model.weight_bytes - 2 * head) / model.num_layers
    return [head, *[each] * model.num_layers, head]


def cuts(deployments: Sequence[Deployment]) -> list[Fraction]:
    """Positions where a replica cuts a layer, including 0 and 1."""
    widths = {replica.kind.tp for deployment in deployments for replica in deployment.replicas} or {1}
    return sorted({Fraction(i, tp) for tp in widths for i in range(tp + 1)})


def holders(replicas: Sequence[Replica], num_layers: int, layer: int, start: Fraction) -> tuple[int, ...]:
    """GPUs that hold the piece of a layer which begins at `start`; no replica cuts it further.

    Args:
        replicas: Replicas of a deployment.
        num_layers: Layers of the model.
        layer: 0 to num_layers + 1.
        start: Ratio.
    """
    found = []
    for replica in replicas:
        stages = stage_layers(num_layers, replica.kind.pp)
        stage = next(number for number, layers in enumerate(stages) if layer in layers)
        found.append(replica.stage(stage)[int(start * replica.kind.tp)])
    return tuple(sorted(found))


def model_shards(model: ModelSpec, before: Deployment, after: Deployment) -> tuple[Shard, ...]:
    """Shards of a model between two deployments, layer by layer.

    Args:
        model: The model.
        before: Source strategy; one without replicas holds nothing.
        after: Target strategy.
    """
    edges = cuts((before, after))
    widths = [float(end - start) for start, end in pairwise(edges)]
    sizes = layer_bytes(model)
    places: dict[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    shards = []
    for layer, size in enumerate(sizes):
        key = tuple(_stage_of(d, model.num_layers, layer) for d in (before, after))
        if key not in places:
            places[key] = [
                (
                    holders(before.replicas, model.num_layers, layer, start),
                    holders(after.replicas, model.num_layers, layer, start),
                )
                for start in edges[:-1]
            ]
        for (start, end), width, (sources, targets) in zip(pairwise(edges), widths, places[key], strict=True):
            shards.append(Shard(layer, start, end, size * width, sources, targets))
    return tuple(shards)


def _stage_of(deployment: Deployment, num_layers: int, layer: int) -> int:
    """A number for the stages that a layer is in, over all replicas: layers of one number are held alike."""
    number = 0
    for replica in deployment.replicas:
        stages = stage_layers(num_layers, replica.kind.pp)
        number = number * replica.kind.pp + next(i for i, layers in enumerate(stages) if layer in layers)
    return number
