"""Dynamo's KV-aware router as of version 1.6: prompt blocks to compute and blocks that are active."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.common.routers.uncached_load import UncachedLoad
from serving_gym.baselines.policy import Action, Configured, Constants, tunable, tunable_choice
from serving_gym.calibration.fields import check_not_negative
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

SELECTIONS = ("linear", "lmetric")


@dataclass(frozen=True)
class DynamoKVConfig(Constants):
    """Constants of `DynamoKVPolicy`; sources: options of Dynamo's frontend, with their defaults.

    Attributes:
        overlap_credit: Times which cached blocks of the prompt are taken off. `--router-kv-overlap-score-credit` (1).
        prefill_scale: Weight of the blocks to compute. `--router-prefill-load-scale` (1).
        temperature: Of a softmax over normalised costs; 0: the lowest. `--router-temperature` (0).
        selection: "linear": the sum; "lmetric": the product. `router_selection_policy`.
    """

    overlap_credit: float = tunable(1.0, 0.0, 4.0)
    prefill_scale: float = tunable(1.0, 0.05, 20.0, log=True)
    temperature: float = tunable(0.0, 0.0, 1.0)
    selection: str = tunable_choice("linear", "lmetric")

    def __post_init__(self) -> None:
        check_not_negative(self, "overlap_credit", "prefill_scale", "temperature")
        check_choice("selection", self.selection, SELECTIONS)


class DynamoKVPolicy(Router, Configured[DynamoKVConfig]):
    """The lowest cost of blocks to compute and blocks in use.

    Dynamo 1.6, documentation "Routing Concepts" and "Configuration and Tuning" (`--router-mode kv`), for aggregated
    workers with one tier of cache:

    * blocks to compute: of prompts sent without a first token, less what was cached (no decay of theirs), and of this
      one, less `overlap_credit` times what the engine holds of it by its KV events; at least 0;
    * blocks in use: prompt blocks of requests in flight, shared ones once, and those that this one would add; answers
      do not count (`--router-track-output-blocks` is off);
    * cost: `prefill_scale` x the first + the second; with "lmetric" the first x (the second + 1).

    With a temperature an engine is drawn by the softmax of minus the costs, normalised to 0..1 over those that can take
    the request. Queueing is off by default there and left out.

    Departures: ties go to the first engine; a prompt's blocks are the workload's ids.
    """

    name = "dynamo_kv"

    def begin(self) -> None:
        """Nothing has been sent anywhere."""
        self._load = UncachedLoad()
        self._active: dict[
            int, tuple[int, int, list[int]]
        ] = {}  # request -> place, tokens of its own, its ids
        self._shared: list[Counter[int]] = [Counter() for _ in range(len(self.engines))]
        self._own_tokens = np.zeros(len(self.engines), np.int64)

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The lowest cost, or a draw."""
        self._release(state)
        config, block = self.config, self.engines.block_size
        cached = np.minimum(request.cached_tokens, request.input_tokens)
        ids: list[int] = request.hash_ids.tolist()
        own = max(request.input_tokens - len(ids) * request.hash_block_tokens, 0)
        to_compute = self._load.of(state) + request.input_tokens - config.overlap_credit * cached
        to_compute = np.maximum(to_compute, 0.0) / block
        held = np.array([len(blocks | set(ids)) for blocks in map(Counter.keys, self._shared)])
        in_use = (self._own_tokens + own + held * request.hash_block_tokens) / block
        if config.selection == "lmetric":
            cost = to_compute * (in_use + 1.0)
        else:
            cost = config.prefill_scale * to_compute + in_use
        able = np.flatnonzero(state.can_take)
        place = int(able[self._pick(cost[able])])
        self._load.record(request, int(request.input_tokens - cached[place]))
        self._active[request.index] = (place, own, ids)
        self._shared[place].update(ids)
        self._own_tokens[place] += own
        return place

    def _pick(self, cost: NDArray[np.float64]) -> int:
        span = float(np.ptp(cost))
        if self.config.temperature <= 0 or span <= 0:
            return int(np.argmin(cost)) if self.config.temperature <= 0 else int(self.rng.integers(len(cost)))
        logits = -(cost - cost.min()) / span / self.config.temperature
        weights = np.exp(logits - logits.max())
        bounds = np.cumsum(weights)
        return int(np.searchsorted(bounds, self.rng.random() * bounds[-1], side="right"))

    def _release(self, state: RoutingState) -> None:
        """Frees blocks of requests that have ended."""
        running = set(state.in_flight["index"].tolist())
        for index in [index for index in self._active if index not in running]:
            place, own, ids = self._active.pop(index)
            self._own_tokens[place] -= own
            blocks = self._shared[place]
            for block in ids:
                blocks[block] -= 1
                if not blocks[block]:
                    del blocks[block]
