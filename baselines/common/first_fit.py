"""Placement on shared nodes as a practitioner would begin: the first place that looks fast enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.sharing import SharingPolicy
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.interface.sharing import Event, InstanceStatus, RequestPhase
from serving_gym.envs.sharing.state import SharingState
from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES

_REPLACES = PLACE_FEATURES.index("replaces")
_EMPTY, _WAITING = int(InstanceStatus.EMPTY), int(RequestPhase.WAITING)


@dataclass(frozen=True)
class FirstFitConfig(Constants):
    """Constants of `FirstFitPolicy`.

    Attributes:
        fill: Share of the promises that a place may use up before it counts as full. Source: ours.
    """

    fill: float = tunable(0.8, 0.3, 1.5)

    def __post_init__(self) -> None:
        check_positive(self, "fill")


class FirstFitPolicy(SharingPolicy, Configured[FirstFitConfig]):
    """Sends a request to the first place that can take it and keeps, by a plain estimate, everybody's promises.

    Places in their order: instances of the request's model, the one with most running requests first; then new ones on
    nodes that are used; then on the others, in the nodes' order; then, where that is possible, in the place of idle
    instances of other models, the one that has been idle for the longest first. A place will do where one decode
    iteration of every instance of its node, the request included, stays within its TPOT promise, and all prefills that
    wait on the node and its own, once the place is ready, within what is left of its TTFT promise. A request that is
    overdue has the first of these alone to pass. Memory is left to the environment's manager, iterations to its token
    scheduler.
    """

    name = "first_fit"

    def begin(self) -> None:
        """Looks up the sizes of models."""
        self._sizes = np.array([model.size for model in self.setting.models])

    def act(self, observation: Any, state: SharingState) -> Action:
        """Places the offered request, or holds it."""
        if state.event != Event.PLACEMENT:
            return None
        able = observation["places"][:, 0] > 0
        self._replaces = observation["places"][:, _REPLACES] > 0
        request = state.requests[state.offered]
        slack_s = float(request["arrival_s"] + request["ttft_slo_s"] - state.now_s)
        for place, node in self._places(able, state):
            cycle_s, wait_s = self._load(state, node, place, request)
            late = slack_s > 0 and wait_s > self.config.fill * slack_s
            if cycle_s <= self.config.fill * float(request["tpot_slo_s"]) and not late:
                return place
        return None

    def _places(self, able: NDArray[np.bool_], state: SharingState) -> Iterator[tuple[int, int]]:
        """Actions that are possible, each with its node, in the order in which they are tried."""
        slots, width = self.setting.num_slots, self.setting.slots_per_node
        there = np.flatnonzero(able[:slots] & ~self._replaces[:slots])
        for slot in there[np.argsort(-state.instances["num_running"][there], kind="stable")].tolist():
            yield slot, slot // width
        nodes = np.flatnonzero(able[slots : slots + self.setting.num_nodes])
        unused = state.nodes["num_instances"][nodes] == 0
        for node in nodes[np.argsort(unused, kind="stable")].tolist():
            yield slots + node, node
        idle = np.flatnonzero(able[:slots] & self._replaces[:slots])
        for slot in idle[np.argsort(-state.instances["idle_s"][idle], kind="stable")].tolist():
            yield slot, slot // width

    def _load(self, state: SharingState, node: int, place: int, request: Any) -> tuple[float, float]:
        """Seconds of a decode iteration of every instance of a node, and until the request would be prefilled."""
        setting, width = self.setting, self.setting.slots_per_node
        kind = int(setting.node_kinds[node])
        size, tokens = int(self._sizes[request["model"]]), int(request["input_tokens"])
        prefill = setting.prefill_s[kind]
        joins = place < setting.num_slots and not self._replaces[place]
        own_s = float(prefill[size, tokens + int(request["generated_tokens"])])
        cycle_s = 0.0 if joins else setting.iteration_s(kind, size, 1, tokens)
        wait_s = max(float(state.nodes["due_s"][node]) - state.now_s, 0.0) + own_s
        ready_s = 0.0 if joins else float(setting.load_s[kind, size])
        here = state.requests["instance"] // width == node
        here &= state.requests["instance"] >= 0
        rows = state.requests[here]
        waiting = rows[rows["phase"] == _WAITING]
        lengths = waiting["input_tokens"] + waiting["generated_tokens"]
        wait_s += float(prefill[self._sizes[waiting["model"]], lengths].sum())
        there = state.instances["status"][node * width : (node + 1) * width] != _EMPTY
        for slot in (node * width + np.flatnonzero(there)).tolist():
            instance = state.instances[slot]
            mine = rows["instance"] == slot
            batch = int(mine.sum()) + (joins and slot == place)
            if joins and slot == place:
                ready_s = max(float(instance["operation_due_s"]) - state.now_s, 0.0)
            if batch:
                context = int((rows["input_tokens"] + rows["generated_tokens"])[mine].sum())
                context += tokens if joins and slot == place else 0
                own = int(self._sizes[instance["model"]])
                cycle_s += setting.iteration_s(kind, own, min(batch, setting.max_num_seqs), context / batch)
        return cycle_s, max(wait_s, ready_s + own_s)
