"""Base classes of simulated episodes: workload, SLOs, reward meter and deadline."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.randomise import NO_FRONT_END, RandomiseSpec
from serving_gym.envs.interface.reward import Outcome, RewardMeter
from serving_gym.envs.interface.slo import SLO, promises
from serving_gym.envs.interface.state import TOTALS
from serving_gym.envs.simulator.scheduling import to_ps
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.schema import Workload


class EpisodeConfig(Protocol):
    """Fields common to the configurations of all environments."""

    @property
    def workload(self) -> WorkloadSpec:
        """Requests of an episode."""
        ...

    @property
    def cluster(self) -> Any:
        """The hardware."""
        ...

    @property
    def slos(self) -> Mapping[str, SLO]:
        """SLO of each request class."""
        ...

    @property
    def objective(self) -> Objective:
        """Weights of the reward terms."""
        ...

    @property
    def randomise(self) -> RandomiseSpec:
        """Ranges of what is drawn for each episode beside its requests."""
        ...

    @property
    def drain_limit_s(self) -> float:
        """Time from the last arrival to truncation of the episode, seconds."""
        ...

    @property
    def split(self) -> str | None:
        """Split of the workload that episodes are drawn from."""
        ...


Config = TypeVar("Config", bound=EpisodeConfig)


class BaseEpisode(Generic[Config]):
    """Simulates the episodes of one configuration, one after another.

    Attributes:
        config: Configuration of the environment.
        source: Source of the requests.
        classes: Names of the request classes.
        slos: SLO of each class.
        simulator: The simulated cluster.
        deadline_ps: Time at which the episode is truncated, picoseconds.
        begun: Whether an episode has begun.
        done: Whether no episode can be stepped: before the first reset, and after the end.
        num_refused: Actions of the episode that were refused.

    Args:
        config: Configuration of the environment.

    Raises:
        ValueError: A value of the configuration is unknown or impossible.
    """

    simulator: Any
    deadline_ps: int

    def __init__(self, config: Config) -> None:
        self.config = config
        self.source = WorkloadSource(config.workload)
        self.classes = self.source.classes
        self.slos = promises(config.slos, self.classes)
        config.objective.check_classes(self.classes)
        self.meter = RewardMeter(self.classes)
        self.begun, self.done, self.num_refused = False, True, 0

    def _check_front_end(self, present: bool) -> None:
        """Raises ValueError where the front end is to be randomised, and there is none."""
        self.config.randomise.check_possible(front_end="" if present else NO_FRONT_END)

    @abstractmethod
    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode of a seed.

        Args:
            seed: Seed of the episode.
            split: Workload split that it is drawn from; None: the configuration's split.
        """

    def _start(self) -> None:
        """Resets the meter and the flags of the last episode."""
        self.meter.reset()
        self.begun, self.done, self.num_refused = True, False, 0

    def _sample(self, seed: int, split: str | None) -> Workload:
        """Draws the requests of an episode and sets its deadline."""
        workload = self.source.sample(seed, split or self.config.split)
        self.deadline_ps = to_ps(last_arrival_s(workload, self.slos) + self.config.drain_limit_s)
        self._start()
        return workload

    @property
    @abstractmethod
    def state(self) -> Any:
        """State that a policy may read at this decision."""

    @property
    @abstractmethod
    def policy_spec(self) -> PolicySpec:
        """Setting that a policy may read before an episode."""

    def _make_policy_spec(self, decision_interval_s: float, **known: Any) -> PolicySpec:
        """The policy specification, with the fields that the environment adds."""
        return PolicySpec(
            cluster=self.config.cluster,
            slos=self.slos,
            classes=self.classes,
            decision_interval_s=decision_interval_s,
            **known,
        )

    @property
    def term_weights(self) -> dict[str, float]:
        """Weight of each reward term of `info["reward_terms"]` in the reward, without the objective's scale."""
        return self.config.objective.term_weights(self.classes)

    @property
    @abstractmethod
    def gpu_seconds(self) -> float:
        """GPU-seconds that the cluster has been provisioned."""

    def unfinished(self) -> NDArray[np.int64]:
        """Requests of each class that are still in the system, (C,)."""
        return unfinished_in(self.simulator.world.stats).astype(np.int64)

    def _copy(self) -> Self:
        """A copy that shares its parts except for the simulator and the meter, which are forked."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.simulator, copy.meter = self.simulator.fork(), self.meter.fork()
        return copy

    def fork(self) -> Self:
        """Returns a copy of the episode that continues with the same random numbers."""
        return self._copy()


class SteppedEpisode(BaseEpisode[Config]):
    """An episode that is stepped on its own, not in a batch."""

    @abstractmethod
    def step(self, action: Any) -> Outcome:
        """Takes an action and simulates to the next decision."""

    @abstractmethod
    def observe(self) -> dict[str, NDArray[np.float32]]:
        """The observation of the present state."""

    @abstractmethod
    def mask(self) -> NDArray[np.bool_]:
        """Action mask, (actions,); of a `MultiDiscrete` space, the values of all entries concatenated."""


def last_arrival_s(workload: Workload, slos: tuple[SLO, ...]) -> float:
    """When the last request arrives, seconds; with sessions, if every answer took as long as its SLO allows."""
    if not workload.has_sessions:
        return float(workload.arrival_s[-1])
    limits = np.array([(slo.ttft_s, slo.tpot_s) for slo in slos])[workload.class_id]
    return workload.last_arrival_s(limits[:, 0] + limits[:, 1] * (workload.output_tokens - 1))


def unfinished_in(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Requests of each class that are still in the system, (..., C).

    Args:
        totals: (..., C, at least len(TOTALS)), running totals.
    """
    gone = sum(totals[..., TOTALS.index(name)] for name in ("refused", "failed", "finished"))
    return np.asarray(totals[..., TOTALS.index("arrived")] - gone)
