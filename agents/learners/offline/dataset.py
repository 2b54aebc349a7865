"""Reads Minari datasets that `runners.collect` has written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from serving_gym.agents.environments.spaces import ActionSpace

NOT_INSTALLED = "{} needs the package {!r}: pip install 'serving-gym[offline]'"
_METADATA = "metadata.json"  # of Minari


@dataclass(frozen=True)
class Experience:
    """Decisions of several episodes.

    Attributes:
        observations: (M, ...) each; those at which episodes ended are among them.
        masks: (M, entries), which entries of the action were possible.
        at: (N,), which observation each decision was taken at; the following one is what it led to.
        actions: (N,), or (N, levers).
        rewards: (N,).
        dt_s: (N,), time to the next decision, seconds.
        over: (N,), whether nothing followed.
        explored: (N,), whether the action was a random one in place of the policy's.
        episodes: (N,), number of the episode.
    """

    observations: dict[str, NDArray[np.float32]]
    masks: NDArray[np.bool_]
    at: NDArray[np.int64]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    dt_s: NDArray[np.float32]
    over: NDArray[np.bool_]
    explored: NDArray[np.bool_]
    episodes: NDArray[np.int64]

    def returns(self, discount: float, interval_s: float) -> NDArray[np.float64]:
        """(N,), discounted rewards from each decision to the end of its episode.

        Args:
            discount: Over `interval_s` of time.
            interval_s: Seconds.
        """
        factors = np.where(self.over, 0.0, discount ** (self.dt_s / interval_s))
        returns, following = np.empty(len(self.at)), 0.0
        for i in reversed(range(len(self.at))):
            following = float(self.rewards[i]) + factors[i] * following
            returns[i] = following
        return returns

    def ahead(self, steps: int, discount: float, interval_s: float) -> Ahead:
        """What followed within some decisions of the same episode.

        Args:
            steps: Decisions, this one included.
            discount: Over `interval_s` of time.
            interval_s: Seconds.
        """
        last = np.append(self.episodes[1:] != self.episodes[:-1], True)
        here, going = np.arange(len(self.at)), np.ones(len(self.at), bool)
        rewards, elapsed_s = np.zeros(len(self.at)), np.zeros(len(self.at))
        for step in range(steps):
            rewards += np.where(going, discount ** (elapsed_s / interval_s) * self.rewards[here], 0.0)
            elapsed_s += np.where(going, self.dt_s[here], 0.0)
            if step + 1 < steps:
                going &= ~last[here]
                here = here + going
        return Ahead(
            rewards.astype(np.float32), elapsed_s.astype(np.float32), self.at[here] + 1, self.over[here]
        )


@dataclass(frozen=True)
class Ahead:
    """What followed each decision within some decisions.

    Attributes:
        rewards: (N,), discounted and summed.
        elapsed_s: (N,), time they took, seconds.
        at: (N,), the observation they led to.
        over: (N,), whether nothing followed it.
    """

    rewards: NDArray[np.float32]
    elapsed_s: NDArray[np.float32]
    at: NDArray[np.int64]
    over: NDArray[np.bool_]


def dataset_folder(root: Path, dataset_id: str) -> Path:
    """Where a dataset's data lie in a folder of Minari."""
    return root / dataset_id / "data"


def read_dataset(
    dataset: str,
    env_id: str,
    observation: spaces.Dict,
    action: ActionSpace,
    behaviours: Sequence[str] = (),
    best_share: float = 1.0,
    goes_on: bool = False,
) -> Experience:
    """Reads the decisions of a dataset.

    Args:
        dataset: Folder that `runners.collect` wrote, or a folder of data in it.
        env_id: Gymnasium id of the environment.
        observation: What the environment shows.
        action: What it takes.
        behaviours: Policies whose episodes are read; none: all.
        best_share: Share of them that is kept: those whose return is highest beside the others of their seed.
        goes_on: Whether a truncated episode would have gone on.

    Raises:
        ValueError: there is none, it is of another environment, or nothing is left of it.
    """
    if find_spec("minari") is None:
        raise ValueError(NOT_INSTALLED.format(f"agent.dataset={dataset}", "minari"))
    from minari import MinariDataset

    data = MinariDataset(_folder(dataset, env_id))
    _check_spaces(dataset, data, observation, action)
    about = list(data.storage.get_episode_metadata(data.episode_indices))
    chosen = _chosen(dataset, about, behaviours, best_share)
    return _joined(dataset, data, chosen, goes_on)


def _folder(dataset: str, env_id: str) -> Path:
    """The folder of the data.

    Raises:
        ValueError: there is none.
    """
    given = Path(dataset)
    for folder in (dataset_folder(given, env_id), given / "data", given):
        if (folder / _METADATA).is_file():
            return folder
    raise ValueError(
        f"agent.dataset={dataset!r} holds no dataset of {env_id}; write one with "
        f"python -m runners.collect env=... out={dataset}"
    )


def _check_spaces(dataset: str, data: Any, observation: spaces.Dict, action: ActionSpace) -> None:
    for what, own, other in (
        ("observation", data.observation_space, observation),
        ("action", data.action_space, action),
    ):
        if own != other:
            raise ValueError(
                f"agent.dataset={dataset!r} has the {what} space {own}, the environment has {other}: "
                "collect it with the same cluster and settings"
            )


def _chosen(
    dataset: str, about: list[dict[str, Any]], behaviours: Sequence[str], best_share: float
) -> list[int]:
    """Episodes to read, in their order."""
    held = sorted({str(each.get("policy")) for each in about})
    for name in behaviours:
        if name not in held:
            raise ValueError(
                f"agent.behaviours={name} is not in {dataset!r}, which holds episodes of {', '.join(held)}"
            )
    chosen = [i for i, each in enumerate(about) if not behaviours or each.get("policy") in behaviours]
    if best_share < 1.0:
        by_seed: dict[Any, list[float]] = {}
        for i in chosen:
            by_seed.setdefault(about[i].get("seed"), []).append(about[i]["return"])
        gains = {i: about[i]["return"] - float(np.mean(by_seed[about[i].get("seed")])) for i in chosen}
        number = max(1, round(best_share * len(chosen)))
        chosen = sorted(sorted(chosen, key=lambda i: -gains[i])[:number])
    if not chosen:
        raise ValueError(f"agent.dataset={dataset!r} holds no episode")
    return chosen


def _joined(dataset: str, data: Any, chosen: list[int], goes_on: bool) -> Experience:
    """The episodes one after another."""
    parts: dict[str, list[Any]] = {}
    begin = 0
    for number, episode in zip(chosen, data.iterate_episodes(data.episode_indices[chosen]), strict=True):
        missing = sorted({"action_mask", "dt"} - set(episode.infos))
        if missing:
            raise ValueError(f"agent.dataset={dataset!r} has no {missing[0]!r} in its infos")
        count = len(episode.rewards)
        ended = episode.terminations if goes_on else episode.terminations | episode.truncations
        held = {
            "masks": episode.infos["action_mask"],
            "at": begin + np.arange(count),
            "actions": episode.actions,
            "rewards": episode.rewards,
            "dt_s": episode.infos["dt"][1:],
            "over": ended,
            "explored": episode.infos.get("explored", np.zeros(count + 1, bool))[1:],
            "episodes": np.full(count, number),
            **{f"observations/{name}": part for name, part in episode.observations.items()},
        }
        for name, part in held.items():
            parts.setdefault(name, []).append(part)
        begin += count + 1
    joined = {name: np.concatenate(each) for name, each in parts.items()}
    return Experience(
        observations={
            name.removeprefix("observations/"): part.astype(np.float32, copy=False)
            for name, part in joined.items()
            if name.startswith("observations/")
        },
        masks=joined["masks"].astype(bool),
        at=joined["at"],
        actions=joined["actions"].astype(np.int64),
        rewards=joined["rewards"].astype(np.float32),
        dt_s=joined["dt_s"].astype(np.float32),
        over=joined["over"].astype(bool),
        explored=joined["explored"].astype(bool),
        episodes=joined["episodes"],
    )
