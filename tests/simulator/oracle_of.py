"""The oracle's twin of a simulator and its workload: same engines, same latencies, same requests."""

from __future__ import annotations

import math

from serving_gym.envs.simulator.kernel.state import ACTIVE, NEVER, ROUTER_NAMES, V0_SWAP, V1, Tables
from serving_gym.envs.simulator.scheduling import QUEUE_ORDERS
from serving_gym.envs.simulator.simulator import Simulator
from tests.simulator.oracle import Cluster, Engine, Kind, Request, Settings


def oracle_of(simulator: Simulator) -> Cluster:
    """A plain-Python cluster in the state of a simulator that was just reset; it has only the engines that serve."""
    cluster, tables = simulator.world.cluster[0], simulator.cluster.tables
    settings = Settings(
        router=ROUTER_NAMES[cluster["router"]],
        order=next(name for name, order in QUEUE_ORDERS.items() if order == cluster["order"]),
        chunked_prefill=bool(cluster["chunked_prefill"]),
        reserve_full_prompt=bool(cluster["reserve_full_prompt"]),
        long_prefill_threshold=int(cluster["long_prefill_threshold"]),
        max_request_tokens=int(simulator.world.endpoints["max_request_tokens"][0]),
        async_scheduling=bool(simulator.cluster.tables.kinds["async_scheduling"][0]),
        scheduler="v1" if simulator.cluster.tables.kinds["scheduler"][0] == V1 else "v0",
        preemption="swap" if simulator.cluster.tables.kinds["scheduler"][0] == V0_SWAP else "recompute",
        swap_blocks=int(simulator.cluster.tables.kinds["swap_blocks"][0]),
        time_limit_ps=math.inf if cluster["time_limit_ps"] == NEVER else int(cluster["time_limit_ps"]),
        prefix_caching=bool(cluster["prefix_caching"]),
        hash_block_tokens=simulator.workload.hash_block_tokens,
    )
    kinds: dict[int, Kind] = {}
    engines: list[Engine] = []
    for slot in simulator.world.engines[simulator.world.engines["status"] == ACTIVE]:
        number = int(slot["kind"])
        kind = kinds.setdefault(number, _kind(tables, number))
        engines.append(Engine(len(engines), kind, settings, int(slot["capacity_blocks"]), int(slot["width"])))
    traffic = simulator.traffic
    columns = (traffic.arrival_ps, traffic.prompt, traffic.output, traffic.max_output, traffic.level)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    arrivals = [Request(index, *row) for index, row in enumerate(rows)]
    _tell_sessions(simulator, arrivals)
    return Cluster(settings=settings, engines=engines, arrivals=arrivals)


def run_oracle(cluster: Cluster, step_ps: int = 10**13) -> None:
    """Serves all of its requests."""
    while cluster.arrived < len(cluster.arrivals) or not all(
        engine.empty and not engine.returning for engine in cluster.engines
    ):
        cluster.advance(cluster.now + step_ps)


def _tell_sessions(simulator: Simulator, requests: list[Request]) -> None:
    """Tells requests whom they wait for, how patient they are, and what their prompts are made of."""
    workload, traffic = simulator.workload, simulator.traffic
    for request in requests:
        row = request.index
        if workload.after is not None and workload.after_offsets is not None:
            begin, end = workload.after_offsets[row], workload.after_offsets[row + 1]
            request.after = tuple(workload.after[begin:end].tolist())
            request.delay_ps = max(int(simulator.world.turns["delay_ps"][row]), 0)
        request.in_session = workload.session_id is not None and bool(workload.session_id[row] >= 0)
        if len(traffic.patience_ps) and traffic.patience_ps[row] < NEVER:
            request.patience_ps = int(traffic.patience_ps[row])
        if workload.hash_ids is not None and workload.hash_offsets is not None:
            begin, end = workload.hash_offsets[row], workload.hash_offsets[row + 1]
            request.hash_ids = tuple(workload.hash_ids[begin:end].tolist())


def _kind(tables: Tables, number: int) -> Kind:
    return Kind(
        decode_ps=tables.decode_ps[number].tolist(),
        mixed_ps=tables.mixed_ps[number].tolist(),
        sequence_ps=int(tables.kinds["sequence_ps"][number]),
        kv_ps=int(tables.kinds["kv_ps"][number]),
        attn_fs=int(tables.kinds["attn_fs"][number]),
        block_size=int(tables.kinds["block_size"][number]),
        max_num_seqs=int(tables.kinds["max_num_seqs"][number]),
        max_batched_tokens=int(tables.kinds["max_batched_tokens"][number]),
        load_ps=int(tables.kinds["load_ps"][number]),
        speed=float(tables.kinds["speed"][number]),
        front_ps=_front(tables, number),
    )


def _front(tables: Tables, number: int) -> tuple[int, int, int]:
    if not len(tables.fronts):
        return (0, 0, 0)
    front = tables.fronts[number]
    assert front["iterations"] == 0
    return int(front["fixed_ps"]), int(front["token_ps"]), int(front["request_ps"])
