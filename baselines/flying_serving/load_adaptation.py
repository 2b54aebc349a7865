"""Use case 1 of Flying Serving (sections 2.3 and 3): few wide groups under light load, many engines in bursts.

The text gives the aim: "when the workload spikes and request queues build up", dissolve groups. Source of the trigger:
ours: hysteresis on the larger of two loads, each over its threshold: waiting requests per GPU (or, by choice, requests
in the system), and prompt tokens yet to be computed per GPU. A split follows the load at once. A merge waits until the
load has been low for as long as the merge would take now, and until prompts arrive more slowly than when the wider
groups last built up a queue.
"""

from __future__ import annotations

import math

from serving_gym.baselines.common.hysteresis import HysteresisLadder
from serving_gym.baselines.common.signals import (
    ArrivalRates,
    answer_s,
    requests_in_system,
    requests_waiting,
    tokens_to_prefill,
)
from serving_gym.baselines.flying_serving.config import QUEUE, FlyingServingConfig
from serving_gym.calibration.transitions import LIVE_SWITCH_S
from serving_gym.envs.interface.state import ClusterState


class LoadAdaptation:
    """Chooses the length of the groups.

    Args:
        config: Constants.
        num_base: Base engines of the node.
        num_gpus: GPUs of the node.

    Raises:
        ValueError: `config.widths` has a width that is no group of the node.
    """

    def __init__(self, config: FlyingServingConfig, num_base: int, num_gpus: int) -> None:
        self._config, self._num_gpus = config, num_gpus
        self.widths = _widths(config, num_base)
        up = tuple(config.width_growth_ratio**i for i in range(len(self.widths) - 1))
        self._down = tuple(config.hysteresis_ratio * threshold for threshold in up)
        self._ladder = HysteresisLadder(up, self._down, config.dwell_s)
        self.load, self._mean, self._seen_s = 0.0, 0.0, 0.0  # load: as of the last update
        self._rates = ArrivalRates(config.rate_smoothing_s)
        self._low_since_s = 0.0
        self._too_fast = [math.inf] * len(up)  # prompt tokens/s at which rung i last built up a queue

    def _load(self, state: ClusterState, long_tokens: float, long_requests: float) -> float:
        """Load over the first threshold; above 1 the first split is due."""
        config = self._config
        tokens = max(0.0, tokens_to_prefill(state) - long_tokens) / self._num_gpus
        queue = config.load_signal == QUEUE
        requests = requests_waiting(state) if queue else requests_in_system(state)
        per_gpu = config.split_waiting_per_gpu if queue else config.split_requests_per_gpu
        others = max(0.0, requests - long_requests) / self._num_gpus
        return max(others / per_gpu, tokens / config.split_tokens_per_gpu)

    def update(self, state: ClusterState, long_tokens: float = 0.0, long_requests: float = 0.0) -> int:
        """The length that the load calls for, base engines.

        Args:
            state: The cluster.
            long_tokens: Prompt tokens of long-context requests, which more engines would not serve sooner.
            long_requests: Requests that no single base engine holds: a split leaves them fewer engines, not more.
        """
        self.load = load = self._load(state, long_tokens, long_requests)
        if not self._config.adapt_to_load:
            return self.widths[-1]
        elapsed_s, self._seen_s = state.now_s - self._seen_s, state.now_s
        tau = self._config.smoothing_s
        share = 1.0 - math.exp(-elapsed_s / tau) if tau > 0 else 1.0
        self._mean += share * (load - self._mean)
        falling, before = max(load, self._mean), self._ladder.rung
        tokens_per_s, _ = self._rates.follow(state)
        if not self._config.weigh_switch:
            return self.widths[self._ladder.step(state.now_s, load, falling)]
        if before and not self._worth_merging(state, falling, tokens_per_s):
            falling = math.inf
        rung = self._ladder.step(state.now_s, max(load, self._foreseen(tokens_per_s)), falling)
        if rung > before:
            self._low_since_s = state.now_s
            if load > self._ladder.up[before]:
                self._too_fast[before:rung] = [tokens_per_s] * (rung - before)
        return self.widths[rung]

    def _foreseen(self, tokens_per_s: float) -> float:
        """Load that splits the present groups once prompts arrive as fast as when these last built up a queue."""
        rung = self._ladder.rung
        if rung == len(self._too_fast) or tokens_per_s <= self._too_fast[rung]:
            return 0.0
        return math.nextafter(self._ladder.up[rung], math.inf)

    def _worth_merging(self, state: ClusterState, load: float, tokens_per_s: float) -> bool:
        """Whether a merge is cheap now, or the load has been low for as long as it would take.

        It is cheap where few requests have to drain: below the threshold of requests in the system.
        """
        config, rung = self._config, self._ladder.rung - 1
        draining = requests_in_system(state) / self._num_gpus / config.split_requests_per_gpu
        if draining < self._down[rung]:
            return True
        if load >= self._down[rung] or tokens_per_s > config.hysteresis_ratio * self._too_fast[rung]:
            self._low_since_s = state.now_s
        return state.now_s - self._low_since_s > answer_s(state) + LIVE_SWITCH_S


def _widths(config: FlyingServingConfig, num_base: int) -> tuple[int, ...]:
    allowed = [1 << k for k in range(num_base.bit_length())]
    for width in config.widths:
        if width not in allowed:
            raise ValueError(
                f"widths must be among {allowed} on a node of {num_base} base engines, got {width}"
            )
    return tuple(config.widths) or tuple(dict.fromkeys((num_base, 1)))
