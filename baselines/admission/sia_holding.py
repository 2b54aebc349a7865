"""Holding as Sia's assignment does it: a request waits until some engine has room for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.admission.admitter import HOLD, Admitter
from serving_gym.baselines.common.router import in_flight_counts, in_flight_sum
from serving_gym.baselines.policy import Action, Configured, Constants, tunable
from serving_gym.calibration.fields import check_within
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class SiaHoldingConfig(Constants):
    """Constants of `SiaHoldingPolicy`. Source of the defaults: an engine's own limits, as in `baselines.sia`.

    Attributes:
        batch_share: Share of an engine's largest batch that may be in flight there.
        kv_share: Share of its KV pool that the prompts and tokens in flight there may take.
    """

    batch_share: float = tunable(1.0, 0.02, 1.0)
    kv_share: float = tunable(1.0, 0.02, 1.0)

    def __post_init__(self) -> None:
        check_within(self, "(0, 1]", "batch_share", "kv_share")


class SiaHoldingPolicy(Admitter, Configured[SiaHoldingConfig]):
    """Holds a request while no engine has room for it in its batch and its KV pool; it may go only where there is room.

    The capacity constraints of Sia's integer program (SOSP 2023), as `baselines.sia.policy` reads them for requests: an
    engine takes what its batch and its free KV hold by what is in flight, an idle one takes any request. Held requests
    are offered in order of priority. Which of the engines with room a request goes to, the placement policy says; Sia
    itself, with its goodputs, is policy `sia`.
    """

    name = "sia_holding"
    once = False

    def judge(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Holds what has no room."""
        return None if (state.can_take & self._room(state, request)).any() else HOLD

    def place(self, observation: Any, state: RoutingState, request: RoutedRequest) -> Action:
        """Among the engines with room."""
        can_take = state.can_take & self._room(state, request)
        return self.router.act(observation, replace(state, can_take=can_take))

    def _room(self, state: RoutingState, request: RoutedRequest) -> NDArray[np.bool_]:
        """(P,), engines with room for the request."""
        engines, flying = self.spec.fleet, state.in_flight
        requests = in_flight_counts(state)
        tokens = in_flight_sum(state, flying["input_tokens"] + flying["generated_tokens"])
        batch = np.maximum(self.config.batch_share * engines.max_num_seqs, 1.0)
        fits = (requests < batch) & (
            tokens + request.input_tokens <= self.config.kv_share * engines.kv_capacity_tokens
        )
        return np.asarray(fits | (requests == 0))
