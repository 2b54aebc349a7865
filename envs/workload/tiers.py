"""Workload of several service tiers, models and regions, after SageServe's characterisation (Jaiswal et al., 2025).

Two interactive tiers, fast (``iw_f``) and normal (``iw_n``), follow the hour and the day of the week; a tier that is
not interactive (``niw``) arrives evenly (section 3). The traces of the paper are not public, so the shapes are fitted
to what is (:mod:`envs.workload.tiers_fit`): the week to tokens per second read off a figure of the authors' notebooks,
the bursts within the hour to Azure's week of 2024, and lengths are drawn from the generators fitted to Azure's two
services of 2023. Their mixture has what section 7.1 says of the tokens: most prompts above 1,000, most answers below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import i0

from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.envs.workload.generators import AZURE_LENGTHS, AzureLengths, autoregress, load_fitted
from serving_gym.envs.workload.schema import FloatArray, TokenArray, Workload
from serving_gym.envs.workload.streams import MinuteStream

IW_F, IW_N, NIW = "iw_f", "iw_n", "niw"
TIERS = (IW_F, IW_N, NIW)  # in the order of their priorities
HOURS_OF_WEEK = 168
WEEKEND_H = 120  # begin of Saturday

_MINUTE_S = 60.0
_MINUTES_PER_DRAW = 1024
_NOT_NEGATIVE = ("daily_amplitude", "minute_noise", "slow_noise")


@dataclass(frozen=True)
class TieredTraffic(AzureLengths):
    """Poisson arrivals whose rate is constant within a minute and changes from one to the next.

    The rate of interactive requests is ``exp(a cos(2 pi (h - peak) / 24))`` on weekdays, ``weekend_ratio`` at weekends,
    times log-normal noise: one part that each minute draws anew, one with a memory.

    Attributes:
        mean_rps: mean rate of all tiers over a week, requests per second.
        shares: share of the requests by tier, over a week; scaled to sum to 1. Section 3: the interactive ones are
            72 %, and iw_f are more than iw_n, which are more than niw; halfway between what that leaves open: ours.
        models: share of the requests by model; empty: whichever the cluster serves.
        regions: share of the requests by region they come from; empty: wherever the cluster is.
        start_h: hour of the week at which the workload begins, 0 for the begin of Monday; None: drawn.
        code_share: share of requests with the lengths of Azure's coding service, the others have those of its chat
            service. Source: their numbers of requests in 2023.
        daily_amplitude: a, in log rate. Fitted.
        peak_h: hour of the day of the peak. Fitted.
        weekend_ratio: rate at weekends over the (geometric) mean of weekdays. Fitted.
        minute_noise: standard deviation of the log rate from minute to minute. Fitted.
        slow_noise: standard deviation of the log rate that lasts. Fitted.
        slow_memory_s: time over which its correlation falls to 1/e, seconds. Fitted.
        num_requests: default length of an episode, requests.
    """

    mean_rps: float = 10.0
    shares: Mapping[str, float] = field(default_factory=lambda: {IW_F: 0.40, IW_N: 0.32, NIW: 0.28})
    models: Mapping[str, float] = field(default_factory=dict)
    regions: Mapping[str, float] = field(default_factory=dict)
    start_h: float | None = None
    code_share: float = 0.313
    daily_amplitude: float = 0.383
    peak_h: float = 15.42
    weekend_ratio: float = 0.221
    minute_noise: float = 0.092
    slow_noise: float = 0.055
    slow_memory_s: float = 1159.0
    num_requests: int = 4000

    name = "sageserve_tiers"

    def __post_init__(self) -> None:
        check_positive(self, "mean_rps", "weekend_ratio", "slow_memory_s", finite=True)
        check_not_negative(self, *_NOT_NEGATIVE, finite=True)
        check_within(self, "[0, 1]", "code_share")
        check_within(self, f"[0, {HOURS_OF_WEEK})", "start_h")
        unknown = [name for name in self.shares if name not in TIERS]
        if unknown:
            raise ValueError(f"shares names the tier {unknown[0]!r}; tiers are {', '.join(TIERS)}")
        if not self.shares:
            raise ValueError(f"shares must name at least one tier of {', '.join(TIERS)}")
        for name in ("shares", "models", "regions"):
            if getattr(self, name):
                check_shares(name, getattr(self, name))
        check_at_least(self, 1, "num_requests")

    @property
    def classes(self) -> tuple[str, ...]:
        """Tiers, in the order of their priorities."""
        return TIERS

    @property
    def rate_rps(self) -> float:
        """Mean rate over a week, requests per second."""
        return self.mean_rps

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a workload; its clock starts at `start_h`."""
        begin, arrivals, minutes, slow, tiers, lengths, places = rng.spawn(7)
        drawn = float(begin.uniform(0, HOURS_OF_WEEK))
        start_h = drawn if self.start_h is None else float(self.start_h)
        arrival_s, interactive_ratio = self._arrivals(num_requests, start_h, arrivals, minutes, slow)
        tier = self._tiers(interactive_ratio, tiers)
        input_tokens, output_tokens = self._lengths(num_requests, lengths)
        return Workload(
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            max_output_tokens=np.full(num_requests, self.max_output_tokens, np.int32),
            priority=tier,
            class_id=tier,
            classes=TIERS,
            **self._places(num_requests, places),
            name=self.name,
            provenance="generated; SageServe, section 3, fitted to public data (envs/workload/tiers_fit.py)",
        )

    def stream(
        self, seed: np.random.SeedSequence, past_s: float, duration_s: float, factor: float = 1.0
    ) -> MinuteStream:
        """Draws an episode of days: the rates of its minutes and of those before; requests come by the hour."""
        begin, minutes, slow = (np.random.default_rng(child) for child in seed.spawn(3))
        drawn = float(begin.integers(HOURS_OF_WEEK))
        start_h = drawn if self.start_h is None else float(self.start_h)
        past_minutes = int(-(-past_s // _MINUTE_S))
        count = past_minutes + int(-(-duration_s // _MINUTE_S))
        interactive, _ = self._rates(
            start_h - past_minutes / 60.0, minutes.standard_normal(count), slow.standard_normal(count)
        )
        fast = self._share(IW_F) / max(self._share(IW_F, IW_N), np.finfo(float).tiny)
        niw = np.full(count, self.mean_rps * self._share(NIW))
        tiers = np.stack([interactive * fast, interactive * (1.0 - fast), niw]) * factor
        models, regions = (_shares_of(shares) for shares in (self.models, self.regions))
        return MinuteStream(
            name=self.name,
            seed=seed,
            clock_s=start_h * 3600.0,
            classes=TIERS,
            priorities=tuple(range(len(TIERS))),
            models=tuple(self.models) or ("",),
            regions=tuple(self.regions) or ("",),
            rates_rps=tiers[:, None, None, :] * models[:, None, None] * regions[:, None],
            past_minutes=past_minutes,
            duration_s=duration_s,
            lengths=self._lengths_of,
            max_output_tokens=self.max_output_tokens,
        )

    def _lengths_of(
        self, rng: np.random.Generator, class_id: TokenArray, model_id: TokenArray
    ) -> tuple[TokenArray, TokenArray]:
        """Lengths, alike for all tiers and models."""
        return self._lengths(len(class_id), rng)

    def shape(self, hour: FloatArray) -> FloatArray:
        """Rate of interactive requests over its mean over the week, by hour since the begin of a Monday."""
        swing = np.exp(self.daily_amplitude * np.cos(2 * np.pi * (hour - self.peak_h) / 24))
        level = np.where(hour % HOURS_OF_WEEK < WEEKEND_H, swing, self.weekend_ratio)
        share = WEEKEND_H / HOURS_OF_WEEK
        mean = share * float(i0(self.daily_amplitude)) + (1 - share) * self.weekend_ratio
        return np.asarray(level / mean, np.float64)

    def _share(self, *tiers: str) -> float:
        return sum(self.shares.get(tier, 0.0) for tier in tiers) / sum(self.shares.values())

    def _arrivals(
        self,
        n: int,
        start_h: float,
        arrivals: np.random.Generator,
        minutes: np.random.Generator,
        slow: np.random.Generator,
    ) -> tuple[FloatArray, FloatArray]:
        """Arrival times, seconds, and the share of interactive requests at each, (n,)."""
        expected = np.cumsum(arrivals.standard_exponential(n))
        fast, lasting = np.empty(0), np.empty(0)
        while True:
            fast = np.concatenate([fast, minutes.standard_normal(_MINUTES_PER_DRAW)])
            lasting = np.concatenate([lasting, slow.standard_normal(_MINUTES_PER_DRAW)])
            interactive, rate = self._rates(start_h, fast, lasting)
            cumulative = np.concatenate([[0.0], np.cumsum(rate * _MINUTE_S)])
            if cumulative[-1] > expected[-1]:
                break
        edges_s = np.arange(cumulative.size) * _MINUTE_S
        arrival_s: FloatArray = np.interp(expected, cumulative, edges_s)
        return arrival_s, (interactive / rate)[(arrival_s // _MINUTE_S).astype(np.int64)]

    def _rates(self, start_h: float, fast: FloatArray, lasting: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Rates by minute, of interactive and of all requests, per second, from standard normal draws."""
        decay = float(np.exp(-_MINUTE_S / self.slow_memory_s))
        shocks = lasting.copy()
        shocks[1:] *= np.sqrt(1.0 - decay * decay)
        log_noise = self.minute_noise * fast + self.slow_noise * autoregress(shocks, decay)
        log_noise -= (self.minute_noise**2 + self.slow_noise**2) / 2  # of mean 1
        hour = start_h + (np.arange(fast.size) + 0.5) * _MINUTE_S / 3600
        interactive = self.mean_rps * self._share(IW_F, IW_N) * self.shape(hour) * np.exp(log_noise)
        return interactive, interactive + self.mean_rps * self._share(NIW)

    def _tiers(self, interactive_ratio: FloatArray, rng: np.random.Generator) -> TokenArray:
        """Tier of each request, (n,)."""
        drawn = rng.random(interactive_ratio.size)
        fast = self._share(IW_F) / max(self._share(IW_F, IW_N), np.finfo(float).tiny)
        return np.where(
            drawn < interactive_ratio * fast, 0, np.where(drawn < interactive_ratio, 1, 2)
        ).astype(np.int32)

    def _lengths(self, n: int, rng: np.random.Generator) -> tuple[TokenArray, TokenArray]:
        """Prompt and output lengths, (n,) tokens each."""
        choice, *pairs = rng.spawn(5)
        code = choice.random(n) < self.code_share
        drawn = [
            load_fitted(name).lengths(n, *pairs[2 * i : 2 * i + 2]) for i, name in enumerate(AZURE_LENGTHS)
        ]
        (code_in, code_out), (conv_in, conv_out) = drawn
        return np.where(code, code_in, conv_in), np.where(code, code_out, conv_out)

    def _places(self, n: int, rng: np.random.Generator) -> dict[str, Any]:
        """Model and region of each request, as columns of a workload."""
        columns: dict[str, Any] = {}
        for (plural, column), own in zip(
            (("models", "model_id"), ("regions", "region_id")), rng.spawn(2), strict=True
        ):
            shares: Mapping[str, float] = getattr(self, plural)
            if shares:
                columns |= {plural: tuple(shares), column: _draw(shares, n, own)}
        return columns


def check_shares(name: str, shares: Mapping[str, float]) -> None:
    """Raises ValueError where shares are negative or none is positive."""
    if any(not share >= 0 for share in shares.values()) or not sum(shares.values()) > 0:
        raise ValueError(f"{name} must have shares that are not negative and not all 0, got {dict(shares)}")


def _shares_of(shares: Mapping[str, float]) -> FloatArray:
    """Shares that sum to 1; a single share of 1 if none are given."""
    given = np.array(list(shares.values()) or [1.0], np.float64)
    return given / given.sum()


def _draw(shares: Mapping[str, float], n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Row of `shares` for each of n requests."""
    edges = np.cumsum(list(shares.values()))
    return np.searchsorted(edges / edges[-1], rng.random(n), side="right").astype(np.int32)
