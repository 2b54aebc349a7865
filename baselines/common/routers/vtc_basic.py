"""AIBrix's virtual token counter (VTC), basic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_positive
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

TOKENS_A_PLACE = 100.0  # of a user's count, until its next engine is the next one
JITTER = 0.1
WINDOW_MINUTES = 60


@dataclass(frozen=True)
class VTCBasicConfig(Constants):
    """Constants of `VTCBasicPolicy`, AIBrix's defaults.

    Attributes:
        fairness_weight: Weight of the distance to the engine that the user's count points at.
        utilization_weight: Weight of an engine's running requests.
        max_load: Running requests that count as full.
        input_token_weight: What a prompt token adds to a user's count.
        output_token_weight: What a predicted output token adds.
    """

    fairness_weight: float = tunable(0.5, 0.0, 10.0)
    utilization_weight: float = tunable(0.5, 0.0, 10.0)
    max_load: float = tunable(100.0, 1.0, 1000.0, log=True)
    input_token_weight: float = 1.0
    output_token_weight: float = 2.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        check_positive(self, "max_load")


class VTCBasicPolicy(Router, Configured[VTCBasicConfig]):
    """Users wander over the engines as they use tokens, held back by load.

    AIBrix's `vtc-basic` (gateway plugins, `vtc/vtc_basic.go` and `vtc/token_tracker.go`). Of k engines that can take
    the request, the i-th scores fairness_weight x |i - (count mod 100 k) / 100| + utilization_weight x min(running /
    max_load, 1) and a draw from 0 to 0.1; the lowest wins. `count` is what the user's requests of the last 60 minutes
    have added, in buckets of a minute by when they were sent; `running` is the engine's gauge.

    Departures: a user is the request's class, as requests name no other; tokens are counted and predicted rather than
    estimated from the length of the text.
    """

    name = "vtc_basic"

    def begin(self) -> None:
        """Nobody has used anything."""
        num_classes = len(self.spec.classes)
        self._used = np.zeros((num_classes, WINDOW_MINUTES + 1))  # tokens of a user, by minute
        self._minutes = np.full((num_classes, WINDOW_MINUTES + 1), -1)  # minute of each

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The lowest score; what the request adds counts from the next on."""
        config = self.config
        able = np.flatnonzero(state.can_take)
        points_at = self._count(request.class_id, state.now_s) % (len(able) * TOKENS_A_PLACE) / TOKENS_A_PLACE
        score = config.fairness_weight * np.abs(np.arange(len(able)) - points_at)
        load = np.minimum(state.engines["num_running"][able] / config.max_load, 1.0)
        score += config.utilization_weight * load + JITTER * self.rng.random(len(able))
        self._add(
            request.class_id,
            state.now_s,
            config.input_token_weight * request.input_tokens
            + config.output_token_weight * request.predicted_tokens,
        )
        return int(able[np.argmin(score)])

    def _count(self, user: int, now_s: float) -> float:
        """Tokens of the last hour: of every minute that began no longer ago."""
        recent = self._minutes[user] * 60 >= np.floor(now_s) - WINDOW_MINUTES * 60
        return float(self._used[user][recent & (self._minutes[user] >= 0)].sum())

    def _add(self, user: int, now_s: float, tokens: float) -> None:
        minute = int(now_s // 60)
        slot = minute % (WINDOW_MINUTES + 1)
        if self._minutes[user, slot] != minute:
            self._minutes[user, slot], self._used[user, slot] = minute, 0.0
        self._used[user, slot] += tokens
