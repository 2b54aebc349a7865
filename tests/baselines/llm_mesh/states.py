"""Small shared clusters, told by hand."""

import numpy as np

from serving_gym.calibration.transitions import KV_COPY_S_PER_BYTE, KV_CREATE_S_PER_BYTE
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.sharing import (
    FINISHED_DTYPE,
    INSTANCE_DTYPE,
    NODE_DTYPE,
    REQUEST_DTYPE,
    Event,
    InstanceStatus,
    RequestPhase,
    SharedModel,
    SharingSetting,
)
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.sharing.state import SharingState

TOKEN = 1000  # bytes of KV cache
WEIGHTS = 1_000_000  # as 1000 tokens
WIDTH = 4


def setting(kinds=("gpu", "gpu"), memory_tokens=10_000, num_models=3, **changes):
    """Nodes of 10 000 tokens, weights of 1000; a prefill takes 1 ms a token on GPUs, a decode 10 ms and 2 ms each."""
    names = tuple(sorted(set(kinds)))
    slow = np.array([2.0 if name == "cpu" else 1.0 for name in names])[:, None, None]
    values = {
        "kinds": names,
        "node_kinds": np.array([names.index(kind) for kind in kinds], np.int32),
        "memory_bytes": np.full(len(kinds), memory_tokens * TOKEN, np.int64),
        "slots_per_node": WIDTH,
        "sizes": ("llama-2-7b",),
        "models": tuple(SharedModel(f"m{k}", 0, WEIGHTS, TOKEN, 1000) for k in range(num_models)),
        "prefill_s": slow * 0.001 * np.arange(1001),
        "decode_s": slow * (0.010 + 0.002 * np.arange(33)),
        "context_s": np.zeros((len(names), 1)),
        "max_num_seqs": 32,
        "block_tokens": 10,
        "mean_output_tokens": 100.0,
        "keep_alive_s": 1.0,
        "load_s": np.full((len(names), 1), 0.5),
        "unload_s": 0.1,
        "resize_s_per_byte": np.full((len(names), 2), (KV_COPY_S_PER_BYTE, KV_CREATE_S_PER_BYTE)),
    }
    return SharingSetting(**{**values, **changes})


def spec(shared):
    """What a policy is told."""
    return PolicySpec(cluster=None, slos=(), classes=(), decision_interval_s=0.25, setting=shared)


def instance(slot, model, requests=0, kv_tokens=1000, status=InstanceStatus.SERVING, **changes):
    """An instance with so many running requests of 100 tokens."""
    return {
        "slot": slot,
        "model": model,
        "requests": requests,
        "kv_tokens": kv_tokens,
        "status": status,
        **changes,
    }


def state(
    shared,
    instances=(),
    offered=None,
    event=Event.PLACEMENT,
    at=-1,
    now_s=10.0,
    finished=(),
    held=(),
    deadline_s=2.0,
):
    """A state.

    Args:
        shared: The setting.
        instances: As `instance` makes them.
        offered: (model, input tokens) of the request to place.
        event: Why the policy is asked.
        at: Slot of the event.
        now_s: Time.
        finished: (model, slot, output tokens) of requests that are done.
        held: (model, input tokens) of others that wait at the gateway.
        deadline_s: From now until the next token of running requests is due.
    """
    nodes, slots = np.zeros(shared.num_nodes, NODE_DTYPE), np.zeros(shared.num_slots, INSTANCE_DTYPE)
    nodes["kind"], nodes["memory_bytes"], nodes["at_work"] = shared.node_kinds, shared.memory_bytes, -1
    nodes["prefilling"], nodes["due_s"] = -1, now_s
    slots["model"] = slots["node"] = -1
    slots["operation_due_s"] = now_s
    rows = []
    for own in instances:
        slot, node = own["slot"], own["slot"] // WIDTH
        kv_bytes = own["kv_tokens"] * TOKEN
        slots[slot]["status"], slots[slot]["model"], slots[slot]["node"] = own["status"], own["model"], node
        slots[slot]["num_running"], slots[slot]["weights_bytes"] = own["requests"], WEIGHTS
        slots[slot]["kv_bytes"] = slots[slot]["kv_target_bytes"] = kv_bytes
        slots[slot]["operation_due_s"] = own.get("due_s", now_s)
        nodes[node]["num_instances"] += 1
        nodes[node]["held_bytes"] += WEIGHTS + kv_bytes
        for _ in range(own["requests"]):
            due_s = now_s + own.get("deadline_s", deadline_s)
            rows.append((own["model"], slot, RequestPhase.RUNNING, own.get("length", 100) - 10, 10, due_s))
    waiting = [*held, *([offered] if offered else [])]
    rows += [(model, -1, RequestPhase.HELD, length, 0, now_s + 2.0) for model, length in waiting]
    requests = np.zeros(len(rows), REQUEST_DTYPE)
    for k, (model, slot, phase, length, generated, due_s) in enumerate(rows):
        requests[k]["index"], requests[k]["model"], requests[k]["instance"] = k, model, slot
        requests[k]["phase"], requests[k]["input_tokens"] = phase, length
        requests[k]["generated_tokens"] = generated
        requests[k]["ttft_slo_s"], requests[k]["tpot_slo_s"] = 2.0, 0.25
        requests[k]["arrival_s"] = due_s - 2.0 - 0.25 * generated
        requests[k]["first_token_s"] = now_s - 1.0 if generated else -1.0
    done = np.zeros(len(finished), FINISHED_DTYPE)
    for k, (model, slot, output) in enumerate(finished):
        done[k]["index"], done[k]["model"], done[k]["instance"] = 1000 + k, model, slot
        done[k]["output_tokens"] = output
    return SharingState(
        now_s=now_s,
        event=event,
        offered=len(rows) - 1 if offered else -1,
        node=at // WIDTH if at >= 0 else -1,
        instance=at,
        nodes=nodes,
        instances=slots,
        requests=requests,
        finished=done,
        runnable=slots["num_running"] > 0,
        num_held=len(waiting),
        num_ooms=0,
        totals=np.zeros((1, len(TOTALS))),
        coming_s=lambda: np.zeros(0),
    )
