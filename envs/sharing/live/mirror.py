"""What launched servers are, written as the simulator would have it: one encoding, one mask, one state for both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.placement import Observations
from serving_gym.envs.interface.metrics import UNFINISHED
from serving_gym.envs.interface.sharing import Event, InstanceStatus
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.live.ledger import Ledger
from serving_gym.envs.sharing.config import SharingScales
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.sharing.live.fleet import Asked, SharedFleet
from serving_gym.envs.simulator.sharing.arrays import (
    COMING,
    DEMAND_S,
    EMPTY,
    GONE,
    HELD,
    NEVER,
    PS_PER_S,
    RUNNING,
    WAITING,
)
from serving_gym.envs.simulator.sharing.decisions import look, pool_for
from serving_gym.envs.simulator.sharing.features import CLUSTER_FEATURES, PLACE_FEATURES, REQUEST_FEATURES
from serving_gym.envs.simulator.sharing.simulator import SCHEDULERS

_CAN_TAKE, _DEMAND = PLACE_FEATURES.index("can_take"), PLACE_FEATURES.index("kv_demand")


class Mirror:
    """Writes the simulated world of an episode after the live one; its time stands still between two looks.

    What servers do not tell is written as the simulator would know it least: a node is never seen at work, as
    iterations of its servers overlap, and nothing is ever evicted.

    Args:
        episode: Whose world is written.
        fleet: What it is written after.
    """

    def __init__(self, episode: SharingEpisode, fleet: SharedFleet) -> None:
        self.episode, self.fleet = episode, fleet
        scales: SharingScales = episode.config.scales
        self._scales = np.array([getattr(scales, item.name) for item in fields(scales)])

    def reflect(self, asked: Asked) -> float:
        """Writes everything down; returns the running latency cost."""
        self._write_clock(asked)
        latency_cost = self.fleet.ask_ledger(self._write_requests)
        self._write_instances()
        self._write_nodes()
        return latency_cost

    def observe(self) -> Observations:
        """What the policy sees of what was written last, and what it may do.

        A KV pool never grows here: an instance takes only what fits the one that it has, and a new one is no choice
        where the envelope leaves it no slot.
        """
        simulator, setting = self.episode.simulator, self.episode.setting
        rows = setting.num_slots + setting.num_nodes
        places = np.zeros((rows, len(PLACE_FEATURES)), np.float32)
        request = np.zeros(len(REQUEST_FEATURES), np.float32)
        cluster = np.zeros(len(CLUSTER_FEATURES) + len(setting.kinds), np.float32)
        mask = np.zeros(rows + 1, np.bool_)
        look(simulator.world, simulator.tables, self._scales, places, request, cluster, mask)
        fits = np.append(places[: setting.num_slots, _DEMAND] <= 1.0, self._has_slot())
        mask[:-1] &= fits
        places[:, _CAN_TAKE] *= fits
        return Observations(
            places[None], request[None], cluster[None], mask[None], np.zeros((1, 0), np.float32)
        )

    def new_pool(self, node: int, row: int) -> int:
        """KV pool that the environment's manager gives a new instance for a request, bytes; -1: there is no room."""
        simulator = self.episode.simulator
        return int(pool_for(simulator.world, simulator.tables, node, row))

    def warm_up(self) -> None:
        """Looks at a world in which nothing has happened, so that nothing is compiled while requests wait."""
        self.observe()
        self.new_pool(0, 0)
        self.episode.simulator.shown()

    def has_place(self, row: int) -> bool:
        """Whether some place could take a request of the gateway now."""
        self.reflect(Asked(Event.PLACEMENT, row))
        return bool(self.observe().masks[0, :-1].any())

    def _has_slot(self) -> NDArray[np.bool_]:
        """(N,), which nodes have an empty slot that may be reconfigured."""
        instances = self.fleet.instances
        return np.array(
            [
                any(instances.here[i] is None and not instances.refuses(i) for i in instances.on_node(node))
                for node in range(self.episode.setting.num_nodes)
            ]
        )

    # -- part by part --------------------------------------------------------------------------------------------------

    def _write_clock(self, asked: Asked) -> None:
        fleet, clock = self.fleet, self.episode.simulator.world.clock[0]
        clock["now_ps"] = round(fleet.now_s * PS_PER_S)
        clock["keep_alive_ps"] = round(fleet.keep_alive_s * PS_PER_S)
        clock["manages"], clock["decisions"] = fleet.manages, fleet.decisions
        clock["scheduler"] = SCHEDULERS.index(self.episode.simulator.scheduler)
        clock["num_ooms"] = fleet.instances.losses
        clock["event"], clock["event_request"] = int(asked.event), asked.request
        clock["event_node"], clock["event_instance"] = asked.node, asked.instance
        world = self.episode.simulator.world
        world.releases[:] = fleet.instances.releases
        world.outputs[:] = fleet.outputs
        world.finished[: len(fleet.ended)] = fleet.ended
        clock["num_finished"] = len(fleet.ended)

    def _write_requests(self, ledger: Ledger) -> float:
        """Writes requests, and the totals; called in the loop's thread, where the books stand still."""
        world, tables, fleet = self.episode.simulator.world, self.episode.simulator.tables, self.fleet
        requests, clock, arrived = world.requests, world.clock[0], ledger.arrived
        known = requests[:arrived]
        world.demand[:] = demand_of(
            tables.arrival_ps[:arrived] / PS_PER_S, tables.model[:arrived], len(world.demand)
        )
        requests["phase"][arrived:] = COMING
        known["phase"] = np.where(ledger.outcome[:arrived] == UNFINISHED, HELD, GONE)
        known["outcome"] = ledger.outcome[:arrived]
        known["generated"] = ledger.generated[:arrived]
        known["last_instance"] = ledger.engine[:arrived]
        known["first_token_ps"] = _picoseconds(ledger.first_token_s[:arrived])
        known["finish_ps"] = _picoseconds(ledger.finish_s[:arrived])
        known["deadline_ps"] = (
            tables.arrival_ps[:arrived]
            + tables.ttft_ps[:arrived]
            + known["generated"] * tables.tpot_ps[:arrived]
        )
        for name in ("instance", "next", "previous"):
            known[name] = -1
        lists: dict[tuple[int, int], list[int]] = defaultdict(list)
        inside = np.flatnonzero(known["phase"] == HELD).tolist()
        for row in inside:
            slot = fleet.placed.get(row, -1)
            if slot >= 0:
                known["phase"][row] = RUNNING if ledger.generated[row] else WAITING
                known["instance"][row] = slot
            lists[slot, int(known["phase"][row])].append(row)
            held = fleet.held.get(row)
            if held is not None:
                known["held_since_ps"][row] = round(held.since_s * PS_PER_S)
        for name in ("running_head", "running_tail", "waiting_head", "waiting_tail"):
            world.instances[name] = -1
        clock["held_head"] = clock["held_tail"] = -1
        for (slot, phase), rows in lists.items():
            self._link(slot, phase, rows)
        clock["next_arrival"], clock["num_in_system"] = arrived, len(inside)
        clock["num_held"] = len(lists.get((-1, HELD), ()))
        world.stats[:, : len(TOTALS)] = ledger.totals
        return ledger.latency_cost(fleet.now_s)

    def _link(self, slot: int, phase: int, rows: Sequence[int]) -> None:
        """Makes a list of requests."""
        world = self.episode.simulator.world
        world.requests["next"][rows[:-1]] = rows[1:]
        world.requests["previous"][rows[1:]] = rows[:-1]
        if slot < 0:
            world.clock["held_head"], world.clock["held_tail"] = rows[0], rows[-1]
            return
        name = "running" if phase == RUNNING else "waiting"
        instance = world.instances[slot]
        instance[f"{name}_head"], instance[f"{name}_tail"] = rows[0], rows[-1]

    def _write_instances(self) -> None:
        world, tables, setting = (
            self.episode.simulator.world,
            self.episode.simulator.tables,
            self.episode.setting,
        )
        requests, now_s = world.requests, self.fleet.now_s
        for i, here in enumerate(self.fleet.instances.here):
            row = world.instances[i]
            mine = np.flatnonzero(requests["instance"] == i)
            running = mine[requests["phase"][mine] == RUNNING]
            tokens = tables.input_tokens[running] + requests["generated"][running]
            row["num_running"], row["num_waiting"] = len(running), len(mine) - len(running)
            row["context_tokens"] = tokens.sum()
            row["used_blocks"] = (-(-tokens // setting.block_tokens)).sum()
            row["due_ps"] = row["idle_ps"] = NEVER
            if here is None:
                row["status"], row["model"] = EMPTY, -1
                for name in ("weights", "kv", "target", "held", "pool_blocks"):
                    row[name] = 0
                continue
            own = setting.models[here.model]
            loading = here.status is InstanceStatus.LOADING
            row["status"], row["model"], row["weights"] = int(here.status), here.model, own.weights_bytes
            row["kv"], row["target"] = 0 if loading else here.kv_bytes, here.kv_bytes
            row["held"] = own.weights_bytes + here.kv_bytes
            row["pool_blocks"] = row["kv"] // (own.kv_bytes_per_token * setting.block_tokens)
            if here.status is not InstanceStatus.SERVING:
                kind = int(setting.node_kinds[i // setting.slots_per_node])
                takes_s = float(setting.load_s[kind, own.size]) if loading else setting.unload_s
                row["due_ps"] = round(max(here.begun_s + takes_s, now_s) * PS_PER_S)
            elif here.idle_since_s < float("inf"):
                row["idle_ps"] = round(here.idle_since_s * PS_PER_S)

    def _write_nodes(self) -> None:
        fleet, world = self.fleet, self.episode.simulator.world
        busy_s = fleet.engines()["busy_s"]
        used_s = fleet.used_s
        for node in range(len(world.nodes)):
            row, slots = world.nodes[node], list(fleet.instances.on_node(node))
            row["num_instances"] = sum(fleet.instances.here[i] is not None for i in slots)
            row["held"] = fleet.instances.held_bytes(node)
            row["busy_ps"] = round(float(busy_s[slots].max()) * PS_PER_S)
            row["used_ps"], row["used_since_ps"] = round(float(used_s[node]) * PS_PER_S), NEVER
            row["at_work"] = row["prefilling"] = -1


def demand_of(arrival_s: NDArray[np.float64], model: NDArray[np.int64], models: int) -> NDArray[np.float64]:
    """`SharingWorld.demand` after these requests.

    Args:
        arrival_s: (N,), rising.
        model: (N,), what each asks for.
        models: Number of models.
    """
    demand = np.zeros((models, 2 + len(DEMAND_S)))
    demand[model[::-1], 0] = arrival_s[::-1]  # of several the last one stays
    demand[model, 1] = arrival_s
    ago_s = demand[model, 1] - arrival_s
    for k, constant_s in enumerate(DEMAND_S):
        demand[:, 2 + k] = np.bincount(model, np.exp(-ago_s / constant_s), models)
    return demand


def _picoseconds(times_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Times, -1 where there is none yet."""
    return np.where(np.isnan(times_s), -1, np.rint(np.nan_to_num(times_s) * PS_PER_S)).astype(np.int64)
