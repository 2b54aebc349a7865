"""Observations of shared nodes from typed states, for callers that are no simulator.

The state is written into a simulated world as `envs.sharing.live.mirror` writes that of launched servers, and the
kernel that observes the simulator observes it. What of a model's past the observation has (mean answer, time between
requests) is what earlier states have told.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.sharing import InstanceStatus, RequestPhase, SharingSetting
from serving_gym.envs.sharing.live.mirror import demand_of
from serving_gym.envs.sharing.state import SharingState
from serving_gym.envs.simulator.sharing.arrays import EMPTY, NEVER, PS_PER_S
from serving_gym.envs.simulator.sharing.decisions import look, pool_for
from serving_gym.envs.simulator.sharing.features import CLUSTER_FEATURES, PLACE_FEATURES, REQUEST_FEATURES
from serving_gym.envs.workload.schema import Workload

_REMEMBERED = 100_000  # last arrivals


class SharingView:
    """Writes states into the simulated world of an environment, whose own episode ends with the first.

    Args:
        env: The environment.
        setting: What is known of the nodes.
    """

    def __init__(self, env: Any, setting: SharingSetting) -> None:
        self._core, self.setting = env.core, setting
        scales = env.config.scales
        self._scales = np.array([getattr(scales, item.name) for item in fields(scales)])
        self.reset()

    def reset(self) -> None:
        """Forgets the past."""
        self._arrived: dict[int, tuple[float, int]] = {}  # arrival, s, and model by index of the request
        self._outputs = np.zeros((len(self.setting.models), 2))
        self._written: SharingState | None = None

    def observe(self, state: SharingState) -> dict[str, NDArray[np.float32]]:
        """The observation of a state."""
        self.write(state)
        simulator, setting = self._core.simulator, self.setting
        rows = setting.num_slots + setting.num_nodes
        places = np.zeros((rows, len(PLACE_FEATURES)), np.float32)
        request = np.zeros(len(REQUEST_FEATURES), np.float32)
        cluster = np.zeros(len(CLUSTER_FEATURES) + len(setting.kinds), np.float32)
        mask = np.zeros(rows + 1, np.bool_)
        look(simulator.world, simulator.tables, self._scales, places, request, cluster, mask)
        return {"places": places, "request": request, "cluster": cluster}

    def new_pool(self, state: SharingState, node: int) -> int:
        """KV pool that the environment's manager gives a new instance for the offered request, bytes; -1: no room."""
        self.write(state)
        simulator = self._core.simulator
        return int(pool_for(simulator.world, simulator.tables, node, self._row_of(state, state.offered)))

    def write(self, state: SharingState) -> None:
        """Writes a state into the world; nothing where it is there."""
        if self._written is state:
            return
        self._written = state
        self._remember(state)
        self._order = np.argsort(state.requests["arrival_s"], kind="stable")
        rows = state.requests[self._order]
        self._core.simulator.reset(self._workload(rows))
        self._write_clock(state, len(rows))
        self._write_requests(rows)
        self._write_instances(state, rows)
        self._write_nodes(state, rows)

    def _row_of(self, state: SharingState, row: int) -> int:
        """Row of the world of a row of the state's requests; -1: none."""
        return -1 if row < 0 else int(np.flatnonzero(self._order == row)[0])

    def _remember(self, state: SharingState) -> None:
        for index, arrival_s, model in state.requests[["index", "arrival_s", "model"]].tolist():
            self._arrived.setdefault(index, (arrival_s, model))
        while len(self._arrived) > _REMEMBERED:
            del self._arrived[next(iter(self._arrived))]
        np.add.at(self._outputs[:, 0], state.finished["model"], 1)
        np.add.at(self._outputs[:, 1], state.finished["model"], state.finished["output_tokens"])

    def _workload(self, rows: NDArray[np.void]) -> Workload:
        return Workload(
            arrival_s=rows["arrival_s"].copy(),
            input_tokens=rows["input_tokens"].copy(),
            output_tokens=np.maximum(rows["max_output_tokens"], 1),
            max_output_tokens=np.maximum(rows["max_output_tokens"], 1),
            classes=tuple(self._core.classes),
            model_id=rows["model"].copy(),
            models=tuple(model.name for model in self.setting.models),
        )

    def _write_clock(self, state: SharingState, requests: int) -> None:
        world, clock = self._core.simulator.world, self._core.simulator.world.clock[0]
        clock["now_ps"] = round(state.now_s * PS_PER_S)
        clock["event"], clock["event_request"] = int(state.event), self._row_of(state, state.offered)
        clock["event_node"], clock["event_instance"] = state.node, state.instance
        clock["num_held"], clock["num_ooms"] = state.num_held, state.num_ooms
        clock["next_arrival"] = clock["num_in_system"] = requests
        world.outputs[:] = self._outputs
        known = np.array(sorted(self._arrived.values()), np.float64).reshape(-1, 2)
        world.demand[:] = demand_of(known[:, 0], known[:, 1].astype(np.int64), len(world.demand))

    def _write_requests(self, rows: NDArray[np.void]) -> None:
        world = self._core.simulator.world
        known = world.requests
        for name, column in (("phase", "phase"), ("instance", "instance"), ("generated", "generated_tokens")):
            known[name] = rows[column]
        deadline_s = rows["arrival_s"] + rows["ttft_slo_s"] + rows["generated_tokens"] * rows["tpot_slo_s"]
        known["deadline_ps"] = np.rint(deadline_s * PS_PER_S)
        known["next"] = known["previous"] = -1
        lists: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, (instance, phase) in enumerate(rows[["instance", "phase"]].tolist()):
            lists[instance, phase].append(row)
        for (instance, phase), members in lists.items():
            known["next"][members[:-1]], known["previous"][members[1:]] = members[1:], members[:-1]
            if instance < 0:
                world.clock["held_head"], world.clock["held_tail"] = members[0], members[-1]
                continue
            queue = "running" if phase == RequestPhase.RUNNING else "waiting"
            world.instances[instance][f"{queue}_head"] = members[0]
            world.instances[instance][f"{queue}_tail"] = members[-1]

    def _write_instances(self, state: SharingState, rows: NDArray[np.void]) -> None:
        world, setting = self._core.simulator.world, self.setting
        now_ps = round(state.now_s * PS_PER_S)
        running = rows[rows["phase"] == RequestPhase.RUNNING]
        tokens = running["input_tokens"] + running["generated_tokens"]
        blocks = np.zeros(setting.num_slots, np.int64)
        np.add.at(blocks, running["instance"], -(-tokens // setting.block_tokens))
        for slot, shown in enumerate(state.instances):
            row, model = world.instances[slot], int(shown["model"])
            row["status"], row["model"] = shown["status"], model
            if shown["status"] == EMPTY or model < 0:
                row["status"], row["model"] = EMPTY, -1
                continue
            own = setting.models[model]
            row["num_running"], row["num_waiting"] = shown["num_running"], shown["num_waiting"]
            row["context_tokens"], row["used_blocks"] = shown["kv_used_tokens"], blocks[slot]
            row["weights"], row["kv"] = shown["weights_bytes"], shown["kv_bytes"]
            row["target"] = shown["kv_target_bytes"]
            row["held"] = shown["weights_bytes"] + max(shown["kv_bytes"], shown["kv_target_bytes"])
            row["pool_blocks"] = shown["kv_bytes"] // (own.kv_bytes_per_token * setting.block_tokens)
            serving = shown["status"] == InstanceStatus.SERVING
            row["due_ps"] = NEVER if serving else round(float(shown["operation_due_s"]) * PS_PER_S)
            idle = serving and not shown["num_running"] + shown["num_waiting"]
            row["idle_ps"] = now_ps - round(float(shown["idle_s"]) * PS_PER_S) if idle else NEVER

    def _write_nodes(self, state: SharingState, rows: NDArray[np.void]) -> None:
        world, indices = self._core.simulator.world, rows["index"].tolist()
        for node, shown in enumerate(state.nodes):
            row = world.nodes[node]
            row["num_instances"], row["held"] = shown["num_instances"], shown["held_bytes"]
            row["memory"] = shown["memory_bytes"]
            row["busy_ps"] = round(float(shown["busy_s"]) * PS_PER_S)
            row["used_ps"] = round(float(shown["used_s"]) * PS_PER_S)
            row["at_work"] = shown["at_work"]
            prefilling = int(shown["prefilling"])
            row["prefilling"] = indices.index(prefilling) if prefilling in indices else -1
            row["due_ps"] = round(float(shown["due_s"]) * PS_PER_S) if shown["at_work"] >= 0 else NEVER
