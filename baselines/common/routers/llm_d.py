"""llm-d's endpoint picker with its default since August 2026: token-aware, sticky until saturated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.common.routers.llm_d_legacy import block_index, prefix_blocks
from serving_gym.baselines.common.routers.max_score import MaxScorePicker
from serving_gym.baselines.common.routers.prefix_affinity import with_prefix
from serving_gym.baselines.common.routers.uncached_load import UncachedLoad
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_not_negative, check_positive, check_within
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class LLMDConfig(Constants):
    """Constants of `LLMDPolicy`.

    Attributes:
        affinity: Share of the prompt that an engine must hold to be preferred to those that hold less. Source:
            `prefix-cache-affinity-filter`, `affinityThreshold` (0.80).
        saturation_tokens: By how many tokens in flight the lightest of the preferred may exceed the lightest of the
            others, before all count; 0: it may always. llm-d writes it as a penalty on TTFT, `maxTTFTPenaltyMs`, times
            `peakPrefillThroughput`: 14 s x 20,480 tokens/s in the guide "optimized-baseline" of August 2026, 18 s x
            15,928 tokens/s (286,704) in the filter's defaults.
        queue_tokens: Load from which engines are equal. Source: `token-load-scorer`, `queueThresholdTokens` (4 Mi).
        explore_probability: Of leaving the preference out. Source: `explorationProbability` (0).
    """

    affinity: float = tunable(0.8, 0.0, 1.0)
    saturation_tokens: float = tunable(286_720.0, 500.0, 1e6, log=True)
    queue_tokens: float = 4_194_304.0
    explore_probability: float = tunable(0.0, 0.0, 0.2)

    def __post_init__(self) -> None:
        check_within(self, "[0, 1]", "affinity", "explore_probability")
        check_not_negative(self, "saturation_tokens")
        check_positive(self, "queue_tokens")


class LLMDPolicy(Router, Configured[LLMDConfig]):
    """The fewest uncached tokens, among the engines that hold the prompt until they are saturated.

    llm-d-router of autumn 2026 with the guide "optimized-baseline" (`prefix-cache-affinity-filter`, then
    `token-load-scorer`, then `max-score-picker`; llm-d.ai, "Sticky Until Saturated: Token-Aware Routing in llm-d",
    August 2026):

    1. Engines whose part of the index of past prompts has at least `affinity` of this one's blocks, if there are any
       and unless the lightest of them has over `saturation_tokens` more in flight than the lightest of the others.
    2. Load is what is in flight there (uncached prompt tokens of requests without a first token, see `UncachedLoad`)
       and this request's prompt times (1 - hit); the score is 1 - load / `queue_tokens`, at least 0.
    3. The highest score, equals in turns.

    Departures: blocks are the workload's ids, and the index learns at once, as in `LLMDLegacyPolicy`.
    """

    name = "llm_d"

    def begin(self) -> None:
        """Nothing has been sent anywhere."""
        self._index = block_index(self.engines)
        self._load = UncachedLoad()
        self._picker = MaxScorePicker()

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Filters, scores and picks."""
        blocks = prefix_blocks(request)
        held = self._index.match(blocks)
        in_flight = self._load.of(state)
        uncached = request.input_tokens - np.minimum(held * request.hash_block_tokens, request.input_tokens)
        able = self._preferred(np.flatnonzero(state.can_take), held / max(len(blocks), 1), in_flight)
        load = in_flight[able] + uncached[able]
        place = int(able[self._picker.pick(1.0 - np.minimum(load / self.config.queue_tokens, 1.0))])
        self._index.insert(blocks, place)
        self._load.record(request, int(uncached[place]))
        return place

    def _preferred(
        self, able: NDArray[np.intp], share: NDArray[np.float64], in_flight: NDArray[np.float64]
    ) -> NDArray[np.intp]:
        """Those that hold the prompt, unless they are saturated; else all."""
        config = self.config
        if len(able) == 1 or config.affinity <= 0:
            return able
        if config.explore_probability > 0 and self.rng.random() < config.explore_probability:
            return able
        return with_prefix(able, share, config.affinity, in_flight, config.saturation_tokens)
