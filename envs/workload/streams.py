"""Workloads of days and weeks, drawn piece by piece: memory holds an hour of requests, not a week.

A stream has a clock, a past and any number of pieces. A piece depends on the seed and its number alone, so that it can
be drawn again, in any order, by a fork of the world, and is the same whatever a policy does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.workload.schema import FloatArray, TokenArray, Workload

MINUTE_S = 60.0
_PROBE = 20_000  # draws from which the mean and spread of lengths are taken

# Lengths of requests: random stream, (n,) class and (n,) model of each, to (n,) input and (n,) output tokens.
Lengths = Callable[[np.random.Generator, NDArray[np.int32], NDArray[np.int32]], tuple[TokenArray, TokenArray]]


class RequestStream(Protocol):
    """One episode's requests and their past. C classes, L models, R regions."""

    @property
    def clock_s(self) -> float:
        """Time on the clock when the episode begins: seconds since Monday, 0:00."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """(C,) names of request classes."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """(L,) names of the models; the single name "" is any model of the cluster."""
        ...

    @property
    def regions(self) -> tuple[str, ...]:
        """(R,) regions of origin; the single name "" is any region of the cluster."""
        ...

    @property
    def priorities(self) -> tuple[int, ...]:
        """Priorities that requests may have."""
        ...

    @property
    def duration_s(self) -> float:
        """Time for which requests arrive, seconds."""
        ...

    @property
    def piece_s(self) -> float:
        """Length of a piece, seconds."""
        ...

    @property
    def num_pieces(self) -> int:
        """Pieces of the episode, each later than the one before."""
        ...

    def piece(self, number: int) -> Workload:
        """Requests of a piece, times counted since the episode began; there may be none."""
        ...

    def past(self, bin_s: float, num_bins: int) -> FloatArray:
        """(C, L, R, num_bins, 3), requests and their input and output tokens in bins that end where the episode begins.

        Args:
            bin_s: Length of a bin, seconds.
            num_bins: How many.
        """
        ...

    def expected(self, bin_s: float, num_bins: int) -> FloatArray:
        """(C, L, R, num_bins, 3), the same in expectation for future bins: only for clairvoyant references."""
        ...


@runtime_checkable
class Streaming(Protocol):
    """A generator that draws streams."""

    def stream(
        self, seed: np.random.SeedSequence, past_s: float, duration_s: float, factor: float = 1.0
    ) -> RequestStream:
        """An episode.

        Args:
            seed: Which.
            past_s: Length of its past, seconds.
            duration_s: For which requests arrive, seconds.
            factor: On all rates.
        """
        ...


@dataclass(frozen=True, eq=False)
class MinuteStream:
    """Poisson arrivals whose rates are constant within a minute.

    Attributes:
        name: What its workloads are called.
        seed: What its draws depend on.
        clock_s: Seconds since Monday, 0:00, when the episode begins.
        classes: (C,) names.
        priorities: (C,) priority of each class.
        models: (L,) names.
        regions: (R,) names.
        rates_rps: (C, L, R, T), requests per second by minute; the past first.
        past_minutes: How many of the T minutes lie before the episode.
        duration_s: For which requests arrive.
        lengths: Draws lengths.
        max_output_tokens: Cap that every request declares.
        piece_s: Length of a piece, whole minutes.
    """

    name: str
    seed: np.random.SeedSequence
    clock_s: float
    classes: tuple[str, ...]
    priorities: tuple[int, ...]
    models: tuple[str, ...]
    regions: tuple[str, ...]
    rates_rps: FloatArray
    past_minutes: int
    duration_s: float
    lengths: Lengths
    max_output_tokens: int
    piece_s: float = 3600.0

    def __post_init__(self) -> None:
        expected = (len(self.classes), len(self.models), len(self.regions))
        if self.rates_rps.shape[:3] != expected:
            raise ValueError(f"rates_rps must have the shape {expected} + (T,), got {self.rates_rps.shape}")
        if not (np.isfinite(self.rates_rps).all() and self.rates_rps.min(initial=0.0) >= 0):
            raise ValueError("rates_rps must be finite and not negative")
        minutes = self.rates_rps.shape[3] - self.past_minutes
        if not 0 < self.duration_s <= minutes * MINUTE_S:
            raise ValueError(
                f"duration_s must be positive and at most the {minutes} minutes of rates_rps, got {self.duration_s}"
            )

    @property
    def num_pieces(self) -> int:
        """Pieces of the episode."""
        return int(-(-self.duration_s // self.piece_s))

    @lru_cache(maxsize=4)  # noqa: B019 -- forks of one episode ask for the same pieces; a few are kept at most
    def piece(self, number: int) -> Workload:
        """Requests of a piece."""
        counts, places, lengths = (np.random.default_rng(seed) for seed in self._child(1, number).spawn(3))
        first = round(number * self.piece_s / MINUTE_S)
        last = min(round((number + 1) * self.piece_s / MINUTE_S), self.rates_rps.shape[3] - self.past_minutes)
        rates = self.rates_rps[..., self.past_minutes + first : self.past_minutes + last]
        drawn = counts.poisson(rates * MINUTE_S)
        cells = np.repeat(np.arange(drawn.size), drawn.ravel())
        *kinds, minute = np.unravel_index(cells, drawn.shape)
        arrival_s = (first + minute + places.random(len(cells))) * MINUTE_S
        order = np.argsort(arrival_s, kind="stable")
        order = order[: int(np.searchsorted(arrival_s[order], self.duration_s))]
        class_id, model_id, region_id = (column[order].astype(np.int32) for column in kinds)
        input_tokens, output_tokens = self.lengths(lengths, class_id, model_id)
        return Workload(
            arrival_s=arrival_s[order],
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            max_output_tokens=np.full(len(order), self.max_output_tokens, np.int32),
            priority=np.asarray(self.priorities, np.int32)[class_id],
            class_id=class_id,
            classes=self.classes,
            model_id=model_id,
            models=self.models,
            region_id=region_id,
            regions=self.regions,
            name=self.name,
        )

    def past(self, bin_s: float, num_bins: int) -> FloatArray:
        """Requests and tokens before the episode; their sums are drawn, requests are not."""
        each = self._minutes(bin_s)
        need = each * num_bins
        if need > self.past_minutes:
            raise ValueError(
                f"the past must be at most {self.past_minutes} minutes long, got {num_bins} bins of {bin_s:g} s"
            )
        counts, tokens = (np.random.default_rng(seed) for seed in self._child(0, 0).spawn(2))
        drawn = counts.poisson(self.rates_rps[..., : self.past_minutes] * MINUTE_S).astype(np.float64)
        requests = _binned(drawn[..., self.past_minutes - need :], each)
        mean, spread = self._length_moments()
        noise = tokens.standard_normal((*requests.shape, 2))
        sums = requests[..., None] * mean[:, :, None, None] + (
            np.sqrt(requests)[..., None] * spread[:, :, None, None] * noise
        )
        return np.concatenate([requests[..., None], np.maximum(np.rint(sums), requests[..., None])], axis=-1)

    def expected(self, bin_s: float, num_bins: int) -> FloatArray:
        """Requests and tokens to come, in expectation; none beyond the episode."""
        each = self._minutes(bin_s)
        rates = self.rates_rps[..., self.past_minutes :] * MINUTE_S
        padded = np.zeros((*rates.shape[:3], each * num_bins))
        kept = min(rates.shape[3], padded.shape[3], round(self.duration_s / MINUTE_S))
        padded[..., :kept] = rates[..., :kept]
        requests = _binned(padded, each)
        mean, _ = self._length_moments()
        return np.concatenate([requests[..., None], requests[..., None] * mean[:, :, None, None]], axis=-1)

    def _child(self, *key: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed.entropy, spawn_key=(*self.seed.spawn_key, *key))

    def _minutes(self, bin_s: float) -> int:
        each = round(bin_s / MINUTE_S)
        if each < 1 or abs(each * MINUTE_S - bin_s) > 1e-9:
            raise ValueError(f"bin_s must be whole minutes, got {bin_s:g} s")
        return each

    def _length_moments(self) -> tuple[FloatArray, FloatArray]:
        """(C, L, 2) mean and standard deviation of input and output tokens."""
        mean = np.zeros((len(self.classes), len(self.models), 2))
        spread = np.zeros_like(mean)
        for c in range(len(self.classes)):
            for m in range(len(self.models)):
                rng = np.random.default_rng([c, m])
                drawn = np.stack(
                    self.lengths(rng, np.full(_PROBE, c, np.int32), np.full(_PROBE, m, np.int32))
                )
                mean[c, m], spread[c, m] = drawn.mean(axis=1), drawn.std(axis=1)
        return mean, spread


def _binned(minutes: FloatArray, each: int) -> FloatArray:
    """Sums over `each` minutes, (..., T) to (..., T / each)."""
    return np.asarray(minutes.reshape(*minutes.shape[:-1], -1, each).sum(axis=-1), np.float64)


@dataclass(frozen=True, eq=False)
class WholeStream:
    """A workload that is drawn at once, cut into hours; its past is another episode of it.

    Attributes:
        workload: The episode's requests.
        before: Requests that came before; it ends where the episode begins.
        clock_s: Seconds since Monday, 0:00, when the episode begins.
        longest_s: Requests that arrive later are left out.
        piece_s: Length of a piece.
    """

    workload: Workload
    before: Workload
    clock_s: float
    longest_s: float
    piece_s: float = 3600.0

    @property
    def duration_s(self) -> float:
        """Time for which requests arrive."""
        last = float(self.workload.arrival_s[-1]) if len(self.workload) else 0.0
        return min(np.nextafter(last, np.inf), self.longest_s)

    @property
    def classes(self) -> tuple[str, ...]:
        """Request classes."""
        return self.workload.classes

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return self.workload.models

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions that requests come from."""
        return self.workload.regions

    @property
    def priorities(self) -> tuple[int, ...]:
        """Priorities of the workload."""
        return tuple(int(value) for value in np.unique(self.workload.priority))

    @property
    def num_pieces(self) -> int:
        """Pieces of the episode."""
        return int(-(-self.duration_s // self.piece_s))

    def piece(self, number: int) -> Workload:
        """Requests of a piece."""
        edges = (number * self.piece_s, min((number + 1) * self.piece_s, self.duration_s))
        first, last = (int(row) for row in np.searchsorted(self.workload.arrival_s, edges))
        return self.workload.rows(first, last)

    def past(self, bin_s: float, num_bins: int) -> FloatArray:
        """Requests and tokens before the episode; none before the earlier episode began."""
        ends_s = self.before.duration_s
        return self._count(self.before, self.before.arrival_s - ends_s + num_bins * bin_s, bin_s, num_bins)

    def expected(self, bin_s: float, num_bins: int) -> FloatArray:
        """Requests and tokens to come: those that do."""
        return self._count(self.workload, self.workload.arrival_s, bin_s, num_bins)

    def _count(self, of: Workload, time_s: FloatArray, bin_s: float, num_bins: int) -> FloatArray:
        shape = (len(self.classes), len(self.models), len(self.regions), num_bins)
        number = np.floor(time_s / bin_s).astype(np.int64)
        inside = (number >= 0) & (number < num_bins)
        cell = np.ravel_multi_index(
            (of.class_id[inside], of.model_id[inside], of.region_id[inside], number[inside]), shape
        )
        sums = [
            np.bincount(cell, weights, int(np.prod(shape))).reshape(shape)
            for weights in (None, of.input_tokens[inside], of.output_tokens[inside])
        ]
        return np.stack(sums, axis=-1).astype(np.float64)
