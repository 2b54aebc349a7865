"""Use case 1 of Flying Serving (sections 2.3 and 3): few wide groups under light load, many engines in bursts.

The text gives the aim and no trigger. Source: ours: hysteresis on the larger of two loads, each over its threshold:
requests in the system per GPU, and prompt tokens yet to be computed per GPU. A split follows the load at once, a merge
waits until its running mean has come down as well.
"""

from __future__ import annotations

import math

from serving_gym.baselines.common.hysteresis import HysteresisLadder
from serving_gym.baselines.common.signals import requests_in_system, tokens_to_prefill
from serving_gym.baselines.flying_serving.config import FlyingServingConfig
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
        down = tuple(config.hysteresis_ratio * threshold for threshold in up)
        self._ladder = HysteresisLadder(up, down, config.dwell_s)
        self.load, self._mean, self._seen_s = 0.0, 0.0, 0.0  # load: as of the last update

    def _load(self, state: ClusterState, long_tokens: float, long_requests: float) -> float:
        """Load over the first threshold; above 1 the first split is due."""
        config = self._config
        requests = max(0.0, requests_in_system(state) - long_requests) / self._num_gpus
        tokens = max(0.0, tokens_to_prefill(state) - long_tokens) / self._num_gpus
        return max(requests / config.split_requests_per_gpu, tokens / config.split_tokens_per_gpu)

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
        return self.widths[self._ladder.step(state.now_s, load, max(load, self._mean))]


def _widths(config: FlyingServingConfig, num_base: int) -> tuple[int, ...]:
    allowed = [1 << k for k in range(num_base.bit_length())]
    for width in config.widths:
        if width not in allowed:
            raise ValueError(
                f"widths must be among {allowed} on a node of {num_base} base engines, got {width}"
            )
    return tuple(config.widths) or tuple(dict.fromkeys((num_base, 1)))
