"""Many routing episodes that one call of the kernel steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.base.episode import unfinished_in
from serving_gym.envs.base.placement import Observations
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.reward import Interval
from serving_gym.envs.routing import action as actions_of
from serving_gym.envs.routing.copy_buffers import CopyBuffers
from serving_gym.envs.routing.episode import RoutingEpisode
from serving_gym.envs.routing.observation import shapes_of
from serving_gym.envs.simulator.kernel.decisions import HANDLE_WIDTHS, OUTCOMES, decide_many, outcome_width
from serving_gym.envs.simulator.kernel.desk import DEFER, ENDED, HOLD, NO_ACTION, REJECT
from serving_gym.envs.simulator.kernel.handles import write_handle
from serving_gym.envs.simulator.kernel.place_scores import PlaceScore
from serving_gym.envs.simulator.kernel.rollouts import Rollouts, roll_many, room_for
from serving_gym.envs.simulator.kernel.state import NEED_SLOTS, REACHED

_DT, _LATENCY, _GOOD, _LOST, _SQUARE = range(len(OUTCOMES))


@dataclass(frozen=True)
class Outcomes:
    """What the time from one decision to the next brought, in each of N episodes."""

    table: NDArray[np.float64]  # (N, outcome_width(C)), unfinished requests not counted
    unfinished: NDArray[np.float64]  # (N, C), left in the system by an episode that was cut off
    terminated: NDArray[np.bool_]  # (N,) every request has been served, refused or lost
    truncated: NDArray[np.bool_]  # (N,) the drain limit was reached
    classes: tuple[str, ...]

    @property
    def dt_s(self) -> NDArray[np.float64]:
        """Seconds to the next decision, (N,)."""
        return self.table[:, _DT]

    @property
    def squares(self) -> NDArray[np.float64]:
        """Growth of the sum over requests of (TTFT / SLO) squared, (N,): in it a tail weighs more."""
        return self.table[:, _SQUARE]

    @property
    def refused(self) -> NDArray[np.float64]:
        """Requests refused, (N, C)."""
        return self.table[:, len(OUTCOMES) + 2 * len(self.classes) :]

    def rewards(self, objective: Objective) -> NDArray[np.float64]:
        """The weighted sum of the terms, (N,)."""
        misses = np.repeat((objective.ttft_attainment, objective.tpot_attainment), len(self.classes))
        if objective.class_weights:
            misses = misses * np.tile(objective.factors(self.classes), 2)
        weights = np.concatenate(
            ((0.0, -objective.latency, objective.goodput, -objective.abandoned, 0.0), -misses)
        )
        rewards = (self.table[:, : len(weights)] * weights).sum(axis=1)
        if objective.refused:
            rewards -= objective.refused * (self.refused @ objective.factors(self.classes))
        if self.truncated.any():
            promises = objective.ttft_attainment + objective.tpot_attainment
            rewards -= (promises + objective.abandoned) * self.unfinished.sum(axis=1)
            if objective.class_weights:
                rewards -= promises * (self.unfinished @ (objective.factors(self.classes) - 1.0))
        return np.asarray(objective.scale * rewards)

    def put(self, rows: NDArray[np.intp], outcomes: Outcomes) -> None:
        """Replaces some rows."""
        self.table[rows], self.unfinished[rows] = outcomes.table, outcomes.unfinished
        self.terminated[rows], self.truncated[rows] = outcomes.terminated, outcomes.truncated

    def refusals(self) -> dict[str, NDArray[np.float64]]:
        """As `Interval.refusals`, (N,) each."""
        return {f"refused/{name}": -self.refused[:, c] for c, name in enumerate(self.classes)}

    def terms(self, classes: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
        """The terms of all episodes by name, (N,) each, as `Interval.terms` has them."""
        middle = len(OUTCOMES) + len(classes)
        terms = {"latency": -self.table[:, _LATENCY]}
        for c, name in enumerate(classes):
            left = self.unfinished[:, c]
            terms[f"ttft_attainment/{name}"] = -(self.table[:, len(OUTCOMES) + c] + left)
            terms[f"tpot_attainment/{name}"] = -(self.table[:, middle + c] + left)
        lost = self.table[:, _LOST] + self.unfinished.sum(axis=1)
        nothing = np.zeros(len(self.table))
        return terms | {"goodput": self.table[:, _GOOD].copy(), "switch": -nothing, "abandoned": -lost}

    def interval(self, i: int) -> Interval:
        """The terms of one episode."""
        row, unfinished = self.table[i], self.unfinished[i]
        middle = len(OUTCOMES) + len(unfinished)
        return Interval(
            latency=float(row[_LATENCY]),
            ttft_missed=row[len(OUTCOMES) : middle] + unfinished,
            tpot_missed=row[middle : middle + len(unfinished)] + unfinished,
            good=float(row[_GOOD]),
            switched=0,
            lost=float(row[_LOST] + unfinished.sum()),
            refused=self.refused[i],
            classes=self.classes,
        )


class RoutingBatch:
    """Moves N episodes on together.

    Args:
        episodes: Of one configuration.
    """

    def __init__(self, episodes: Sequence[RoutingEpisode]) -> None:
        self.episodes = list(episodes)
        self.num_rows = episodes[0].config.num_rows
        self.classes = episodes[0].classes
        self.num_classes = len(self.classes)
        shapes = shapes_of(self.num_rows, self.num_classes, episodes[0].config.admission)
        self._shapes = {name: shape[-1] for name, shape in shapes.items()}
        self.num_actions = episodes[0].config.num_actions
        number = len(self.episodes)
        self._forget_arrays()
        self._status = np.full(number, ENDED, np.int64)
        self._before = np.zeros((number, outcome_width(self.num_classes)))
        self._pending = np.zeros(number, bool)

    def _forget_arrays(self) -> None:
        number = len(self.episodes)
        self._handles = tuple(np.zeros((number, width), np.int64) for width in HANDLE_WIDTHS)
        self._kept: list[tuple[Sequence[NDArray[Any]], ...]] = [() for _ in self.episodes]
        self._until = np.zeros(number, np.int64)
        self._touched = np.ones(number, np.bool_)
        self._buffers, self._slots = CopyBuffers(number), 0

    def __getstate__(self) -> dict[str, Any]:
        """Without the addresses of arrays, which hold in this process only."""
        return {**self.__dict__, "_handles": (), "_kept": [], "_until": None, "_buffers": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Looks for the arrays anew."""
        self.__dict__.update(state)
        self._forget_arrays()
        for i in range(len(self.episodes)):
            self.look_at(i)

    @property
    def hold(self) -> int:
        """The action that holds the request."""
        return self.num_rows

    @property
    def reject(self) -> int:
        """The action that refuses the request, where admission is a decision."""
        return self.num_rows + actions_of.REJECT

    @property
    def defer(self) -> int:
        """The action that defers the request, where admission is a decision."""
        return self.num_rows + actions_of.DEFER

    def _in_kernel(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Actions as the kernel has them; what is no action becomes one place too many."""
        chosen = np.where(actions == self.hold, HOLD, np.where(actions < 0, self.num_rows, actions))
        if self.num_actions > self.hold + 1:
            chosen = np.where(actions == self.reject, REJECT, chosen)
            chosen = np.where(actions == self.defer, DEFER, chosen)
        return chosen.astype(np.int64)

    @property
    def deciding(self) -> NDArray[np.bool_]:
        """(N,), episodes in which a request waits for a decision."""
        return self._status != ENDED

    @property
    def done(self) -> NDArray[np.bool_]:
        """(N,), episodes that are over."""
        return (self._status == ENDED) & ~self._pending

    def stop(self, rows: Sequence[int]) -> None:
        """Ends episodes where they are."""
        self._status[list(rows)] = ENDED
        self._pending[list(rows)] = False
        for i in rows:
            self.episodes[i].done = True

    def reset(self, which: Sequence[int], seeds: Sequence[int], split: str | None = None) -> Observations:
        """Begins episodes and moves them to their first decision.

        Args:
            which: Places of the episodes among the N.
            seeds: Seed of each episode.
            split: Where they are drawn from; None: the configuration's split.

        Returns:
            Observations of these episodes alone, in this order.
        """
        for i, seed in zip(which, seeds, strict=True):
            self.episodes[i].reset(seed, split)
            self.look_at(i)
        before = self._status.copy()
        self._status[:] = ENDED
        self._status[list(which)] = REACHED
        observations, table = self._run(np.full(len(self.episodes), NO_ACTION, np.int64))
        rows = list(which)
        self._before[rows] = table[rows]
        self._before[rows, _DT] = 0.0
        self._pending[rows] = self._status[rows] == ENDED
        others = np.setdiff1d(np.arange(len(self.episodes)), rows)
        self._status[others] = before[others]
        return observations.rows(rows)

    def step(self, actions: NDArray[np.int64]) -> tuple[Observations, Outcomes]:
        """Takes a decision in every episode and goes on to the next ones.

        Args:
            actions: (N,), a place, or `hold`, and where admission is a decision `reject` or `defer`; anything else is
                counted and holds.

        Raises:
            ValueError: there are not as many actions as episodes.
        """
        if actions.shape != (len(self.episodes),):
            raise ValueError(f"actions must have shape ({len(self.episodes)},), got {actions.shape}")
        observations, table = self._run(self._in_kernel(actions))
        table += self._before
        self._before[:] = 0.0
        self._pending[:] = False
        return observations, self._outcomes(table)

    def roll(
        self,
        actions: NDArray[np.int64],
        score: PlaceScore,
        window_s: NDArray[np.float64],
        most_decisions: int,
    ) -> tuple[Outcomes, int]:
        """Takes a decision in every episode and lets a score decide from there, all inside the kernel.

        Args:
            actions: (N,), as of `step`.
            score: What decides; it holds a request only where no place can take it.
            window_s: (N,), seconds after which an episode is rolled no further.
            most_decisions: Decisions after which it is rolled no further.

        Returns:
            What all of it brought, and how many decisions were taken.
        """
        number = len(self.episodes)
        rollouts = self._rollouts(slice(None), actions, window_s, most_decisions)
        room = room_for(score, self.num_rows, self.num_classes)
        worlds, traffics, tables, desks = self._handles
        themselves, no_copies = np.arange(number), np.zeros((number, 0, 3), np.int64)
        nobody_asks = np.zeros((number, 0, 0))
        while True:
            roll_many(
                worlds, traffics, tables, desks, no_copies, themselves, rollouts, score, room, nobody_asks
            )
            if not rollouts.going.any():
                break
            self._status[:], self._touched[:] = rollouts.status, rollouts.touched
            for i in np.flatnonzero(rollouts.going).tolist():
                self.episodes[i].attend(int(self._status[i]), int(rollouts.actions[i]))
                self.look_at(i)
            rollouts.actions[rollouts.going] = NO_ACTION
            rollouts.until[:], rollouts.touched[:] = self._until, self._touched
        self._status[:], self._touched[:] = rollouts.status, rollouts.touched
        self._before[:] = 0.0
        self._pending[:] = False
        return self._outcomes(rollouts.totals), number * most_decisions - int(rollouts.left.sum())

    def _rollouts(
        self,
        rows: slice | NDArray[np.int64],
        actions: NDArray[np.int64],
        window_s: NDArray[np.float64],
        most_decisions: int,
    ) -> Rollouts:
        """Rollouts that begin where some of the episodes are."""
        status = self._status[rows].copy()
        return Rollouts(
            actions=self._in_kernel(actions),
            until=self._until[rows].copy(),
            going=status != ENDED,
            touched=self._touched[rows].copy(),
            status=status,
            window_s=window_s,
            left=np.full(len(status), most_decisions, np.int64),
            totals=self._before[rows].copy(),
        )

    def roll_branches(
        self,
        owners: Sequence[int],
        actions: NDArray[np.int64],
        score: PlaceScore,
        window_s: NDArray[np.float64],
        most_decisions: int,
    ) -> tuple[Outcomes, int]:
        """`branch` and `roll` in one: what copies of some of its episodes bring, which are forgotten afterwards.

        They are made and rolled on one after another inside the kernel; only those that need their control plane become
        forks.

        Args:
            owners: (M,), which episode each is a copy of.
            actions: (M,), as of `roll`, like the rest.
            score: What decides.
            window_s: (M,).
            most_decisions: As of `roll`.
        """
        rows = np.asarray(owners, np.int64)
        for i in np.unique(rows).tolist():
            self._make_room(i)
            self._buffers.fit(i, self.episodes[i].simulator.world, self.episodes[i].desk)
        rollouts = self._rollouts(rows, actions, window_s, most_decisions)
        stats = np.stack([self.episodes[i].simulator.world.stats for i in rows.tolist()])
        _, traffics, tables, _ = self._handles
        buffers, room = self._buffers, room_for(score, self.num_rows, self.num_classes)
        roll_many(
            buffers.worlds,
            traffics,
            tables,
            buffers.desks,
            buffers.copies,
            rows,
            rollouts,
            score,
            room,
            stats,
        )
        ended = rollouts.status == ENDED
        unfinished = np.where(ended[:, None], unfinished_in(stats), 0.0)
        truncated = np.asarray(unfinished.any(axis=1))
        outcomes = Outcomes(rollouts.totals, unfinished, ended & ~truncated, truncated, self.classes)
        needy = np.flatnonzero(rollouts.going)
        for i in rows[needy[rollouts.status[needy] == NEED_SLOTS]].tolist():
            self._slots = max(self._slots, 2 * len(self.episodes[i].simulator.world.requests))
        rollouts.left[needy] = most_decisions
        decisions = len(rows) * most_decisions - int(rollouts.left.sum())
        if len(needy):
            forks = self.branch(rows[needy].tolist())
            theirs, taken = forks.roll(actions[needy], score, window_s[needy], most_decisions)
            outcomes.put(needy, theirs)
            decisions += taken
        return outcomes, decisions

    def _make_room(self, i: int) -> None:
        """Gives an episode as much room for requests as copies have come to need, so that they seldom do again."""
        simulator = self.episodes[i].simulator
        if len(simulator.world.requests) < self._slots:
            while len(simulator.world.requests) < self._slots:
                simulator.grow(NEED_SLOTS)
            self.look_at(i)

    def _outcomes(self, table: NDArray[np.float64]) -> Outcomes:
        """What the kernel has booked, and what episodes that have ended left in the system."""
        ended = self._status == ENDED
        unfinished = np.zeros((len(self.episodes), self.num_classes))
        truncated = np.zeros(len(self.episodes), bool)
        for i in np.flatnonzero(ended):
            self.episodes[i].done = True
            unfinished[i] = self.episodes[i].unfinished()
            truncated[i] = unfinished[i].any()
        return Outcomes(table, unfinished, ended & ~truncated, truncated, self.classes)

    def _run(self, actions: NDArray[np.int64]) -> tuple[Observations, NDArray[np.float64]]:
        """Calls the kernel until every episode that goes on has come to a decision or its end."""
        number, features = len(self.episodes), self._shapes
        observations = Observations.empty(
            number,
            (self.num_rows, features["places"]),
            features["request"],
            features["cluster"],
            features.get("admission", 0),
            others=self.num_actions - self.hold - 1,
        )
        table = np.zeros((number, outcome_width(self.num_classes)))
        going = self._status != ENDED
        moved = going.copy()
        worlds, traffics, tables, desks = self._handles
        while decide_many(
            worlds,
            traffics,
            tables,
            desks,
            actions,
            self._until,
            going,
            self._touched,
            self._status,
            observations.places,
            observations.request,
            observations.cluster,
            observations.admission,
            observations.masks,
            table,
        ):
            for i in np.flatnonzero(going).tolist():
                self.episodes[i].attend(int(self._status[i]), int(actions[i]))
                self.look_at(i)
            actions = np.where(going, NO_ACTION, actions)
        self._touched[moved] = False
        return observations, table

    def look_at(self, i: int) -> None:
        """Tells the kernel where an episode's arrays lie and when its control plane is due; both may have changed."""
        episode = self.episodes[i]
        if not episode.begun:
            return
        simulator = episode.simulator
        arrays: tuple[Sequence[NDArray[Any]], ...] = (
            simulator.world,
            simulator.traffic,
            simulator.tables,
            episode.desk,
        )
        for handles, now, before in zip(self._handles, arrays, self._kept[i] or arrays, strict=True):
            if now is not before or not self._kept[i]:
                write_handle(handles[i], now)
        self._kept[i] = arrays
        self._touched[i] = True
        self._until[i] = episode.next_due_ps

    def branch(self, which: Sequence[int]) -> RoutingBatch:
        """Forks of some of its episodes, in this order and as often as they are named."""
        rows = list(which)
        copy = RoutingBatch([self.episodes[i].fork() for i in rows])
        copy._status, copy._before = self._status[rows], self._before[rows]
        copy._pending = self._pending[rows]
        copy._handles = tuple(handles[rows] for handles in self._handles)  # arrivals and tables are shared
        copy._kept = [self._kept[i] for i in rows]
        for i in range(len(rows)):
            copy.look_at(i)
        return copy
