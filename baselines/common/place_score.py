"""Placement on shared nodes by a weighted sum of what the observation shows of each place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.sharing import SharingPolicy
from serving_gym.baselines.policy import Tunable
from serving_gym.calibration.fields import check_finite
from serving_gym.envs.interface.sharing import Event
from serving_gym.envs.sharing.state import SharingState
from serving_gym.envs.simulator.sharing.features import PLACE_FEATURES

_COLUMNS = {name: PLACE_FEATURES.index(name) for name in PLACE_FEATURES}
_NEW, _NODE_USED, _REPLACES = (_COLUMNS[name] for name in ("new", "node_used", "replaces"))
_KEPT = "keep_"  # before the names of features that count against what is replaced


@dataclass(frozen=True)
class PlaceScoreConfig:
    """Costs of a place, each by a unit of a feature of `envs.simulator.sharing.features`. Source: ours.

    Attributes:
        node_cycle_s: Of a decode iteration of every instance of its node.
        node_backlog_s: Of prefill work that waits on its node.
        own_prefill_s: Of the request's prefill there.
        ready_s: Of the time until the place serves.
        kv_demand: Of what its requests require of its pool.
        new: Of a new instance.
        new_node: Of a new instance on a node that has none.
        replaces: Of each idle instance of another model that is unloaded for the request.
        keep_asked_s: What it saves that nobody has asked for that model for a while.
        keep_gap_30s: What it saves that requests of that model come rarely, as the last 30 s say.
        keep_gap_3m: The same, as the last 3 minutes say.
        keep_gap_30m: The same, as the last 30 minutes say.
    """

    node_cycle_s: float = 1.0
    node_backlog_s: float = 1.0
    own_prefill_s: float = 0.5
    ready_s: float = 1.0
    kv_demand: float = 0.5
    new: float = 0.2
    new_node: float = 0.5
    replaces: float = 12.0
    keep_asked_s: float = 0.0
    keep_gap_30s: float = 0.0
    keep_gap_3m: float = 0.0
    keep_gap_30m: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self, *vars(self))

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Ranges of the constants."""
        ranges = {item.name: Tunable(-1.0, 4.0) for item in fields(PlaceScoreConfig)}
        return ranges | {"replaces": Tunable(0.0, 40.0)}


class PlaceScorePolicy(SharingPolicy):
    """Sends a request to the place of least cost that can take it; it holds none that some place can take."""

    name = "place_score"

    def __init__(self, config: PlaceScoreConfig | None = None) -> None:
        self.config = config or PlaceScoreConfig()
        self._weights = np.zeros(len(PLACE_FEATURES), np.float32)
        for name, weight in asdict(self.config).items():
            if name in _COLUMNS:
                self._weights[_COLUMNS[name]] = weight
        kept = {name: w for name, w in asdict(self.config).items() if name.startswith(_KEPT)}
        self._kept_columns = [_COLUMNS[name.removeprefix(_KEPT)] for name in kept]
        self._kept = np.array(list(kept.values()), np.float32)

    def act(self, observation: Any, state: SharingState) -> int | None:
        """The place of least cost, or None: hold."""
        if state.event != Event.PLACEMENT:
            return None
        rows = observation["places"]
        masks = np.append(rows[:, 0] > 0, True)
        return int(self.act_batch({"places": rows[None]}, masks[None])[0])

    def act_batch(
        self, observation: Mapping[str, NDArray[np.float32]], masks: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The place of least cost in each of N episodes, (N,); what nobody can take is held."""
        places = observation["places"]
        costs = places @ self._weights
        costs += self.config.new_node * places[:, :, _NEW] * (1.0 - places[:, :, _NODE_USED])
        replacing = places[:, :, _REPLACES]
        if replacing.any():
            costs -= replacing * (places[:, :, self._kept_columns] @ self._kept)
        costs = np.where(masks[:, :-1], costs, np.inf)
        best = costs.argmin(axis=1)
        return np.where(masks[:, :-1].any(axis=1), best, masks.shape[1] - 1).astype(np.int64)
