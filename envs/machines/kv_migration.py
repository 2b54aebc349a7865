"""Migration of KV caches at a switch (section 5.2), in layer-aligned chunks.

Requests that migrate from one replica to another move together, layer by layer, by the greedy plan of the weights.
Chunks consist of as many whole layers as fit; their buffers are allocated in advance. Short requests are
drained instead, see `envs.simulator.deployment.plane`.

Source: ours where the text has no number: the limit of short requests, the size of chunks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from serving_gym.calibration.models import ModelSpec
from serving_gym.envs.machines.cluster import Cluster, Replica
from serving_gym.envs.machines.shards import Shard, stage_layers
from serving_gym.envs.machines.switch_plan import greedy_switch_plan

DRAIN_BELOW_TOKENS = 1024
CHUNK_BYTES = 256e6


@dataclass(frozen=True)
class RequestKV:
    """A request that is running at a switch.

    Attributes:
        tokens: Tokens in its KV cache.
        source: Replica that runs it.
        target: Replica that will run it.
    """

    tokens: int
    source: Replica
    target: Replica


@dataclass(frozen=True)
class Chunk:
    """Layers of the KV of some requests, from one GPU to another.

    Attributes:
        layers: Which layers of the model, 0 to num_layers - 1.
        source: GPU.
        target: GPU.
        size_bytes: Bytes.
    """

    layers: range
    source: int
    target: int
    size_bytes: float


def plan_kv(
    cluster: Cluster,
    model: ModelSpec,
    running: Sequence[RequestKV],
    chunk_bytes: float = CHUNK_BYTES,
) -> tuple[Chunk, ...]:
    """Chunks of the KV of migrating requests. Requests of unchanged replicas do not move.

    Args:
        cluster: The cluster.
        model: The model.
        running: Running requests.
        chunk_bytes: Most bytes of a chunk; one layer may be more.

    Raises:
        ValueError: `chunk_bytes` is not positive.
    """
    if not chunk_bytes > 0:
        raise ValueError(f"chunk_bytes must be positive, got {chunk_bytes}")
    together: defaultdict[tuple[Replica, Replica], list[RequestKV]] = defaultdict(list)
    for kv in running:
        if kv.source != kv.target:
            together[kv.source, kv.target].append(kv)
    groups = together.values()
    return tuple(chunk for group in groups for chunk in _chunks(cluster, model, group, chunk_bytes))


def _chunks(
    cluster: Cluster, model: ModelSpec, group: Sequence[RequestKV], chunk_bytes: float
) -> list[Chunk]:
    """Chunks of requests that migrate from one replica to another."""
    shards = _kv_shards(model, group)
    by_pair: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for transfer in greedy_switch_plan(cluster, shards):
        layers = by_pair[transfer.source, transfer.target]
        layer = shards[transfer.shard].layer
        layers[layer] = layers.get(layer, 0.0) + transfer.size_bytes
    chunks = []
    for (source, target), layers in sorted(by_pair.items()):
        for part, size in _batched(layers, chunk_bytes):
            chunks.append(Chunk(part, source, target, size))
    return chunks


def _batched(layers: dict[int, float], chunk_bytes: float) -> list[tuple[range, float]]:
    """Consecutive layers of one chunk, with their bytes."""
    batches: list[tuple[range, float]] = []
    for layer, size in sorted(layers.items()):
        if batches and batches[-1][0].stop == layer and batches[-1][1] + size <= chunk_bytes:
            part, before = batches[-1]
            batches[-1] = (range(part.start, layer + 1), before + size)
        else:
            batches.append((range(layer, layer + 1), size))
    return batches


def _kv_shards(model: ModelSpec, group: Sequence[RequestKV]) -> list[Shard]:
    """The KV of some requests, layer by layer, cut where one of the two replicas cuts the heads."""
    size = sum(kv.tokens for kv in group) * model.kv_bytes_per_layer_token
    return [
        Shard(layer, start, end, size * width, sources, targets)
        for layer, start, end, width, sources, targets in _kv_pieces(model, group[0].source, group[0].target)
    ]


@lru_cache(maxsize=1024)
def _kv_pieces(
    model: ModelSpec, source: Replica, target: Replica
) -> tuple[tuple[int, Fraction, Fraction, float, tuple[int, ...], tuple[int, ...]], ...]:
    """Layer, begin, end and width of each piece of KV, and the GPUs of the two replicas that hold it."""
    heads = model.num_kv_heads
    parts = [min(replica.kind.tp, heads) for replica in (source, target)]
    edges = sorted({Fraction(i, part) for part in parts for i in range(part + 1)})
    return tuple(
        (
            layer,
            start,
            end,
            float(end - start),
            _kv_holders(model, source, layer, start),
            _kv_holders(model, target, layer, start),
        )
        for layer in range(model.num_layers)
        for start, end in pairwise(edges)
    )


def _kv_holders(model: ModelSpec, replica: Replica, layer: int, start: Fraction) -> tuple[int, ...]:
    """GPUs of a replica that hold a piece of a layer's KV; with more ranks than heads, several."""
    tp, heads = replica.kind.tp, model.num_kv_heads
    stages = stage_layers(model.num_layers, replica.kind.pp)
    stage = replica.stage(next(number for number, layers in enumerate(stages) if layer + 1 in layers))
    part = int(start * min(tp, heads))
    return tuple(gpu for rank, gpu in enumerate(stage) if rank * min(tp, heads) // tp == part)
