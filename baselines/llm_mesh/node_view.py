"""From what a policy knows of the cluster to what shadow validation takes of one node."""

from __future__ import annotations

from functools import partial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.baselines.llm_mesh.quantification import Quantification, quantify
from serving_gym.baselines.llm_mesh.shadow_validation import FloatArray, IntArray, NodeView, Phase
from serving_gym.envs.interface.sharing import InstanceStatus, RequestPhase, SharingSetting
from serving_gym.envs.sharing.state import SharingState


def quantify_setting(setting: SharingSetting, max_batch: int) -> Quantification:
    """Profiles every size of model on every kind of node; row kind * sizes + size.

    Args:
        setting: What is known beforehand; its tables are what a profiling run would find.
        max_batch: B_max.
    """
    pairs = [(kind, size) for kind in range(len(setting.kinds)) for size in range(len(setting.sizes))]
    return quantify(
        [partial(_prefill_s, setting, *pair) for pair in pairs],
        [partial(setting.iteration_s, *pair) for pair in pairs],
        setting.prefill_s.shape[2] - 1,
        min(max_batch, setting.max_num_seqs),
    )


def _prefill_s(setting: SharingSetting, kind: int, size: int, length: int) -> float:
    return float(setting.prefill_s[kind, size, length])


def profiles_of(setting: SharingSetting) -> IntArray:
    """(N, models), row of the quantification of each model on each node."""
    sizes = np.array([model.size for model in setting.models], np.int64)
    return np.asarray(setting.node_kinds[:, None] * len(setting.sizes) + sizes, np.int64)


def view_of(state: SharingState, setting: SharingSetting, node: int, profiles: IntArray) -> NodeView:
    """One node. Its instances are its slots, empty ones included, so that slot s is instance s % slots_per_node.

    Args:
        state: The state.
        setting: What was known beforehand.
        node: Which.
        profiles: (N, models), as `profiles_of`.
    """
    width = setting.slots_per_node
    row = state.nodes[node]
    at_work = int(row["at_work"])
    columns = _gather(
        state.instances,
        state.requests,
        node * width,
        width,
        state.now_s,
        int(row["prefilling"]) if at_work >= 0 else -1,
        profiles[node],
    )
    return NodeView(
        state.now_s, at_work - node * width if at_work >= 0 else -1, float(row["due_s"]), *columns
    )


@njit(cache=True)
def _gather(
    instances: NDArray[np.void],
    requests: NDArray[np.void],
    first: int,
    width: int,
    now_s: float,
    prefilling: int,
    profiles: IntArray,
) -> tuple[IntArray, FloatArray, IntArray, IntArray, FloatArray, FloatArray]:
    profile = np.zeros(width, np.int64)
    ready_s = np.full(width, now_s)
    for k in range(width):
        instance = instances[first + k]
        if instance.model >= 0:
            profile[k] = profiles[instance.model]
        if instance.status == InstanceStatus.LOADING or instance.status == InstanceStatus.RESIZING:
            ready_s[k] = instance.operation_due_s
    count = 0
    for r in range(len(requests)):
        count += first <= requests[r].instance < first + width
    where = np.empty(count, np.int64)
    phase = np.empty(count, np.int64)
    deadline_s = np.empty(count, np.float64)
    length = np.empty(count, np.float64)
    at, before_s = 0, np.nextafter(now_s, -np.inf)
    for r in range(len(requests)):
        row = requests[r]
        if not first <= row.instance < first + width:
            continue
        where[at] = row.instance - first
        if row.phase == RequestPhase.RUNNING:
            phase[at] = np.int64(Phase.RUNNING)
        elif row.index == prefilling:
            phase[at] = np.int64(Phase.PREFILLING)
        else:
            phase[at] = np.int64(Phase.WAITING)
        deadline_s[at] = row.arrival_s + row.ttft_slo_s + row.tpot_slo_s * row.generated_tokens
        length[at] = row.input_tokens + row.generated_tokens
        if row.phase != RequestPhase.RUNNING and deadline_s[at] < ready_s[where[at]]:
            deadline_s[at] = min(deadline_s[at], before_s)  # nothing keeps it from being late
        at += 1
    return profile, ready_s, where, phase, deadline_s, length


@njit(cache=True)
def expected_tokens(requests: NDArray[np.void], instance: int, mean_output_tokens: float) -> float:
    """The sum of equation 2 over the requests of an instance, waiting ones included."""
    total = 0.0
    for r in range(len(requests)):
        row = requests[r]
        if row.instance == instance:
            total += row.input_tokens + max(row.generated_tokens, mean_output_tokens)
    return total


@njit(cache=True)
def needed_tokens(requests: NDArray[np.void], instance: int, block_tokens: int) -> float:
    """Pool with which an instance can go on: whole blocks for the next token of each running request.

    Where none runs, the largest of those that wait.
    """
    running = waiting = 0
    for r in range(len(requests)):
        row = requests[r]
        if row.instance == instance:
            tokens = (row.input_tokens + row.generated_tokens) // block_tokens * block_tokens + block_tokens
            if row.phase == RequestPhase.RUNNING:
                running += tokens
            else:
                waiting = max(waiting, tokens)
    return float(running) if running > 0 else float(waiting)
