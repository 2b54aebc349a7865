"""Mixers: they turn some requests of any workload into priority or long-context requests.

Both decide request by request (independent draws), so the first requests of a longer workload are treated
alike.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.workload.ragged import gather_rows
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.seeding import stream

PRIORITY_CLASS = "priority"
NORMAL_CLASS = "normal"
LONG_CLASS = "long"


def with_priorities(workload: Workload, share: float, seed: int) -> Workload:
    """Marks a share of the requests as served first.

    Chosen requests get priority 0 and the others 1 (vLLM's convention: the lower is served first). Requests
    of the first class are relabelled "priority" or "normal"; requests of further classes ("long") keep their
    label.

    Args:
        workload: what to mark.
        share: probability that a request is a priority request, 0 to 1.
        seed: which requests are chosen.

    Raises:
        ValueError: the share is not between 0 and 1.
    """
    chosen = _choose(len(workload), share, seed, PRIORITY_CLASS)
    labels = np.where(workload.class_id == 0, np.where(chosen, 0, 1), workload.class_id + 1)
    return replace(
        workload,
        priority=np.where(chosen, 0, 1).astype(np.int32),
        class_id=labels.astype(np.int32),
        classes=(PRIORITY_CLASS, NORMAL_CLASS, *workload.classes[1:]),
    )


def with_long_prompts(workload: Workload, share: float, tokens: int, seed: int) -> Workload:
    """Replaces the prompts of a share of the requests by very long ones, of class "long".

    Arrivals and outputs stay. A replaced prompt has no prefix blocks: it shares nothing with any other.

    Args:
        workload: what to change.
        share: probability that a request becomes long, 0 to 1.
        tokens: length of the long prompts. Leave room for the answer: an engine refuses a prompt whose length
            plus output cap exceeds the model's context.
        seed: which requests are chosen.

    Raises:
        ValueError: the share is not between 0 and 1, or fewer than 1 token.
    """
    if tokens < 1:
        raise ValueError(f"long_input_tokens must be at least 1, got {tokens}")
    chosen = _choose(len(workload), share, seed, LONG_CLASS)
    known = LONG_CLASS in workload.classes
    classes = workload.classes if known else (*workload.classes, LONG_CLASS)
    offsets, ids = workload.hash_offsets, workload.hash_ids
    if offsets is not None and ids is not None:
        lengths = np.diff(offsets)
        kept = ids[np.repeat(~chosen, lengths)]
        offsets, ids = gather_rows(np.where(chosen, 0, lengths), kept, np.arange(len(workload)))
    return replace(
        workload,
        input_tokens=np.where(chosen, tokens, workload.input_tokens).astype(np.int32),
        class_id=np.where(chosen, classes.index(LONG_CLASS), workload.class_id).astype(np.int32),
        classes=classes,
        hash_offsets=offsets,
        hash_ids=ids,
    )


def _choose(requests: int, share: float, seed: int, purpose: str) -> NDArray[np.bool_]:
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"{purpose}_share must be between 0 and 1, got {share}")
    return stream(seed, purpose).random(requests) < share
