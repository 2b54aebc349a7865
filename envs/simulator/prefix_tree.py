"""The tree of shared prefixes of a workload's requests; blocks that are always cached together form one node.

A workload names the blocks of its prompts by ids: equal ids, equal text from the beginning of the prompt. Ids that only
one request has can never be hit by another and are left out. Of the others, neighbours that occur in the same requests
form one node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel.state import CHAIN_DTYPE, Chains, no_chains
from serving_gym.envs.workload.schema import Workload


def make_chains(workload: Workload, block_sizes: NDArray[np.int64]) -> Chains:
    """Every request's path through the tree, for engines of each block size.

    Ids beyond the last token of a prompt name what the request generates (a later turn of a conversation repeats it).

    Args:
        workload: Requests, with or without `hash_ids`.
        block_sizes: (block sizes,) tokens a KV block, distinct and ascending.

    Raises:
        ValueError: an id follows different ids in two requests, or a block size neither divides nor is a multiple
            of the workload's `hash_block_tokens`.
    """
    if workload.hash_ids is None or workload.hash_offsets is None:
        return no_chains(len(workload), len(block_sizes))
    starts, parts, num_nodes, num_rows = [], [], 0, 0
    for block_size in block_sizes:
        start, rows = _chains_of(workload, int(block_size))
        starts.append(start + num_rows)
        nodes = int(rows["node"].max(initial=-1)) + 1
        rows["node"] += num_nodes
        parts.append(rows)
        num_nodes += nodes
        num_rows += len(rows)
    return Chains(np.stack(starts).astype(np.int32), np.concatenate(parts), num_nodes)


def _covered_tokens(workload: Workload, num_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens of each request that its ids name; the last id of a prompt may name a block that is partly filled.

    Ids beyond it name the answer. So does the last one where it has room for all of the answer of a session's request.
    """
    prompt = workload.input_tokens.astype(np.int64)
    named = num_ids * workload.hash_block_tokens
    generated = np.maximum(num_ids - -(-prompt // workload.hash_block_tokens), 0) > 0
    whole = prompt + workload.output_tokens
    if workload.session_id is not None:
        generated |= (workload.session_id >= 0) & (num_ids > 0) & (named >= whole)
    most = np.where(generated, whole, prompt)
    return np.asarray(np.minimum(named, most), np.int64)


def _blocks_of(
    workload: Workload, block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """Offsets and ids of blocks of `block_size` tokens or more, full blocks of each request, and blocks an id names."""
    assert workload.hash_ids is not None
    assert workload.hash_offsets is not None
    ids, offsets = workload.hash_ids.astype(np.int64), workload.hash_offsets
    size = workload.hash_block_tokens
    counts = np.diff(offsets)
    limit = _covered_tokens(workload, counts) // block_size
    if size % block_size == 0:
        return offsets, ids, limit, size // block_size
    if block_size % size:
        raise ValueError(
            f"cluster.prefix_caching needs KV blocks ({block_size} tokens) that divide the workload's "
            f"hash_block_tokens ({size}) or are a multiple of it"
        )
    each = block_size // size
    inside = np.arange(len(ids)) - np.repeat(offsets[:-1], counts)
    last_of_block = inside % each == each - 1
    taken = np.concatenate([[0], np.cumsum(counts // each)])
    return taken, ids[last_of_block], limit, 1


def _chains_of(workload: Workload, block_size: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """First row of each request's chain, (N + 1,), and the rows."""
    offsets, ids, limit, unit = _blocks_of(workload, block_size)
    counts = np.diff(offsets)
    owner = np.repeat(np.arange(len(workload)), counts)
    inside = np.arange(len(ids)) - np.repeat(offsets[:-1], counts)
    _, first_seen, name, times = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
    before = np.where(inside > 0, np.concatenate([[-1], name[:-1]]), -1)
    if (before != before[first_seen][name]).any():
        row = int(owner[np.argmax(before != before[first_seen][name])])
        raise ValueError(
            f"workload {workload.name!r}: row {row}, column 'hash_ids': an id follows another than in an earlier row; "
            "equal ids must mean equal prompts up to there"
        )
    shared = times[name] > 1
    opens = shared & ((inside == 0) | (times[name] != np.concatenate([[0], times[name][:-1]])))
    useful = shared & (inside * unit < limit[owner])
    opens &= useful
    last = np.flatnonzero(useful & np.concatenate([(opens | ~useful)[1:], [True]]))
    begin = np.flatnonzero(opens)
    rows = np.zeros(len(begin), CHAIN_DTYPE)
    rows["node"] = np.unique(name[begin], return_inverse=True)[1]
    rows["end"] = np.minimum((inside[last] + 1) * unit, limit[owner[last]])
    per_request = np.bincount(owner[begin], minlength=len(workload))
    return np.concatenate([[0], np.cumsum(per_request)]), rows
