"""The arrays that a shared cluster consists of. Times are integers, picoseconds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.state import TOTALS

PS_PER_S = 10**12
NEVER = 2**62

# Phases of a request, the first three as in `envs.interface.sharing.RequestPhase`.
HELD, WAITING, RUNNING, COMING, GONE = range(5)
EMPTY, LOADING, SERVING, RESIZING, UNLOADING = range(5)  # `envs.interface.sharing.InstanceStatus`
SHORTEST_HEADROOM, ROUND_ROBIN, FCFS, EXCLUSIVE, ASK = range(5)  # `envs.interface.sharing.TokenScheduler`
PLACEMENT, OF_FINISHED, OF_OPERATION, SHORTAGE, ITERATION, END = range(6)  # `envs.interface.sharing.Event`
REACHED = 6  # the time asked for, and no event
ALWAYS, AFTER_RELEASE, NO_MORE = range(3)  # `envs.interface.sharing.Retry`
NOT_ASKED, NO_CHOICE = -1, -2  # in place of the slot that the policy gives an iteration to

CLOCK_DTYPE = np.dtype(
    [
        ("now_ps", np.int64),
        ("next_arrival", np.int64),  # row of the workload
        ("next_offer_ps", np.int64),  # when a held request is next to be offered
        ("keep_alive_ps", np.int64),
        ("held_head", np.int64),  # requests at the gateway, a list; -1: none
        ("held_tail", np.int64),
        ("num_held", np.int64),
        ("num_in_system", np.int64),
        ("num_finished", np.int64),  # entries of `finished` since the last decision
        ("num_ooms", np.int64),
        ("scheduler", np.int64),
        ("manages", np.int64),  # whether the policy manages memory
        ("event", np.int64),
        ("event_node", np.int64),
        ("event_instance", np.int64),
        ("event_request", np.int64),
        ("decisions", np.int64),
    ]
)

NODE_ROW_DTYPE = np.dtype(
    [
        ("kind", np.int64),
        ("memory", np.int64),  # bytes
        ("held", np.int64),  # bytes
        ("num_instances", np.int64),
        ("at_work", np.int64),  # slot; -1: idle
        (
            "prefilling",
            np.int64,
        ),  # request that the iteration prefills; -1: it decodes, or the request has left
        ("decodes", np.int64),
        ("begun_ps", np.int64),
        ("due_ps", np.int64),
        ("last", np.int64),  # slot that had the iteration before
        ("busy_ps", np.int64),
        ("used_ps", np.int64),
        ("used_since_ps", np.int64),  # NEVER while it has no instance
        ("asked", np.int64),  # slot that the policy has chosen for the next iteration; NOT_ASKED or NO_CHOICE
        ("asked_prefill", np.int64),  # 1 prefill, 0 decode, -1 either
    ]
)

INSTANCE_ROW_DTYPE = np.dtype(
    [
        ("status", np.int64),
        ("model", np.int64),
        ("weights", np.int64),  # bytes
        ("kv", np.int64),
        ("target", np.int64),
        ("held", np.int64),
        ("pool_blocks", np.int64),
        ("used_blocks", np.int64),
        ("context_tokens", np.int64),  # input and generated tokens of running requests
        ("num_running", np.int64),
        ("num_waiting", np.int64),
        ("running_head", np.int64),
        ("running_tail", np.int64),
        ("waiting_head", np.int64),
        ("waiting_tail", np.int64),
        ("due_ps", np.int64),  # of the operation under way
        ("idle_ps", np.int64),  # since when it has no request; NEVER where it has or does not serve
        ("shortage_ps", np.int64),  # before which nobody is asked about its shortage again
        ("finished", np.int64),  # whether requests have ended since the policy or the manager last looked
        ("operated", np.int64),  # whether an operation is done that nobody has looked at
    ]
)

REQUEST_ROW_DTYPE = np.dtype(
    [
        ("phase", np.int64),
        ("instance", np.int64),
        ("generated", np.int64),
        ("evictions", np.int64),
        ("next", np.int64),
        ("previous", np.int64),
        ("deadline_ps", np.int64),  # of the next token: equation 1 without the present time
        ("held_since_ps", np.int64),
        ("offer_ps", np.int64),  # when it is offered next, while held
        ("retry", np.int64),  # ALWAYS to NO_MORE
        ("releases", np.int64),  # that its model had seen when it was last held
        ("first_scheduled_ps", np.int64),  # -1 until then, as the next two
        ("first_token_ps", np.int64),  # at the client, as the next one
        ("finish_ps", np.int64),
        ("lag_ps", np.int64),  # from a token's end in the instance to the client
        ("last_instance", np.int64),
        ("outcome", np.int64),
    ]
)

# Columns of `stats` beyond TOTALS: the latency cost as two running sums, of weights and of weight times start.
S_WAIT_W, S_WAIT_WS, S_DECODE_W, S_DECODE_WS, S_CLOSED = (len(TOTALS) + i for i in range(5))
NUM_STATS = len(TOTALS) + 5

# Time constants by which the requests of a model are forgotten, s; source: ours.
DEMAND_S = (30.0, 180.0, 1800.0)

PARAMETERS_DTYPE = np.dtype(
    [
        ("slots_per_node", np.int64),
        ("block_tokens", np.int64),
        ("max_running", np.int64),
        ("unload_ps", np.int64),
        ("retry_ps", np.int64),
        ("patience_ps", np.int64),
        ("restart_on_oom", np.int64),
        # of the environment's own memory manager
        ("watermark", np.float64),
        ("least_tokens", np.int64),
        ("mean_output", np.float64),  # before anything has ended
        ("mean_weight", np.float64),  # requests that this counts for
        ("replace_idle", np.int64),  # whether a request may take the place of another model's idle instance
    ]
)


class SharingWorld(NamedTuple):
    """All that changes. N nodes, S slots, R requests of the workload, M models, C classes."""

    clock: NDArray[np.void]  # (1,) CLOCK_DTYPE
    nodes: NDArray[np.void]  # (N,) NODE_ROW_DTYPE
    instances: NDArray[np.void]  # (S,) INSTANCE_ROW_DTYPE
    requests: NDArray[np.void]  # (R,) REQUEST_ROW_DTYPE
    releases: NDArray[
        np.int64
    ]  # (M + 1,), what `envs.interface.sharing.Retry.AFTER_RELEASE` waits for: of each model, of all
    finished: NDArray[np.int64]  # (R,), requests that have ended since the last decision
    outputs: NDArray[np.float64]  # (M, 2), requests of each model that have ended, and their output tokens
    # (M, 2 + len(DEMAND_S)), when the first and the last request of each model came, s, and how many have come,
    # forgotten by each of DEMAND_S, as of the last.
    demand: NDArray[np.float64]
    stats: NDArray[np.float64]  # (C, NUM_STATS)


class SharingTables(NamedTuple):
    """All that stays. K kinds of node, Z sizes of model."""

    arrival_ps: NDArray[np.int64]  # (R,)
    input_tokens: NDArray[np.int64]  # (R,)
    output_tokens: NDArray[np.int64]  # (R,), the true ones, cut where the sequence reaches its model's limit
    model: NDArray[np.int64]  # (R,)
    class_id: NDArray[np.int64]  # (R,)
    ttft_ps: NDArray[np.int64]  # (R,), promised
    tpot_ps: NDArray[np.int64]  # (R,)
    size: NDArray[np.int64]  # (M,)
    weights: NDArray[np.int64]  # (M,), bytes
    token_bytes: NDArray[np.int64]  # (M,), of KV cache
    max_tokens: NDArray[np.int64]  # (M,), of a sequence
    prefill_ps: NDArray[np.int64]  # (K, Z, max_tokens + 1)
    decode_ps: NDArray[np.int64]  # (K, Z, max_running + 1)
    context_ps: NDArray[np.int64]  # (K, Z)
    # What policies and observations take the last three for: as they were profiled.
    profiled_prefill_ps: NDArray[np.int64]
    profiled_decode_ps: NDArray[np.int64]
    profiled_context_ps: NDArray[np.int64]
    resize_fs: NDArray[np.float64]  # (K, 2), of a KV pool: by each byte that is kept, and that is added
    load_ps: NDArray[np.int64]  # (K, Z)
    front_ps: NDArray[
        np.int64
    ]  # (K, Z, 3), to clients: fixed, per token of the prompt, per request that runs beside
    time_factor: NDArray[np.float64]  # (K,), how many times as long as by these tables iterations really take
    parameters: NDArray[np.void]  # (1,) PARAMETERS_DTYPE


def new_world(
    kinds: NDArray[np.int32],
    memory: NDArray[np.int64],
    slots_per_node: int,
    num_requests: int,
    num_models: int,
    num_classes: int,
    keep_alive_ps: int,
) -> SharingWorld:
    """An empty cluster at time zero."""
    clock = np.zeros(1, CLOCK_DTYPE)
    clock["held_head"] = clock["held_tail"] = -1
    clock["next_offer_ps"], clock["keep_alive_ps"] = NEVER, keep_alive_ps
    nodes = np.zeros(len(kinds), NODE_ROW_DTYPE)
    nodes["kind"], nodes["memory"] = kinds, memory
    nodes["at_work"] = nodes["prefilling"] = nodes["last"] = nodes["asked_prefill"] = -1
    nodes["asked"] = NOT_ASKED
    nodes["due_ps"] = nodes["used_since_ps"] = NEVER
    instances = np.zeros(len(kinds) * slots_per_node, INSTANCE_ROW_DTYPE)
    instances["model"] = -1
    for name in ("running_head", "running_tail", "waiting_head", "waiting_tail"):
        instances[name] = -1
    instances["due_ps"] = instances["idle_ps"] = NEVER
    requests = np.zeros(num_requests, REQUEST_ROW_DTYPE)
    requests["phase"] = COMING
    for name in ("instance", "next", "previous", "first_scheduled_ps", "first_token_ps", "finish_ps"):
        requests[name] = -1
    requests["last_instance"] = requests["outcome"] = -1
    return SharingWorld(
        clock,
        nodes,
        instances,
        requests,
        np.zeros(num_models + 1, np.int64),
        np.zeros(num_requests, np.int64),
        np.zeros((num_models, 2)),
        np.zeros((num_models, 2 + len(DEMAND_S))),
        np.zeros((num_classes, NUM_STATS)),
    )


def fork_world(world: SharingWorld) -> SharingWorld:
    """A copy that shares nothing."""
    copies: tuple[Any, ...] = tuple(array.copy() for array in world)
    return SharingWorld(*copies)
