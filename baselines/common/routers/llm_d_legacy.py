"""llm-d's endpoint picker with the blend of scorers that was its default until August 2026."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.common.routers.least_kv import kv_usage
from serving_gym.baselines.common.routers.max_score import MaxScorePicker
from serving_gym.baselines.common.routers.prefix_index import BlockIndex
from serving_gym.baselines.policy import Action, Configured, Tunable
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

MAX_PREFIX_TOKENS = 131_072  # of a prompt that are looked up


def block_index(engines: NominalEngines) -> BlockIndex:
    """An empty index with as many blocks for each engine as its KV cache has (llm-d's `autoTune`)."""
    return BlockIndex(engines.kv_capacity_tokens // engines.block_size)


def prefix_blocks(request: RoutedRequest) -> list[int]:
    """Ids of a prompt's blocks that are looked up."""
    blocks: list[int] = request.hash_ids[: MAX_PREFIX_TOKENS // request.hash_block_tokens].tolist()
    return blocks


@dataclass(frozen=True)
class LLMDLegacyConfig:
    """Constants of `LLMDLegacyPolicy`: the weights of llm-d's guide "optimized-baseline" until August 2026.

    Attributes:
        prefix_weight: Of the share of the prompt that the engine is thought to hold.
        queue_weight: Of the engine's queue, 1 for the shortest and 0 for the longest.
        kv_weight: Of the share of its KV cache that is free.
        no_hit_lru_weight: Of how long ago it was last given a prompt that nobody held.
    """

    prefix_weight: float = 3.0
    queue_weight: float = 2.0
    kv_weight: float = 2.0
    no_hit_lru_weight: float = 2.0

    def __post_init__(self) -> None:
        for name, weight in vars(self).items():
            if not weight >= 0:
                raise ValueError(f"{name} must not be negative, got {weight}")

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {name: Tunable(0.0, 10.0) for name in vars(LLMDLegacyConfig())}


class LLMDLegacyPolicy(Router, Configured[LLMDLegacyConfig]):
    """The highest weighted sum of four scores, each from 0 to 1.

    llm-d-router of 2026, `pkg/epp/framework/plugins/scheduling`:

    * prefix: blocks of the prompt in the engine's part of an index of past prompts, over the prompt's blocks; the index
      (`approx-prefix-cache-producer`) is a list of least recently used blocks for each engine, as long as its KV cache
      has blocks;
    * queue: (longest - own) / (longest - shortest) by the gauge of waiting requests, over those that can take the
      request; 1 where all are equal;
    * KV utilisation: 1 - the gauge of KV usage;
    * no-hit LRU: 0.5 for all where somebody holds a block. Else 1 - rank / (number that can take the request - 1), at
      least 0, where those that never had such a request come first, in their order, and the others behind them by when
      they last had one, counted among all engines.

    Of equal sums `MaxScorePicker` picks in turns.

    Departures: blocks are the workload's ids of `hash_block_tokens` tokens (llm-d: at least 64 tokens); the index
    learns of a request at once rather than shortly after; an engine that has been away keeps its part of it.
    """

    name = "llm_d_legacy"

    def begin(self) -> None:
        """Nothing has been sent anywhere."""
        self._index = block_index(self.engines)
        self._given = np.zeros(len(self.engines), np.int64)  # tick of the last cold request; 0: never
        self._tick = 0
        self._picker = MaxScorePicker()

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The highest sum."""
        able = np.flatnonzero(state.can_take)
        blocks = prefix_blocks(request)
        held = self._index.match(blocks)[able]
        cold = not held.any()
        config = self.config
        score = config.prefix_weight * (held / max(len(blocks), 1))
        score += config.queue_weight * queue_score(state.engines["num_waiting"][able])
        score += config.kv_weight * np.clip(1.0 - kv_usage(state)[able], 0.0, 1.0)
        score += config.no_hit_lru_weight * (self._lru_score(able) if cold else 0.5)
        place = int(able[self._picker.pick(score)])
        self._index.insert(blocks, place)
        if cold:
            self._tick += 1
            self._given[place] = self._tick
        return place

    def _lru_score(self, able: NDArray[np.intp]) -> NDArray[np.float64]:
        """The higher, the longer an engine has not had a cold request, (N,)."""
        if len(able) == 1:
            return np.ones(1)
        given = self._given[able]
        never = given == 0
        used = np.sort(self._given[self._given > 0])
        rank = np.where(never, np.cumsum(never) - 1, never.sum() + np.searchsorted(used, given))
        return np.maximum(1.0 - rank / (len(able) - 1), 0.0)


def queue_score(waiting: NDArray[np.integer]) -> NDArray[np.float64]:
    """1 for the shortest queue, 0 for the longest, linear between; 1 for all where they are equal.

    Args:
        waiting: (N,) requests that wait.
    """
    longest, shortest = waiting.max(), waiting.min()
    if longest == shortest:
        return np.ones(len(waiting))
    score: NDArray[np.float64] = (longest - waiting) / (longest - shortest)
    return score
