"""Moments of traffic: what is seen of a model's demand then, and how long until it is asked for again.

Arrivals do not depend on who is kept in memory, so nothing has to be simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.sharing.config import SharingScales
from serving_gym.envs.simulator.sharing.arrays import DEMAND_S
from serving_gym.envs.simulator.sharing.demand import demand_at
from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES
from serving_gym.envs.workload.registry import WorkloadSource
from serving_gym.envs.workload.schema import Workload

DEMAND_FEATURES = ("asked_s", "known_s", "gap_30s", "gap_3m", "gap_30m")
SCALE_S = SharingScales().latency_s  # of what is seen, which are logarithms
DEMAND = slice(PLACE_FEATURES.index(DEMAND_FEATURES[0]), PLACE_FEATURES.index(DEMAND_FEATURES[-1]) + 1)


@dataclass(frozen=True)
class Moments:
    """M of them.

    Attributes:
        seen: (M, len(DEMAND_FEATURES)), as in the rows of the observation.
        until_s: (M,), seconds until the next request of the model, or until the end if there is none.
        asked: (M,), whether there is one.
    """

    seen: NDArray[np.float32]
    until_s: NDArray[np.float64]
    asked: NDArray[np.bool_]

    def rows(self, which: NDArray[np.int64]) -> Moments:
        """Some of them."""
        return Moments(self.seen[which], self.until_s[which], self.asked[which])

    def __len__(self) -> int:
        return len(self.until_s)


def joined(parts: Sequence[Moments], most: int) -> Moments:
    """The last of all, those of the first part first.

    Args:
        parts: At least one.
        most: Of them.
    """
    seen = np.concatenate([part.seen for part in parts])[-most:]
    until_s = np.concatenate([part.until_s for part in parts])[-most:]
    return Moments(seen, until_s, np.concatenate([part.asked for part in parts])[-most:])


def draw_moments(source: WorkloadSource, seed: int, number: int, rng: np.random.Generator) -> Moments:
    """Moments of an episode of the training split, drawn evenly from the time since each model was first asked for.

    Args:
        source: Of episodes.
        seed: Which episode.
        number: Of each model that is asked for at all.
        rng: Draws the moments.
    """
    return moments_of(source.sample(seed, "train"), number, rng)


def moments_of(workload: Workload, number: int, rng: np.random.Generator) -> Moments:
    """The same of an episode at hand."""
    end_s = float(workload.arrival_s[-1])
    order = np.argsort(workload.model_id, kind="stable")
    each = np.split(workload.arrival_s[order], np.flatnonzero(np.diff(workload.model_id[order])) + 1)
    total = number * len(each)
    found = Moments(
        np.zeros((total, len(DEMAND_FEATURES)), np.float32), np.zeros(total), np.zeros(total, bool)
    )
    for i, arrival_s in enumerate(each):
        at_s = np.sort(arrival_s[0] + rng.random(number) * (end_s - arrival_s[0]))
        rows = slice(i * number, (i + 1) * number)
        demand = np.zeros(2 + len(DEMAND_S))
        demand_at(
            arrival_s, at_s, end_s, SCALE_S, demand, found.seen[rows], found.until_s[rows], found.asked[rows]
        )
    return found
