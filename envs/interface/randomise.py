"""Domain randomisation: how far the world of an episode may differ from the profile that policies know."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from serving_gym.calibration.fields import check_within

NUM_LEVELS = 9  # factors on iteration times that are drawn from; odd, so that 1 is among them
NO_GAUGES = "only routing reads gauges at intervals, other environments show the engines as they are"
NO_PREDICTOR = "the environment predicts no output lengths"
NO_FRONT_END = "cluster.front_end is none, or the profiles of the cluster's engines have no front end"
_STREAM = 0xD0A1


@dataclass(frozen=True)
class EpisodeFactors:
    """What was drawn for an episode; policies observe none of it.

    Attributes:
        iteration: (G,), factor on iteration times by replica group, node kind or cluster; empty: 1 for all.
        front_end: Factor on the front end's delay.
        prediction: Factor on the errors of the output-length predictor.
        gauge_age_s: Added to the time between two readings of gauges, seconds.
    """

    iteration: tuple[float, ...] = ()
    front_end: float = 1.0
    prediction: float = 1.0
    gauge_age_s: float = 0.0

    def iteration_of(self, group: int) -> float:
        """Factor on the iteration times of a group."""
        return self.iteration[group] if self.iteration else 1.0


NOMINAL = EpisodeFactors()


@dataclass(frozen=True)
class RandomiseSpec:
    """Ranges of what is drawn for each episode from its seed, whatever the policy does. All 0: the nominal world.

    A half-width w stands for a factor exp(u), with u uniform in [-w, w]. Observations, scores and heuristics keep the
    nominal profile.

    Attributes:
        speed: Half-width of the factor on iteration times, one for each group of replicas (routing, autoscaling),
            kind of node (sharing), node (dp_tp) or cluster (deployment); one of nine, evenly spaced in u.
        front_end: Half-width of the factor on the front end's delay.
        gauge_age_s: Most that is added to `gauge_interval_s`, seconds; routing only.
        prediction: Half-width of the factor on the errors of the output-length predictor.
    """

    speed: float = 0.0
    front_end: float = 0.0
    gauge_age_s: float = 0.0
    prediction: float = 0.0

    def __post_init__(self) -> None:
        check_within(self, "[0, 2]", "speed", "front_end", "prediction", prefix="randomise.")
        check_within(self, "[0, 60]", "gauge_age_s", prefix="randomise.")

    @property
    def levels(self) -> tuple[float, ...]:
        """(NUM_LEVELS,), factors on iteration times that are drawn from; none where speed is not randomised."""
        if self.speed == 0.0:
            return ()
        return tuple(np.exp(self.speed * np.linspace(-1.0, 1.0, NUM_LEVELS)).tolist())

    def draw(self, seed: int, num_groups: int) -> EpisodeFactors:
        """Draws an episode. One field's draw does not depend on the others' ranges.

        Args:
            seed: Seed of the episode.
            num_groups: G, groups with a speed of their own.
        """
        if self == _NONE:
            return NOMINAL
        rng = np.random.default_rng(np.random.SeedSequence([seed, _STREAM]))
        front_end, gauge, prediction = rng.random(3).tolist()
        chosen = rng.integers(NUM_LEVELS, size=num_groups).tolist()
        levels = self.levels
        return EpisodeFactors(
            iteration=tuple(levels[level] for level in chosen) if levels else (),
            front_end=_factor(self.front_end, front_end),
            prediction=_factor(self.prediction, prediction),
            gauge_age_s=self.gauge_age_s * gauge,
        )

    def check_possible(self, **lacking: str) -> None:
        """Raises ValueError for the first field that is not 0 although there is nothing to randomise.

        Args:
            lacking: Fields, and why each must be 0; an empty reason: it need not.
        """
        for name, reason in lacking.items():
            if reason and getattr(self, name) != 0:
                raise ValueError(f"randomise.{name} must be 0, got {getattr(self, name)}: {reason}")

    def check_live(self) -> None:
        """Raises ValueError unless all is 0: live servers are as they are."""
        reason = "live servers cannot be randomised"
        self.check_possible(**{item.name: reason for item in fields(self)})


_NONE = RandomiseSpec()


def _factor(half_width: float, drawn: float) -> float:
    return float(np.exp(half_width * (2.0 * drawn - 1.0)))
