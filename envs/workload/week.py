"""Days and weeks of several models in several regions, with the real weekly shape.

Each model follows a profile of `weekly/` (fitted to public series of Azure, Alibaba and Microsoft 365) on the clock of
each region, with the noise that the series show: one part common to a model's regions that lasts for hours, one of each
endpoint. Non-interactive requests follow a profile of their own. Lengths are drawn from the generators fitted to
Azure's two services of 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.envs.workload.generators import AZURE_LENGTHS, AzureLengths, load_fitted
from serving_gym.envs.workload.schema import FloatArray, TokenArray, Workload
from serving_gym.envs.workload.seeding import child
from serving_gym.envs.workload.streams import MINUTE_S, MinuteStream
from serving_gym.envs.workload.tiers import TIERS, check_shares
from serving_gym.envs.workload.week_rates import Walk, factors
from serving_gym.envs.workload.weekly_profile import WEEK_H, load_profile

_DAY_S = 86_400.0


@dataclass(frozen=True)
class ModelLoad:
    """Load of one model.

    Attributes:
        share: of the requests, over a week; scaled to sum to 1.
        profile: name of the weekly profile of its interactive requests.
        shift_h: added to the clock of the profile: -4 brings one of UTC to the US East coast.
        code_share: share of its requests with the lengths of Azure's coding service, the others have those of its chat
            service.
        regions: share of its requests by region, where it differs from that of all.
    """

    share: float = 1.0
    profile: str = "m365_interactive"
    shift_h: float = 0.0
    code_share: float = 0.313
    regions: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RegionLoad:
    """Load of one region.

    Attributes:
        share: of the requests, over a week; scaled to sum to 1.
        later_h: by how much its clients' day begins later on the fleet's clock: 3 for the US West coast where the clock
            is that of the East coast.
    """

    share: float = 1.0
    later_h: float = 0.0


@dataclass(frozen=True)
class WeekTraffic(AzureLengths):
    """Poisson arrivals whose rate is constant within a minute and follows the week.

    Attributes:
        requests_per_week: mean number of requests of all tiers in a week.
        iw_to_niw: interactive requests for each that is not. Source of the default: SageServe, section 7.2.7, 3:1 in
            November 2024.
        priorities: of iw_f, iw_n and niw in engines that serve by priority, the lower first. Source: SageServe, section
            6.1 has (0, 0, 1): one priority for both interactive tiers; a priority each is ours.
        fast_share: share of the interactive requests that are of the fast tier. Source: as in `tiers.py`.
        models: load of each model; the name "" is any model of the cluster.
        regions: what comes from each region; one named "" is wherever the cluster is.
        niw_profile: name of the weekly profile of non-interactive requests.
        start_h: hour of the week on the fleet's clock at which the workload begins, 0 for Monday, 0:00; None: drawn.
        noise: factor on the noise's standard deviation; 0: none.
        bursts_per_day: how often a day the interactive load rises suddenly, at times drawn evenly from the middle 80 %
            of each day that begins with the workload.
        burst_factor: to how many times the load. Source: SageServe, section 7.2.7 (8).
        burst_s: how long each lasts, seconds. Source: ours.
        num_requests: default length of an episode, requests.
    """

    requests_per_week: float = 10e6
    iw_to_niw: float = 3.0
    fast_share: float = 0.40 / 0.72
    priorities: tuple[int, ...] = (0, 1, 2)
    models: Mapping[str, ModelLoad] = field(default_factory=lambda: {"": ModelLoad()})
    regions: Mapping[str, RegionLoad] = field(default_factory=lambda: {"": RegionLoad()})
    niw_profile: str = "m365_non_interactive"
    start_h: float | None = None
    noise: float = 1.0
    bursts_per_day: int = 0
    burst_factor: float = 8.0
    burst_s: float = 900.0
    num_requests: int = 4000

    name = "week"

    def __post_init__(self) -> None:
        for name, row in (("models", ModelLoad), ("regions", RegionLoad)):
            given = {key: _typed(row, value, f"{name}.{key}") for key, value in getattr(self, name).items()}
            check_shares(name, {key: value.share for key, value in given.items()})
            object.__setattr__(self, name, given)
        for key, model in self.models.items():
            load_profile(model.profile)
            if not 0 <= model.code_share <= 1:
                raise ValueError(f"models.{key}.code_share must lie in [0, 1], got {model.code_share}")
            unknown = [region for region in model.regions if region not in self.regions]
            if unknown:
                raise ValueError(
                    f"models.{key}.regions names {unknown[0]!r}; regions are {', '.join(self.regions)}"
                )
            if model.regions:
                check_shares(f"models.{key}.regions", model.regions)
        load_profile(self.niw_profile)
        object.__setattr__(self, "priorities", tuple(self.priorities))
        if len(self.priorities) != len(TIERS) or min(self.priorities, default=-1) < 0:
            raise ValueError(
                f"priorities must be three that are not negative ({', '.join(TIERS)}), got {list(self.priorities)}"
            )
        check_positive(self, "requests_per_week", "burst_factor", "burst_s", finite=True)
        check_not_negative(self, "iw_to_niw", "noise", "bursts_per_day", finite=True)
        check_within(self, "[0, 1]", "fast_share")
        check_within(self, f"[0, {WEEK_H:g})", "start_h")
        check_at_least(self, 1, "num_requests")

    @property
    def classes(self) -> tuple[str, ...]:
        """Tiers, in the order of their priorities."""
        return TIERS

    @property
    def rate_rps(self) -> float:
        """Mean rate over a week, requests per second."""
        return self.requests_per_week / (WEEK_H * 3600.0)

    def sample(self, num_requests: int, rng: np.random.Generator) -> Workload:
        """Draws a number of requests; its clock starts at `start_h`."""
        seed = np.random.SeedSequence(int(rng.integers(2**63)))
        days = 1 + int(2 * num_requests / self.rate_rps / _DAY_S)
        while True:
            stream = self.stream(seed, 0.0, days * _DAY_S)
            pieces, held, number = [], 0, 0
            while held < num_requests and number < stream.num_pieces:
                pieces.append(stream.piece(number))
                held, number = held + len(pieces[-1]), number + 1
            if held >= num_requests:
                return joined(pieces).head(num_requests)
            days *= 2

    def stream(
        self, seed: np.random.SeedSequence, past_s: float, duration_s: float, factor: float = 1.0
    ) -> MinuteStream:
        """Draws an episode of days: the rates of its minutes and of those before; requests come by the hour."""
        drawn = float(np.random.default_rng(child(seed, "start")).uniform(0, WEEK_H))
        start_h = drawn if self.start_h is None else float(self.start_h)
        past, ahead = (int(-(-seconds // MINUTE_S)) for seconds in (past_s, duration_s))
        rates = self._rates(seed, start_h, past, ahead) * factor
        interactive = rates[0] * self._bursts(seed, past, ahead)
        tiers = np.stack([interactive * self.fast_share, interactive * (1 - self.fast_share), rates[1]])
        return MinuteStream(
            name=self.name,
            seed=child(seed, "requests"),
            clock_s=start_h * 3600.0,
            classes=TIERS,
            priorities=self.priorities,
            models=tuple(self.models),
            regions=tuple(self.regions),
            rates_rps=tiers,
            past_minutes=past,
            duration_s=duration_s,
            lengths=self._lengths,
            max_output_tokens=self.max_output_tokens,
        )

    def burst_begins_s(self, seed: np.random.SeedSequence, duration_s: float) -> FloatArray:
        """When the bursts of a stream begin, seconds, day by day."""
        days = range(int(-(-duration_s // _DAY_S)))
        drawn = [
            (
                day
                + np.random.default_rng(child(seed, "bursts", str(day))).uniform(
                    0.1, 0.9, self.bursts_per_day
                )
            )
            for day in days
        ]
        begins_s = np.sort(np.concatenate([*drawn, np.empty(0)])) * _DAY_S
        return np.asarray(begins_s[begins_s < duration_s], np.float64)

    def _rates(self, seed: np.random.SeedSequence, start_h: float, past: int, ahead: int) -> FloatArray:
        """(2, L, R, past + ahead) requests/s by minute: interactive, others; without bursts."""
        hour = start_h + (np.arange(-past, ahead) + 0.5) / 60
        niw_share = 1.0 / (1.0 + self.iw_to_niw)
        means_rps = self.rate_rps * self._shares()
        rates = np.zeros((2, *means_rps.shape, past + ahead))
        profiles = [load_profile(model.profile) for model in self.models.values()]
        for m, model in enumerate(self.models.values()):
            for side, (profile, share) in enumerate(
                ((profiles[m], 1 - niw_share), (load_profile(self.niw_profile), niw_share))
            ):
                walk = Walk(child(seed, "noise", str(side), str(m)), past, ahead)
                noise = factors(profile, walk, len(self.regions), self.noise)
                for r, region in enumerate(self.regions.values()):
                    shape = profile.shape(hour - region.later_h - (model.shift_h if side == 0 else 0.0))
                    rates[side, m, r] = means_rps[m, r] * share * shape * noise[r]
        return rates

    def _shares(self) -> FloatArray:
        """(L, R) share of the requests of each model in each region."""
        by_model = np.array([model.share for model in self.models.values()])
        everywhere = {name: region.share for name, region in self.regions.items()}
        by_region = np.array(
            [
                [(model.regions or everywhere).get(name, 0.0) for name in self.regions]
                for model in self.models.values()
            ]
        )
        shares: FloatArray = (
            (by_model / by_model.sum())[:, None] * by_region / by_region.sum(axis=1, keepdims=True)
        )
        return shares

    def _bursts(self, seed: np.random.SeedSequence, past: int, ahead: int) -> FloatArray:
        """(past + ahead,) factor on interactive rates."""
        factor = np.ones(past + ahead)
        middle_s = (np.arange(-past, ahead) + 0.5) * MINUTE_S
        for begin_s in self.burst_begins_s(seed, ahead * MINUTE_S):
            factor[(middle_s >= begin_s) & (middle_s < begin_s + self.burst_s)] = self.burst_factor
        return factor

    def _lengths(
        self, rng: np.random.Generator, class_id: TokenArray, model_id: TokenArray
    ) -> tuple[TokenArray, TokenArray]:
        """Prompt and output lengths of requests to these models, (n,) tokens each; alike for all tiers."""
        n = len(model_id)
        share = np.array([model.code_share for model in self.models.values()])
        is_code = rng.random(n) < share[model_id]
        inputs, outputs = np.empty(n, np.int32), np.empty(n, np.int32)
        for name, rows in zip(AZURE_LENGTHS, (is_code, ~is_code), strict=True):
            streams = rng.spawn(2)
            inputs[rows], outputs[rows] = load_fitted(name).lengths(int(rows.sum()), *streams)
        return inputs, outputs


def joined(pieces: list[Workload]) -> Workload:
    """Pieces of a stream, one after another."""
    columns = ("arrival_s", "input_tokens", "output_tokens", "max_output_tokens", "priority", "class_id")
    together: dict[str, Any] = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        for name in (*columns, "model_id", "region_id")
    }
    first = pieces[0]
    return Workload(
        **together,
        classes=first.classes,
        models=first.models,
        regions=first.regions,
        name=first.name,
        provenance="generated; weekly shapes fitted to public series (envs/workload/weekly_fit.py)",
    )


def _typed(row: type[Any], value: Any, name: str) -> Any:
    """A row of `models` or `regions`, from a mapping or as it is."""
    if isinstance(value, row):
        return value
    known = [entry.name for entry in fields(row)]
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping of {', '.join(known)}, got {value!r}")
    for key in value:
        if key not in known:
            raise ValueError(f"{name} has no field {key!r}; known: {', '.join(known)}")
    return row(**value)
