"""What every policy is, learned or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from numbers import Real
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    get_args,
    get_origin,
    runtime_checkable,
)

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.deployment.state import Deploy
from serving_gym.envs.interface.commands import Command
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.scaling import ScalingAction
from serving_gym.envs.routing.state import Verdict
from serving_gym.envs.sharing.state import Share

__all__ = [
    "Action",
    "BatchPolicy",
    "Configured",
    "Constants",
    "Policy",
    "PolicySpec",
    "Tunable",
    "history_needed_of",
    "period_of",
    "tunable",
    "tunable_choice",
]

# A command, an index of the environment's action space, or None: leave all as it is (a request stays in the queue).
# In autoscaling: changes of the number of instances, or the vector of the environment's action space.
Action = Command | Verdict | Deploy | Share | ScalingAction | NDArray[np.int64] | int | None


class Policy(Protocol):
    """Decides, at each decision, what the cluster is told.

    A policy may state `period_s`, the time between its decisions in seconds: it is then asked at that period, whatever
    the environment's own is (`period_of`). Learned agents state none.
    """

    name: str
    clairvoyant: bool  # whether it looks at the future or at true output lengths

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Forgets everything and prepares for an episode in this setting."""
        ...

    def act(self, observation: Any, state: Any) -> Action:
        """Decides.

        Args:
            observation: As the environment encodes it.
            state: What the observation is encoded from, typed: `ClusterState`, `RoutingState`,
                `DeploymentState`, `SharingState`, `AutoscalingState`.
        """
        ...


def period_of(policy: Any) -> float | None:
    """Time between a policy's decisions, seconds; None: it is asked when the environment asks.

    Args:
        policy: A `Policy`.

    Raises:
        ValueError: It is no number.
    """
    period_s = getattr(policy, "period_s", None)
    if period_s is not None and (isinstance(period_s, bool) or not isinstance(period_s, Real)):
        raise ValueError(f"period_s of policy {policy.name!r} must be seconds or None, got {period_s!r}")
    return None if period_s is None else float(period_s)


def history_needed_of(policy: Any) -> float:
    """Length of the traffic history without which a policy's decisions mean nothing, seconds; 0: it needs none.

    In the environments there is always one. Where a policy is served, it is not asked before.

    Args:
        policy: A `Policy`; one that forecasts states `history_needed_s`.
    """
    return float(getattr(policy, "history_needed_s", 0.0))


@runtime_checkable
class BatchPolicy(Policy, Protocol):
    """A policy that decides by the observation alone and so for many episodes in one call."""

    def act_batch(
        self, observation: Mapping[str, NDArray[np.float32]], masks: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Decides in each of N episodes.

        Args:
            observation: As the batched environment encodes it, N first.
            masks: (N, actions), which are possible.

        Returns:
            (N,), indices of the environment's action space.
        """
        ...


class Tunable(NamedTuple):
    """Range in which a tuner may search for a constant."""

    low: float
    high: float
    log: bool = False  # whether to search on a logarithmic scale
    values: tuple[Any, ...] = ()  # words or other values to choose among; empty: a number of the range


_TUNABLE = "tunable"  # key of a field's metadata


def tunable(default: Any, low: float, high: float, log: bool = False) -> Any:
    """A field of `Constants` that a tuner may search; arguments as in `Tunable`."""
    return field(default=default, metadata={_TUNABLE: Tunable(low, high, log)})


def tunable_choice(default: Any, *others: Any) -> Any:
    """A field of `Constants` for which a tuner may choose among the default and other values."""
    values = (default, *others)
    return field(default=default, metadata={_TUNABLE: Tunable(0.0, float(len(values)), False, values)})


class Constants:
    """Base of the dataclasses of a policy's constants."""

    @classmethod
    def tunables(cls) -> dict[str, Tunable]:
        """Constants that a tuner may search, in the order of the fields."""
        declared: Any = cls
        return {item.name: item.metadata[_TUNABLE] for item in fields(declared) if _TUNABLE in item.metadata}


ConfigT = TypeVar("ConfigT")


class Configured(Generic[ConfigT]):
    """Base of the policies that are made from a dataclass of constants: `class P(Configured[PConfig])`.

    Args:
        config: The constants; None: their defaults.
    """

    config_class: ClassVar[type[Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in vars(cls).get("__orig_bases__", ()):
            if get_origin(base) is Configured:
                (cls.config_class,) = get_args(base)

    def __init__(self, config: ConfigT | None = None) -> None:
        self.config: ConfigT = config or self.config_class()
