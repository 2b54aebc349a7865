"""PreServe's request router (section 4.3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router, lowest
from serving_gym.baselines.policy import Action, Configured, Constants, tunable, tunable_choice
from serving_gym.baselines.preserve.look_ahead import EXTENSION_RATIO, Load, anticipated_load
from serving_gym.calibration.fields import check_not_negative, check_positive, check_within
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class PreServeConfig(Constants):
    """Constants of `PreServePolicy`.

    Attributes:
        lookahead_iterations: l, iterations that the router looks ahead. Source: section 4.3.1.
        extension_ratio: Share of its present length by which the response of a late request is extended. Source:
            section 4.3.1.
        ideal_usage: T_mem, KV usage above which a request is charged for the risk of preemption, share of the
            capacity. Source: section 4.3.3.
        memory_weight: beta, weight of L_m. Source: section 4.3.3.
        prefill_weight: Weight of L_p. Source: section 4.3.3, where it has none.
        decode_weight: Weight of L_d. Source: section 4.3.3, where it has none.
        overload_usage: KV usage above which an iteration is overloaded, share of the capacity. Source: section 4.3.2.
        overload_share: An instance counts as overloaded if more than this share of the next l iterations is. Source:
            section 4.3.2.
        overload_with_request: Whether overload is judged with the request virtually added. Source: section 4.3.3 adds
            it before it asks the map; section 4.3.2 speaks of the instance alone.
        unprefilled_in_map: Whether requests that were sent and are not prefilled are in the map. Source: ours; the
            events of section 4.3.1 add them when their prefill is complete.
        leave_out_overloaded: Whether the arg min leaves overloaded instances out. Source: ours; the text holds a
            request "if all instances are overloaded" and writes the arg min over all.
    """

    lookahead_iterations: int = 100
    extension_ratio: float = EXTENSION_RATIO
    ideal_usage: float = tunable(0.8, 0.3, 1.0)
    memory_weight: float = tunable(1.0, 0.05, 20.0, log=True)
    prefill_weight: float = tunable(1.0, 0.05, 20.0, log=True)
    decode_weight: float = tunable(1.0, 0.05, 20.0, log=True)
    overload_usage: float = tunable(0.95, 0.7, 1.5)
    overload_share: float = tunable(0.1, 0.0, 1.0)
    overload_with_request: bool = tunable_choice(True, False)
    unprefilled_in_map: bool = tunable_choice(True, False)
    leave_out_overloaded: bool = tunable_choice(True, False)

    def __post_init__(self) -> None:
        if self.lookahead_iterations < 1 or self.lookahead_iterations != int(self.lookahead_iterations):
            raise ValueError(
                f"lookahead_iterations must be a whole number of at least 1, got {self.lookahead_iterations}"
            )
        check_not_negative(self, "extension_ratio", "memory_weight", "prefill_weight", "decode_weight")
        check_positive(self, "ideal_usage", "overload_usage")
        check_within(self, "[0, 1]", "overload_share")


class PreServePolicy(Router, Configured[PreServeConfig]):
    """Sends a request where prompt work, decode work and the risk of KV overflow are least, all in tokens.

    L_i = L_p + L_d + beta L_m (section 4.3.3), each for the request on instance i; the least L_i takes it, the first of
    several. Where the text leaves a choice:

    * `queued_p` are the prompts of requests sent there whose first token has not come, whole: how much of a prompt is
      computed cannot be seen from outside, nor what a prefix cache held of it.
    * `current_d` are the tokens that its requests in flight are predicted to generate yet, extensions of late ones
      included. Those whose prefill is not complete count too, as the request itself does.
    * "If all instances are overloaded, the request is queued" names no rule for overloaded: that of section 4.3.2 is
      taken (KV usage above 95 % in more than 10 % of the next l iterations). It counts the request itself and those
      that were sent and are not prefilled, and an instance that is overloaded by it takes no request: so none is sent
      where it would have to wait for memory. The literal reading is `preserve_literal`: neither counts, and the arg
      min goes over all instances as long as one is not overloaded.
    * An instance without a request in flight is never overloaded: no request is held for ever.
    * "If the queue capacity is surpassed, the request is aborted": the environment refuses one more than it holds.
    * Preemptions in the engine cannot be seen: a preempted request stays in the map.
    """

    name = "preserve"

    def begin(self) -> None:
        """Looks up the instances' capacities."""
        config = self.config
        self._capacity_tokens = self.spec.fleet.kv_capacity_tokens.astype(np.float64)
        self._limit_tokens = config.overload_usage * self._capacity_tokens
        self._ideal_tokens = config.ideal_usage * self._capacity_tokens

    def anticipated(self, state: RoutingState, request: RoutedRequest) -> Load:
        """What the load anticipators of all instances say with the request virtually added."""
        config = self.config
        return anticipated_load(
            state.in_flight,
            config.lookahead_iterations,
            config.extension_ratio,
            request.input_tokens,
            max(request.predicted_tokens, 1),
            self._ideal_tokens,
            self._limit_tokens,
            config.unprefilled_in_map,
            config.overload_with_request,
        )

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The least loaded instance, or None while all that can take the request are overloaded."""
        config, ahead = self.config, self.anticipated(state, request)
        busy = ahead.remaining_tokens > 0
        free = state.can_take & ~(busy & (ahead.overloaded > config.overload_share))
        if not free.any():
            return None
        prefill = ahead.queued_tokens + request.input_tokens
        decode = ahead.remaining_tokens + max(request.predicted_tokens, 1)
        load: NDArray[np.float64] = (
            config.prefill_weight * prefill
            + config.decode_weight * decode
            + config.memory_weight * ahead.overflow_tokens
        )
        return lowest(load, free if config.leave_out_overloaded else state.can_take)
