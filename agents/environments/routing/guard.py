"""A guard on the tail of first tokens, in front of what a network chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.fields import check_at_least, check_not_negative
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.routing.config import RoutingScales
from serving_gym.envs.simulator.kernel.features import CLUSTER_FEATURES
from serving_gym.envs.simulator.kernel.place_guard import GUARD, narrow_many


@dataclass(frozen=True)
class GuardConfig:
    """Which places a network may choose from: none where the first token would come much later than need be.

    At each place that can take the request the first token is expected after the prompts that wait there, its own
    without what is cached, and an iteration of the engine; where more requests would be there than run at once
    (`slots`), also after as many have ended as are too many, `slots` of them in the time that those there still take on
    average. The network chooses among the places where the first token is expected within the largest of `times_least`
    times the least of these times, of `times_usual` times what the mean prompt of the last minute takes to prefill at
    the mean speed of these places, each counted as often as it is fast (tokens, not engines, are what is counted, and
    most go to fast ones), and of `soon_s`, which nobody minds, plus `soon_of_age` times the age of the gauges (where
    what is read is old, all of these times are guesses) and `soon_of_slow` times the share of the last few seconds'
    answers that came more slowly, token by token, than promised (where prompts burst in, to let some of them wait
    together leaves other engines more time to decode).

    So whatever the network has learned, a first token is expected later than these settings allow only where it would
    be late everywhere. The place of the least time always passes, and nothing is held that some place can take. No
    latency is promised: prompts that come later, preemption, stale observations and a slow engine of which the router
    is not told are not foreseen, and time per token is otherwise left to the network. Where an observation has other
    scales than the usual ones, times are misread; training and loading refuse that, a policy in use is not told.

    Attributes:
        times_least: At least 1.
        times_usual: At least 0.
        soon_s: Seconds, at least 0.
        soon_of_age: At least 0.
        soon_of_slow: Seconds, at least 0.
        slots: Requests that a place runs at once, as vLLM's max_num_seqs; at least 1, infinite: any number.
    """

    times_least: float = 1.5
    times_usual: float = 7.5
    soon_s: float = 0.0
    soon_of_age: float = 0.0
    soon_of_slow: float = 0.0
    slots: float = math.inf

    def __post_init__(self) -> None:
        check_at_least(self, 1, "times_least", prefix="agent.guard.", finite=True)
        check_at_least(self, 1, "slots", prefix="agent.guard.")
        check_not_negative(
            self, "times_usual", "soon_s", "soon_of_age", "soon_of_slow", prefix="agent.guard.", finite=True
        )

    def numbers(self) -> NDArray[np.float64]:
        """What the kernel knows of it, (len(GUARD),), with the usual scales of the observation."""
        values = asdict(self) | asdict(RoutingScales())
        return np.array([values[name] for name in GUARD], np.float64)


def read_guard(values: Any) -> GuardConfig:
    """A guard from plain values, as a command or a checkpoint has them.

    Raises:
        ValueError: no settings, one that a guard does not have, or a value that is not allowed.
    """
    if isinstance(values, GuardConfig):
        return values
    if not isinstance(values, Mapping):
        raise ValueError(
            "agent.guard must be null or have some of times_least, times_usual, soon_s, soon_of_age, soon_of_slow and "
            f"slots, as {{times_least: 1.5}}, got {values!r}"
        )
    for key in values:
        check_choice(
            "key", f"agent.guard.{key}", [f"agent.guard.{each.name}" for each in fields(GuardConfig)]
        )
        if isinstance(values[key], bool) or not isinstance(values[key], int | float):
            raise ValueError(f"agent.guard.{key} must be a number, got {values[key]!r}")
    return GuardConfig(**values)


def check_guard(
    env: str, scales: RoutingScales | Mapping[str, float] | None, admission: bool = False
) -> None:
    """Refuses a guard where it cannot be.

    Args:
        env: Name of the environment.
        scales: Of its observation; None: the usual ones.
        admission: Whether admission is a decision.

    Raises:
        ValueError: the environment is not routing, admission is a decision, or its observation has other scales.
    """
    if env != "routing":
        raise ValueError(f"agent.guard is for env=routing alone, got env={env}; leave it null")
    if admission:
        raise ValueError("agent.guard chooses among places alone; leave it null where env.admission=true")
    if isinstance(scales, Mapping):
        scales = RoutingScales(**scales)
    if scales not in (None, RoutingScales()):
        raise ValueError(
            "agent.guard needs the usual scales of the observation; leave env.scales as they are"
        )


def guarded(
    guard: NDArray[np.float64], observation: Mapping[str, NDArray[np.float32]], masks: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """The possible actions that pass, as `masks`; to hold a request passes wherever it is possible.

    Args:
        guard: (len(GUARD),).
        observation: N first, R places.
        masks: (N, R), or (N, R + 1) with holding, which are possible.
    """
    places, request, cluster = (
        np.ascontiguousarray(observation[name]) for name in ("places", "request", "cluster")
    )
    kept = masks.copy()
    narrow_many(guard, places, request, cluster, kept)
    return kept


def passing(
    guard: GuardConfig, states: NDArray[np.float32], actions: NDArray[np.float32], valid: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """The same of states as `agent=api` keeps them, (N, K).

    Args:
        guard: The guard.
        states: (N, S), the request's part of an observation and the cluster's.
        actions: (N, K, F), places.
        valid: (N, K), which of them there are.
    """
    request, cluster = np.split(states, [states.shape[1] - len(CLUSTER_FEATURES)], axis=1)
    return guarded(guard.numbers(), {"places": actions, "request": request, "cluster": cluster}, valid)
