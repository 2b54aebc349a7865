"""What a router knows when a request waits for its decision, and what it can say.

Engines report gauges (vLLM's `/metrics`), which a router polls and which are as old as its last poll. What it knows at
once is what passes through its own hands: every request that it sent, and every token that streams back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.fleet import FleetCommand, Underway
from serving_gym.envs.interface.policy_spec import PolicySpec

DEFERRED_PRIORITY = 2**31 - 1  # behind every other


def _no_classes() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """The request that a decision is about: never its true output length.

    Attributes:
        index: Row of the workload.
        arrival_s: When it arrived, s.
        input_tokens: Length of its prompt.
        predicted_tokens: Predicted output length.
        max_output_tokens: What its client declared.
        priority: vLLM's convention: the lower value is served first.
        class_id: Its request class.
        deadline_s: Of its first token, s.
        region: Where it comes from.
        network_s: (places,) to each place and back, s; infinite where it cannot be sent.
        hash_ids: Ids of its prompt's prefix blocks; empty where prompts share nothing.
        hash_block_tokens: Tokens that one id covers.
        cached_tokens: (places,) of its prompt that each engine's prefix cache holds (KV events).
        held_before: Whether it has been offered before and was held.
        deferred: Whether it has been deferred.
    """

    index: int
    arrival_s: float
    input_tokens: int
    predicted_tokens: int
    max_output_tokens: int
    priority: int
    class_id: int
    deadline_s: float
    region: str
    network_s: NDArray[np.float64]
    hash_ids: NDArray[np.int32]
    hash_block_tokens: int
    cached_tokens: NDArray[np.int64]
    held_before: bool
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class RoutingState:
    """What a router may know at a decision. P places, M requests in flight, C classes.

    Attributes:
        now_s: Time, s.
        gauges_s: When the gauges in `engines` were read, s.
        engines: (P,) ENGINE_STATE_DTYPE; `status` is known at once, the rest is as of `gauges_s`.
        in_flight: (M,) IN_FLIGHT_DTYPE, in no particular order.
        request: To be decided now; None at the end of an episode.
        can_take: (P,) in service, of the request's model, and large enough for it.
        num_held: Requests in the router's queue besides the one to be decided.
        held_tokens: Their tokens to prefill.
        unsent_tokens: To prefill, of all that have no engine yet, the one to be decided included.
        gpu_seconds: (P,) for which a replica has been kept there.
        operations: Starts, stops, resizes and migrations that are not done.
        totals: (C, len(TOTALS)) counted since the episode began.
        arrived_predicted_tokens: Predicted output tokens of all that have arrived.
        held_of_class: (C,) as `num_held`; (0,) where admission is no decision.
        sent_of_class: (C,) requests sent to an engine since the episode began.
    """

    now_s: float
    gauges_s: float
    engines: NDArray[np.void]
    in_flight: NDArray[np.void]
    request: RoutedRequest | None
    can_take: NDArray[np.bool_]
    num_held: int
    held_tokens: int
    unsent_tokens: int
    gpu_seconds: NDArray[np.float64]
    operations: tuple[Underway, ...]
    totals: NDArray[np.float64]
    arrived_predicted_tokens: int
    held_of_class: NDArray[np.int64] = field(default_factory=_no_classes)
    sent_of_class: NDArray[np.int64] = field(default_factory=_no_classes)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A decision with more to it than a place.

    Attributes:
        place: Where the request goes; None: it is held in the router's queue.
        priority: Priority that its engine is to give it instead of its own; None: its own.
        commands: Commands to the fleet, before the request is sent (migrations, for one); no `Route`, which is
            what places are for.
    """

    place: int | None
    priority: int | None = None
    commands: tuple[FleetCommand, ...] = ()


@dataclass(frozen=True, slots=True)
class Reject:
    """The request is refused now, where admission is a decision: its client gets an error at once (HTTP 429)."""


@dataclass(frozen=True, slots=True)
class Defer:
    """The request goes behind all others of the router's queue, where admission is a decision.

    Its priority becomes the lowest, also at its engine. It is offered again at the retries, and can be deferred once.
    """


Verdict = Dispatch | Reject | Defer


class RoutingPolicy(Protocol):
    """Any policy of `env=routing`."""

    name: str

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Begins anew."""
        ...

    def act(self, observation: Any, state: Any) -> Any:
        """Decides."""
        ...
