"""Many sharing episodes that one call of the kernel steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.placement import Observations
from serving_gym.envs.interface.reward import Outcome
from serving_gym.envs.interface.sharing import Event
from serving_gym.envs.sharing.config import SharingScales
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.sharing.state import Share
from serving_gym.envs.simulator.kernel.handles import write_handle
from serving_gym.envs.simulator.sharing.arrays import PS_PER_S, REACHED
from serving_gym.envs.simulator.sharing.commands import REASONS
from serving_gym.envs.simulator.sharing.decisions import HANDLE_WIDTHS, NO_ACTION, decide_many
from serving_gym.envs.simulator.sharing.features import CLUSTER_FEATURES, PLACE_FEATURES, REQUEST_FEATURES


class SharingBatch:
    """Moves W episodes on together.

    Args:
        episodes: Of one configuration.
    """

    def __init__(self, episodes: Sequence[SharingEpisode]) -> None:
        self.episodes = list(episodes)
        scales: SharingScales = episodes[0].config.scales
        self._scales = np.array([getattr(scales, item.name) for item in fields(scales)])
        self._new_handles()

    def _new_handles(self) -> None:
        self._handles = tuple(np.zeros((len(self.episodes), width), np.int64) for width in HANDLE_WIDTHS)
        for i in range(len(self.episodes)):
            self.look_at(i)

    def look_at(self, i: int) -> None:
        """Notes where an episode's arrays lie."""
        episode = self.episodes[i]
        if episode.begun:
            write_handle(self._handles[0][i], episode.simulator.world)
            write_handle(self._handles[1][i], episode.simulator.tables)

    def __getstate__(self) -> dict[str, Any]:
        """Without the addresses of arrays, which hold in this process only."""
        return {**self.__dict__, "_handles": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Looks for the arrays anew."""
        self.__dict__.update(state)
        self._new_handles()

    @property
    def num_rows(self) -> int:
        """Rows of the observation: slots and nodes."""
        return self.episodes[0].num_actions - 1

    @property
    def done(self) -> NDArray[np.bool_]:
        """(W,), episodes that are over."""
        return np.array([episode.done for episode in self.episodes])

    def reset(self, which: Sequence[int], seeds: Sequence[int], split: str | None = None) -> Observations:
        """Begins episodes and moves them to their first decision.

        Args:
            which: Places of the episodes among the W.
            seeds: Seed of each episode.
            split: Where they are drawn from; None: the configuration's split.

        Returns:
            Observations of these episodes alone, in this order.
        """
        going = np.zeros(len(self.episodes), bool)
        for i, seed in zip(which, seeds, strict=True):
            self.episodes[i].reset(seed, split)
            self.look_at(i)
            going[i] = True
        observations, _, _, _ = self._run(np.full(len(self.episodes), NO_ACTION, np.int64), going)
        return observations.rows(which)

    def stop(self, rows: Sequence[int]) -> None:
        """Ends episodes where they are."""
        for i in rows:
            self.episodes[i].done = True

    def step(
        self, actions: NDArray[np.int64], command: Share | None = None
    ) -> tuple[Observations, list[Outcome | None]]:
        """Takes a decision in every episode and goes on to the next ones.

        Args:
            actions: (W,), a slot, S + a node, or S + N to hold.
            command: What the only episode gets instead of an action.

        Returns:
            Observations, and what each episode brought; None where it was over.

        Raises:
            ValueError: there are not as many actions as episodes.
        """
        if actions.shape != (len(self.episodes),):
            raise ValueError(f"actions must have shape ({len(self.episodes)},), got {actions.shape}")
        going = ~self.done
        before = [""] * len(self.episodes)
        if command is not None:
            before[0] = "; ".join(self.episodes[0].carry_out(command))
            actions = np.full(1, NO_ACTION, np.int64)
        else:
            last = self.episodes[0].num_actions
            actions = np.where((actions < 0) | (actions >= last), last, actions).astype(np.int64)
        observations, reasons, events, costs = self._run(actions, going)
        outcomes: list[Outcome | None] = []
        for i, episode in enumerate(self.episodes):
            if not going[i]:
                outcomes.append(None)
                continue
            refused = before[i] or REASONS[reasons[i]]
            outcomes.append(self._outcome(episode, int(events[i]), float(costs[i]), refused))
        return observations, outcomes

    def returns_until(
        self,
        actions: NDArray[np.int64],
        until_s: NDArray[np.float64],
        decide: Callable[[Observations, NDArray[np.bool_]], NDArray[np.int64]],
    ) -> NDArray[np.float64]:
        """Plays episodes on, each to an instant or its end, and measures each once, there: rewards add up.

        Args:
            actions: (W,), what is done first.
            until_s: (W,), instants; infinity: to the end.
            decide: What is done then, by what is seen and which episodes still go on.

        Returns:
            (W,), sums of rewards; 0 of episodes that were over.
        """
        ends_ps = np.array([episode.deadline_ps for episode in self.episodes])
        until_ps = np.minimum(until_s * PS_PER_S, ends_ps).astype(np.int64)
        returns, going = np.zeros(len(self.episodes)), ~self.done
        while True:
            seen, _, events, costs = self._run(actions, going, until_ps)
            for i in np.flatnonzero(going & ((events == Event.END) | (events == REACHED))):
                cut_off = bool(events[i] == REACHED and until_ps[i] >= ends_ps[i])
                episode = self.episodes[i]
                interval, own, _ = episode.measure(float(costs[i]), cut_off)
                returns[i] = episode.reward(interval, own)
                episode.done, going[i] = cut_off or bool(events[i] == Event.END), False
            if not going.any():
                return returns
            actions = decide(seen, going)

    def _outcome(self, episode: SharingEpisode, event: int, cost: float, refused: str) -> Outcome:
        terminated, truncated = event == Event.END, event == REACHED
        episode.done = terminated or truncated
        episode.num_refused += bool(refused)
        if truncated:
            episode.simulator.world.clock["event"] = Event.END
        interval, own, dt_s = episode.measure(cost, truncated)
        terms, reward = interval.terms(episode.classes) | own, episode.reward(interval, own)
        return Outcome(reward, terms, dt_s, terminated, truncated, refused)

    def _run(
        self,
        actions: NDArray[np.int64],
        going: NDArray[np.bool_],
        until_ps: NDArray[np.int64] | None = None,
    ) -> tuple[Observations, NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Calls the kernel, which cuts episodes off at `until_ps`, (W,); None: at the drain limit."""
        number, setting = len(self.episodes), self.episodes[0].setting
        rows = setting.num_slots + setting.num_nodes
        cluster = len(CLUSTER_FEATURES) + len(setting.kinds)
        observations = Observations.empty(number, (rows, len(PLACE_FEATURES)), len(REQUEST_FEATURES), cluster)
        reasons, events, costs = (
            np.zeros(number, np.int64),
            np.zeros(number, np.int64),
            np.zeros(number, np.float64),
        )
        if until_ps is None:
            until_ps = np.array([episode.deadline_ps if episode.begun else 0 for episode in self.episodes])
        worlds, tables = self._handles
        decide_many(
            worlds,
            tables,
            self._scales,
            actions,
            until_ps,
            going,
            reasons,
            events,
            costs,
            observations.places,
            observations.request,
            observations.cluster,
            observations.masks,
        )
        return observations, reasons, events, costs

    def branch(self, which: Sequence[int]) -> SharingBatch:
        """Forks of some of its episodes, in this order and as often as they are named."""
        return SharingBatch([self.episodes[i].fork() for i in which])
