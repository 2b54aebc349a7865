"""Placement on shared nodes whose instances stay until their memory is needed: which idle one goes?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.sharing import SharingPolicy
from serving_gym.baselines.policy import Action, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.sharing import Event
from serving_gym.envs.sharing.state import SharingState
from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES

_CAN_TAKE, _NEW, _OF_MODEL, _REPLACES = (
    PLACE_FEATURES.index(name) for name in ("can_take", "new", "of_model", "replaces")
)
_NEVER_S = 1e9  # later than any request


class Keep(StrEnum):
    """Which idle instances are worth least."""

    LRU = "lru"  # those whose model has not been asked for the longest
    LFU = "lfu"  # those whose model is asked for least often, by a count that is forgotten over time
    GREEDY_DUAL = "greedy_dual"  # FaasCache: clock + frequency x load time / size
    BELADY = "belady"  # those whose model is asked for again last: a clairvoyant reference


@dataclass(frozen=True)
class KeepWarmConfig(Constants):
    """Constants of `KeepWarmPolicy`.

    Attributes:
        keep: What is kept, one of `Keep`.
        half_life_s: In which a count is half forgotten; of "lfu". Source: ours.
        fill: Share of the TPOT promise that one decode iteration of every instance of a node may take before the node
            counts as full. Source: ours.
    """

    keep: str = Keep.LFU.value
    half_life_s: float = tunable(600.0, 10.0, 7200.0, log=True)
    fill: float = tunable(0.8, 0.2, 1.5)

    def __post_init__(self) -> None:
        check_choice("keep", self.keep, [entry.value for entry in Keep])
        check_positive(self, "half_life_s", "fill", finite=True)


class KeepWarmPolicy(SharingPolicy):
    """Sends a request to an instance of its model, else to a new one, in the place of what is worth least.

    In this order: instances of the model on nodes that are not full; new instances on such nodes; on such nodes idle
    instances of other models, least worth first; then the same on nodes that are full. Of instances and of new ones the
    one whose node has the shortest cycle is taken, a decode iteration of each of its instances with the request.

    What an idle instance is worth is what is known of keeping functions warm. "greedy_dual" is FaasCache (Fuerst and
    Sharma, ASPLOS 2021): clock + frequency x cost / size, with the clock of its last use; the clock goes to the
    priority of what is evicted; the frequency is a function's since it was last without an instance. The cost is the
    load time, the size weights and KV pool. "belady" knows when each model is asked for again (Belady 1966). Where one
    instance does not make enough room, others of its node go with it; what those are worth does not count.
    """

    name = "keep_warm"

    def __init__(self, config: KeepWarmConfig | None = None) -> None:
        self.config = config or KeepWarmConfig()
        self.clairvoyant = self.config.keep == Keep.BELADY

    def begin(self) -> None:
        """Nobody has asked for anything yet."""
        number = len(self.setting.models)
        self._sizes = np.array([model.size for model in self.setting.models])
        self._asked_s = np.full(number, -np.inf)
        self._counts, self._frequency, self._used_at = (np.zeros(number) for _ in range(3))
        self._clock, self._newest = 0.0, -1

    def act(self, observation: Any, state: SharingState) -> Action:
        """Places the offered request; it is held where no place can take it."""
        if state.event != Event.PLACEMENT:
            return None
        request = state.requests[state.offered]
        if int(request["index"]) > self._newest:
            self._newest = int(request["index"])
            self._note(int(request["model"]), state)
        rows = observation["places"]
        able = rows[:, _CAN_TAKE] > 0
        if not able.any():
            return None
        cycles = self._cycles(state, request)
        free = cycles <= self.config.fill * float(request["tpot_slo_s"])
        worth = np.full(len(rows), np.inf)
        replaces = able & (rows[:, _REPLACES] > 0)
        worth[replaces] = self.lost(rows, state, np.flatnonzero(replaces))
        own = able & (rows[:, _OF_MODEL] > 0) & ~(rows[:, _NEW] > 0)
        new = able & (rows[:, _NEW] > 0)
        for allowed in (free, np.ones(len(rows), bool)):
            for places, order in ((own, cycles), (new, cycles), (replaces, worth)):
                if (places & allowed).any():
                    place = int(np.where(places & allowed, order, np.inf).argmin())
                    if replaces[place] and self.config.keep == Keep.GREEDY_DUAL:
                        self._clock = max(self._clock, float(worth[place]))
                    return place
        return None

    def _note(self, model: int, state: SharingState) -> None:
        """A request for a model has come."""
        there = state.instances["model"] == model
        self._frequency[model] = 1.0 + (self._frequency[model] if there.any() else 0.0)
        since_s = state.now_s - self._asked_s[model]
        self._counts[model] = 1.0 + self._counts[model] * 0.5 ** (since_s / self.config.half_life_s)
        self._asked_s[model], self._used_at[model] = state.now_s, self._clock

    def lost(
        self, rows: NDArray[np.float32], state: SharingState, slots: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """What is lost where idle instances make room, (K,); the least goes.

        Args:
            rows: (S + N, features), the places of the observation.
            state: The state.
            slots: (K,), the instances.
        """
        worth: NDArray[np.float64] = self._worth(state)[state.instances["model"][slots]]
        return worth

    def _worth(self, state: SharingState) -> NDArray[np.float64]:
        """What it is worth to keep each model, (models,)."""
        if self.config.keep == Keep.LRU:
            return self._asked_s
        if self.config.keep == Keep.LFU:
            forgotten: NDArray[np.float64] = 0.5 ** ((state.now_s - self._asked_s) / self.config.half_life_s)
            return self._counts * forgotten
        if self.config.keep == Keep.BELADY:
            return -np.minimum(state.coming_s(), _NEVER_S)
        rate = np.zeros(len(self._counts))
        for instance in state.instances[state.instances["model"] >= 0]:
            kind = self.setting.node_kinds[instance["node"]]
            load_s = float(self.setting.load_s[kind, self._sizes[instance["model"]]])
            rate[instance["model"]] = load_s / (instance["weights_bytes"] + instance["kv_bytes"]) * 1e9
        return self._used_at + self._frequency * rate

    def _cycles(self, state: SharingState, request: Any) -> NDArray[np.float64]:
        """(S + N,) seconds of a decode iteration of every instance of a place's node, with the request there."""
        setting, number = self.setting, self.setting.num_slots
        tokens, size = (
            int(request["input_tokens"] + request["generated_tokens"]),
            self._sizes[request["model"]],
        )
        rows = state.requests[state.requests["instance"] >= 0]
        context = np.bincount(
            rows["instance"], rows["input_tokens"] + rows["generated_tokens"], minlength=number
        )
        batch = np.bincount(rows["instance"], minlength=number)
        model = state.instances["model"]
        joins = (model == request["model"]) & (batch > 0)
        own = np.where(model >= 0, self._sizes[model], size)
        kind = np.repeat(setting.node_kinds, setting.slots_per_node)

        def iteration_s(more: int) -> NDArray[np.float64]:
            running = np.minimum(batch + more, setting.max_num_seqs)
            return setting.decode_s[kind, own, running] + setting.context_s[kind, own] * (
                context + more * tokens
            )

        now_s = np.where(batch > 0, iteration_s(0), 0.0)
        total = now_s.reshape(setting.num_nodes, -1).sum(axis=1)
        alone = setting.decode_s[setting.node_kinds, size, 1]
        alone = alone + setting.context_s[setting.node_kinds, size] * tokens
        added = np.where(joins, iteration_s(1) - now_s, np.repeat(alone, setting.slots_per_node))
        cycles: NDArray[np.float64] = np.append(
            np.repeat(total, setting.slots_per_node) + added, total + alone
        )
        return cycles
