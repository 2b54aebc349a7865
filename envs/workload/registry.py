"""Every workload by name: from a specification and a seed to the requests of one episode."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from serving_gym.calibration.fields import check_at_least, check_positive, check_within
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.workload import flying, sharegpt
from serving_gym.envs.workload.functions import FittedFunctions, FunctionTraffic, TracedFunctions
from serving_gym.envs.workload.generators import (
    FittedWorkload,
    Generator,
    fitted_names,
    is_fitted,
    load_fitted,
)
from serving_gym.envs.workload.mixing import (
    LONG_CLASS,
    NORMAL_CLASS,
    PRIORITY_CLASS,
    with_long_prompts,
    with_priorities,
)
from serving_gym.envs.workload.outside import (
    made_outside,
    outside_fields,
    outside_parameters,
    workload_entry_points,
)
from serving_gym.envs.workload.overload import OverloadTraffic
from serving_gym.envs.workload.reading.options import ReadOptions
from serving_gym.envs.workload.reading.report import TraceReport
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.seeding import seed_sequence, stream
from serving_gym.envs.workload.sessions.base import SessionTraffic
from serving_gym.envs.workload.sessions.chat import ChatSessions
from serving_gym.envs.workload.sessions.coding import CodingSessions
from serving_gym.envs.workload.sessions.rollouts import RolloutBatches
from serving_gym.envs.workload.streams import RequestStream, Streaming, WholeStream
from serving_gym.envs.workload.tiers import TieredTraffic
from serving_gym.envs.workload.traces import TRACES, cached_trace, read_trace
from serving_gym.envs.workload.type_mix import TypeMix
from serving_gym.envs.workload.week import WeekTraffic

SPLITS = ("train", "validation", "test", "all")
FILE = "file"
MIXTURE = "mixture"
SEQUENCE = "sequence"
TIERS = "sageserve_tiers"
SHAREGPT = "sharegpt_poisson"
TYPE_MIX = "type_mix"
FUNCTIONS: dict[str, type[FunctionTraffic]] = {cls.name: cls for cls in (FittedFunctions, TracedFunctions)}
WEEK = "week"
SESSIONS: dict[str, type[SessionTraffic]] = {
    cls.name: cls for cls in (ChatSessions, CodingSessions, RolloutBatches)
}
OVERLOAD = OverloadTraffic.name

PURGE_S = 60.0
_MAX_PURGE_SHARE = 0.05
_MAX_WINDOW_SHARE = 0.75
_PAST_SEED = 0
_MAX_SEED = 2**31
_OF_PARTS = (MIXTURE, SEQUENCE)
_OF_FILES = ("time_unit", "rebase", "columns", "max_gap_s")
_NOT_PARAMS = ("name", "num_requests")
_BOUNDS = {"train": (0.0, 0.6), "validation": (0.6, 0.8), "test": (0.8, 1.0), "all": (0.0, 1.0)}


@dataclass
class WorkloadSpec:
    """Specification of a workload: the ``workload`` config group.

    Attributes:
        name: one of :func:`workload_names`.
        path: for ``name="file"`` only: a trace file (see :mod:`envs.workload.formats`), or the ``.json`` of a
            generator fitted with ``python -m runners.traces fit``.
        time_unit: for a trace file: unit of its times, "s", "ms", "us" or "ns"; None: inferred (see
            :mod:`~envs.workload.reading.times`).
        rebase: for a trace file: whether times count from its first arrival; None: inferred.
        columns: for a trace file: columns by the names of ours that they stand for, as {input_tokens: prompt_len}.
        max_gap_s: for a trace file: longest time between two arrivals, seconds; longer ones are cut to it. None: none
            is cut unless the trace is longer than a run can be.
        num_requests: requests in an episode; None takes the whole split of a trace, or a generator's own
            number. Of a sequence: requests of each part that does not say how many it has.
        rate_scale: factor on the arrival rate.
        rate_rps: requested mean arrival rate, requests per second; the rate of the whole trace (or the
            long-run rate of a generator) is scaled to it, so that a window keeps its own departure from the
            mean. Not with ``rate_scale``.
        num_clients: 0: requests arrive when the workload says. Else a closed loop of so many clients, each of
            which sends its next request when its last one has ended.
        split: "train", "validation", "test" or "all".
        priority_share: probability that a request is a priority request, 0 to 1; None takes the workload's
            own (0.2 for ``flying_priority``, none elsewhere).
        long_share: probability that a request is a long-context request, 0 to 1; None takes the workload's
            own (0.02 for ``flying_long``, none elsewhere).
        long_input_tokens: prompt length of long-context requests, tokens. The default is GPT-OSS-120B's
            context less the longest answer of the ``flying_*`` workloads.
        params: parameters of the workload itself: the fields of :class:`~envs.workload.flying.FlyingTraffic`
            for ``flying_*``, of :class:`~envs.workload.tiers.TieredTraffic` for ``sageserve_tiers``, of
            :class:`~envs.workload.sharegpt.ShareGPTTraffic` for ``sharegpt_poisson``, of
            :class:`~envs.workload.type_mix.TypeMix` for ``type_mix``, of
            :class:`~envs.workload.functions.FunctionTraffic` for ``functions_*``, of
            :class:`~envs.workload.week.WeekTraffic` for ``week``, of
            :class:`~envs.workload.overload.OverloadTraffic` for ``overload_tiers``, ``spread_s`` for traces,
            ``parts`` for ``mixture`` and ``sequence``: a list of specifications. An episode of a mixture is drawn from
            one of them, all equally likely; in one of a sequence ``length`` of them (all where it is None), chosen and
            ordered anew, follow one another, each beginning where the one before has ended, each with up to
            ``rate_spread`` times as many requests in as long a time, or as much fewer (log-uniformly; 1: as it says);
            where nobody says how many, as many as ever come sooner or later.
    """

    name: str = "azure_conv_fitted"
    path: str | None = None
    num_requests: int | None = None
    rate_scale: float = 1.0
    rate_rps: float | None = None
    num_clients: int = 0
    split: str = "train"
    priority_share: float | None = None
    long_share: float | None = None
    long_input_tokens: int = flying.LONG_INPUT_TOKENS
    params: dict[str, Any] = field(default_factory=dict)
    time_unit: str | None = None
    rebase: bool | None = None
    columns: Any = None  # a mapping; OmegaConf cannot merge one into an optional typed mapping
    max_gap_s: float | None = None


@dataclass(frozen=True)
class WorkloadSource:
    """Episodes of one workload: one for each seed and split, the same on every machine.

    Traces are split by time: training is the first 60 % of the span, validation the next 20 %, test the last
    20 %. The first 60 s of validation and of test (5 % of the span where that is less) are dropped, so that
    no episode continues another split's backlog. An episode is ``num_requests`` consecutive requests from a
    place drawn uniformly; its clock starts at the first of them. Inside a split an episode is never longer
    than three quarters of the split, so that seeds stay different episodes: where more is asked, the windows
    are that much shorter. Without ``num_requests`` it is the whole split, whatever the seed; of split "all"
    any number can be had up to the whole trace, which keeps its own clock.

    Generators draw every split from random streams of its own.

    Args:
        spec: what to draw.

    Raises:
        ValueError: unknown name, split or parameter (with the nearest match); a field out of range.
    """

    spec: WorkloadSpec

    def __post_init__(self) -> None:
        spec = _of_fields(self.spec)
        check_spec(spec)
        object.__setattr__(self, "spec", replace(spec, params=dict(spec.params)))
        if self.spec.name in _OF_PARTS:
            _parts(self.spec)
            if self.spec.name == SEQUENCE:
                _length(self.spec)
                _rate_spread(self.spec)
        elif self.spec.name not in TRACES and self.spec.name != FILE:
            self._source()

    @property
    def name(self) -> str:
        """Name of the workload."""
        return self.spec.name

    @property
    def rate_rps(self) -> float:
        """Long-run mean arrival rate after scaling, requests per second; of a sequence, at the rates that parts say."""
        if self.spec.name == MIXTURE:
            return float(np.mean([part.rate_rps for part in _parts(self.spec)]))
        if self.spec.name == SEQUENCE:
            return _rate_in_turn(_parts(self.spec)) * self.spec.rate_scale
        return self._source().rate_rps * self._factor()

    @property
    def report(self) -> TraceReport | None:
        """What the reader says of a trace file; None for anything else."""
        source = self._source() if self.spec.name == FILE else None
        return source.report if isinstance(source, _TraceWindows) else None

    @property
    def parts(self) -> tuple[WorkloadSource, ...]:
        """Parts of a mixture; otherwise the workload itself."""
        return _parts(self.spec) if self.spec.name == MIXTURE else (self,)

    @property
    def classes(self) -> tuple[str, ...]:
        """Request classes that episodes may hold, in the order of ``class_id``; of several parts, those of all."""
        if self.spec.name in _OF_PARTS:
            of_parts = [part.classes for part in _parts(self.spec)]
            if self.spec.name == SEQUENCE and any(PRIORITY_CLASS in classes for classes in of_parts):
                of_parts = [_with_levels(classes) for classes in of_parts]
            return tuple(dict.fromkeys(name for classes in of_parts for name in classes))
        classes = self._source().classes
        if self._priority_share() > 0:
            classes = (PRIORITY_CLASS, NORMAL_CLASS, *classes[1:])
        return (*classes, LONG_CLASS) if self._long_share() > 0 and LONG_CLASS not in classes else classes

    @property
    def models(self) -> tuple[str, ...]:
        """Models of the requests, in the order of ``model_id``; the single name "" is any served model."""
        if self.spec.name in _OF_PARTS:
            return _parts(self.spec)[0].models
        source = self._source()
        if isinstance(source, _TraceWindows):
            return source.trace.models
        return source.models if isinstance(source, FunctionTraffic) else ("",)

    @property
    def max_input_tokens(self) -> int:
        """Longest prompt of an episode, tokens."""
        if self.spec.name in _OF_PARTS:
            return max(part.max_input_tokens for part in _parts(self.spec))
        longest = self._source().max_input_tokens
        return max(longest, self.spec.long_input_tokens) if self._long_share() > 0 else longest

    @property
    def max_output_tokens(self) -> int:
        """Largest output cap of a request, tokens."""
        if self.spec.name in _OF_PARTS:
            return max(part.max_output_tokens for part in _parts(self.spec))
        return self._source().max_output_tokens

    def sample(self, seed: int, split: str | None = None) -> Workload:
        """Requests of one episode, in arrays of its own.

        Args:
            seed: which episode; at least 0.
            split: in place of the specification's.

        Raises:
            ValueError: unknown split, negative seed, or a trace that is not on this machine.
        """
        chosen = self.spec.split if split is None else split
        check_choice("split", chosen, SPLITS)
        if self.spec.name == MIXTURE:
            return self._part(seed, chosen).sample(seed, chosen).with_classes(self.classes)
        if self.spec.name == SEQUENCE:
            in_turn = self._in_turn(seed, chosen).with_classes(self.classes)
            return in_turn.with_rate_scale(self.spec.rate_scale)
        rng = stream(seed, self.spec.name, chosen)
        source, length = self._source(), self.spec.num_requests
        if isinstance(source, _TraceWindows):
            workload = source.window(length, chosen, rng)
        else:
            workload = source.sample(source.num_requests if length is None else length, rng)
        priority_share, long_share = self._priority_share(), self._long_share()
        mixing_seed = int(seed_sequence(seed, self.spec.name, chosen, "mixing").generate_state(1)[0])
        if priority_share > 0:
            workload = with_priorities(workload, priority_share, mixing_seed)
        if long_share > 0:
            workload = with_long_prompts(workload, long_share, self.spec.long_input_tokens, mixing_seed)
        factor = self._factor()
        if self.spec.num_clients and workload.has_sessions:
            raise ValueError(
                f"requests of {workload.name!r} wait for answers, a closed loop of its own; num_clients must be 0, got "
                f"{self.spec.num_clients}"
            )
        if self.spec.num_clients:
            return replace(workload, num_clients=self.spec.num_clients)
        return workload if factor == 1.0 else workload.with_rate_scale(factor)

    def stream(
        self, seed: int, split: str | None = None, past_s: float = 0.0, duration_s: float = 86_400.0
    ) -> RequestStream:
        """Requests of one episode of a given length, piece by piece, with their past.

        A generator that streams draws them so; rates are scaled as they are, hours of the day stay. A mixture's part
        with all of its classes is streamed as it would be alone. Any other workload is sampled whole, as `sample` does,
        its past from the training split.

        Args:
            seed: which episode; at least 0.
            split: in place of the specification's.
            past_s: length of the past, seconds.
            duration_s: time for which requests arrive, seconds; a workload that is sampled whole may end before.

        Raises:
            ValueError: unknown split, negative seed, or a trace that is not on this machine.
        """
        chosen = self.spec.split if split is None else split
        check_choice("split", chosen, SPLITS)
        if self.spec.name == MIXTURE and self._part(seed, chosen).classes == self.classes:
            return self._part(seed, chosen).stream(seed, chosen, past_s, duration_s)
        source: object = None if self.spec.name in _OF_PARTS else self._source()
        plain = self._priority_share() == 0 and self._long_share() == 0
        if plain and isinstance(source, Streaming):
            return source.stream(
                seed_sequence(seed, self.spec.name, chosen), past_s, duration_s, self._factor()
            )
        before = replace(self, spec=replace(self.spec, split="train")).sample(_PAST_SEED)
        whole = self.sample(seed, chosen)
        pieces = {"piece_s": duration_s} if whole.has_sessions else {}  # a session cannot be cut
        return WholeStream(whole, before, 0.0, duration_s, **pieces)

    def _part(self, seed: int, split: str) -> WorkloadSource:
        """The part of a mixture that an episode is drawn from."""
        parts = _parts(self.spec)
        return parts[int(stream(seed, self.spec.name, split).integers(len(parts)))]

    def _in_turn(self, seed: int, split: str) -> Workload:
        """Of a sequence, parts one after another; where some have priority requests, those of the others are normal."""
        parts, rng = _parts(self.spec), stream(seed, self.spec.name, split)
        spread = _rate_spread(self.spec)
        spells: list[Workload] = []
        for number in rng.permutation(len(parts))[: _length(self.spec)]:
            part = parts[number]
            if spread > 1.0:
                part = WorkloadSource(for_larger(part.spec, spread ** rng.uniform(-1.0, 1.0)))
            spell = part.sample(int(rng.integers(_MAX_SEED)), split)
            if PRIORITY_CLASS in self.classes and PRIORITY_CLASS not in spell.classes:
                spell = with_priorities(spell, 0.0, 0)
            spells.append(spell.shifted(float(spells[-1].arrival_s[-1])) if spells else spell)
        return Workload.merge(*spells)

    def _factor(self) -> float:
        target = self.spec.rate_rps
        return self.spec.rate_scale if target is None else target / self._source().rate_rps

    def _priority_share(self) -> float:
        own = flying.PRIORITY_SHARE if self.spec.name == "flying_priority" else 0.0
        return own if self.spec.priority_share is None else self.spec.priority_share

    def _long_share(self) -> float:
        own = flying.LONG_SHARE if self.spec.name == "flying_long" else 0.0
        return own if self.spec.long_share is None else self.spec.long_share

    def _source(self) -> _TraceWindows | Generator:
        if self.spec.name in TRACES:
            return _TraceWindows(cached_trace(self.spec.name, **self.spec.params))
        if self.spec.name == FILE:
            path = Path(str(self.spec.path))
            changed_ns = path.stat().st_mtime_ns if path.is_file() else 0
            return _read_file(str(path), changed_ns, json.dumps(_said_of(self.spec), sort_keys=True))
        if self.spec.name in workload_entry_points():
            return _made_outside(self.spec.name, json.dumps(self.spec.params, sort_keys=True))
        return _GENERATORS[self.spec.name](**self.spec.params)


def make_workload(spec: WorkloadSpec, seed: int) -> Workload:
    """Requests of one episode (see :class:`WorkloadSource`)."""
    return WorkloadSource(spec).sample(seed)


def workload_names() -> tuple[str, ...]:
    """Names of all workloads, including those of installed packages."""
    return (*TRACES, *_GENERATORS, FILE, *_OF_PARTS, *workload_entry_points())


def parts_of(spec: WorkloadSpec) -> tuple[WorkloadSpec, ...]:
    """The parts of a mixture or a sequence; otherwise the workload itself.

    Raises:
        ValueError: as :class:`WorkloadSource`, of the parts.
    """
    return tuple(part.spec for part in _parts(spec)) if spec.name in _OF_PARTS else (spec,)


def for_larger(spec: WorkloadSpec, factor: float) -> WorkloadSpec:
    """Scales traffic to a larger cluster: number of requests and rate times the factor.

    Args:
        spec: the traffic.
        factor: positive.
    """
    scale, rate_rps = spec.rate_scale, spec.rate_rps
    if rate_rps is None:
        scale *= factor
    else:
        rate_rps *= factor
    number = None if spec.num_requests is None else max(1, round(spec.num_requests * factor))
    clients = math.ceil(spec.num_clients * factor)
    params = dict(spec.params)
    if spec.name in _OF_PARTS:
        scale = spec.rate_scale
        params["parts"] = [_larger_part(part, factor) for part in params["parts"]]
    return replace(
        spec, num_requests=number, params=params, rate_scale=scale, rate_rps=rate_rps, num_clients=clients
    )


def _larger_part(part: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Of a part; what it does not say it goes on taking from its mixture."""
    larger = for_larger(WorkloadSpec(**part), factor)
    rate = {"rate_scale": larger.rate_scale} if larger.rate_rps is None else {"rate_rps": larger.rate_rps}
    said = {name: getattr(larger, name) for name in ("num_requests", "num_clients") if name in part}
    return {**part, **rate, **said}


def check_spec(spec: WorkloadSpec) -> None:
    """Checks every field that can be checked without reading the workload.

    Raises:
        ValueError: names the field, its value, what is allowed and the nearest match.
    """
    check_choice("workload name", spec.name, workload_names())
    check_choice("split", spec.split, SPLITS)
    if (spec.path is not None) != (spec.name == FILE):
        raise ValueError(
            f"path must be given for workload 'file' and for no other; {spec.name!r} has path={spec.path!r}"
        )
    for name in _OF_FILES:
        if spec.name != FILE and name in _said_of(spec):
            raise ValueError(f"{name} is for workload 'file'; {spec.name!r} has {name}={getattr(spec, name)}")
    ReadOptions(**_said_of(spec))
    check_at_least(spec, 1, "num_requests", "long_input_tokens")
    check_positive(spec, "rate_scale", "rate_rps", finite=True)
    if spec.num_clients < 0:
        raise ValueError(f"num_clients must be 0 (open loop) or more, got {spec.num_clients}")
    if spec.rate_rps is not None and spec.rate_scale != 1.0:
        raise ValueError(f"give rate_rps ({spec.rate_rps}) or rate_scale ({spec.rate_scale}), not both")
    check_within(spec, "[0, 1]", "priority_share", "long_share")
    _check_sessions(spec)
    if spec.name == SEQUENCE:
        for name in ("rate_rps", "num_clients", "priority_share", "long_share"):
            if getattr(spec, name):
                raise ValueError(
                    f"the parts of workload 'sequence' have a {name} each, it has none, got {getattr(spec, name)}"
                )
    allowed = _params_of(spec.name)
    for name in spec.params:
        check_choice(f"parameter of workload {spec.name!r}", str(name), allowed)


def _check_sessions(spec: WorkloadSpec) -> None:
    """Checks that nothing is asked of sessions that they do not have."""
    if spec.name not in SESSIONS:
        return
    if spec.num_clients:
        raise ValueError(
            f"a session of {spec.name!r} is a closed loop of its own; num_clients must be 0, got {spec.num_clients}"
        )
    for name in ("priority_share", "long_share"):
        if getattr(spec, name):
            raise ValueError(f"{name} must be null or 0 for {spec.name!r}, got {getattr(spec, name)}")
    if "arrival_rate_rps" in SESSIONS[spec.name].unused and (spec.rate_rps or spec.rate_scale != 1.0):
        raise ValueError(
            f"{spec.name!r} has no arrival rate, a batch follows the other: rate_rps must be null and rate_scale 1, "
            f"got {spec.rate_rps} and {spec.rate_scale}"
        )


def split_rows(workload: Workload, split: str) -> tuple[int, int]:
    """Rows of a trace that belong to a split: first, and one past the last.

    Raises:
        ValueError: unknown split, or one in which no request arrives.
    """
    check_choice("split", split, SPLITS)
    begin_s, span_s = float(workload.arrival_s[0]), workload.duration_s
    low, high = _BOUNDS[split]
    purge_s = min(PURGE_S, _MAX_PURGE_SHARE * span_s) if low > 0 else 0.0
    first = int(np.searchsorted(workload.arrival_s, begin_s + low * span_s + purge_s, side="left"))
    end_s = begin_s + high * span_s if high < 1 else math.inf
    last = int(np.searchsorted(workload.arrival_s, end_s, side="left"))
    if first >= last:
        raise ValueError(
            f"split {split!r} of workload {workload.name!r} holds no request ({len(workload)} in all)"
        )
    return first, last


@dataclass(frozen=True)
class _TraceWindows:
    """A trace, of which episodes are windows, and what its reader says of it."""

    trace: Workload
    report: TraceReport | None = None

    @property
    def rate_rps(self) -> float:
        rate = self.trace.rate_rps
        if math.isnan(rate):
            raise ValueError(
                f"workload {self.trace.name!r} has no arrival rate: its requests arrive all at once"
            )
        return rate

    @property
    def classes(self) -> tuple[str, ...]:
        return self.trace.classes

    @property
    def max_input_tokens(self) -> int:
        return int(self.trace.input_tokens.max())

    @property
    def max_output_tokens(self) -> int:
        return int(self.trace.max_output_tokens.max())

    def window(self, num_requests: int | None, split: str, rng: np.random.Generator) -> Workload:
        """Consecutive requests of a split, from a place drawn uniformly (see :class:`WorkloadSource`)."""
        first, last = split_rows(self.trace, split)
        held = last - first
        longest = held if split == "all" else max(1, int(_MAX_WINDOW_SHARE * held))
        length = held if num_requests is None else min(num_requests, longest)
        if length == len(self.trace):
            return self.trace.copy()
        if self.trace.has_sessions:
            return self._sessions(first, last, length, rng)
        start = first + int(rng.integers(held - length + 1))
        window = self.trace.rows(start, start + length)
        return window.shifted(-float(window.arrival_s[0]))

    def _sessions(self, first: int, last: int, length: int, rng: np.random.Generator) -> Workload:
        """Whole sessions that begin among some rows, one after another from a place drawn uniformly.

        At most `length` requests, but for a session that is longer by itself.
        """
        begins = self.trace.first_of_tree()
        roots, sizes = np.unique(begins[(begins >= first) & (begins < last)], return_counts=True)
        if not roots.size:
            begun = f"rows {first} to {last - 1} of workload {self.trace.name!r}"
            raise ValueError(f"no session begins in {begun}: all of them wait for answers of earlier rows")
        behind = np.cumsum(sizes[::-1])[::-1]  # requests of a session and all later ones
        start = int(rng.integers(max(1, int((behind >= length).sum()))))
        held = np.cumsum(sizes[start:])
        taken = roots[start : start + max(1, int(np.searchsorted(held, length, side="right")))]
        window = self.trace.take(np.flatnonzero(np.isin(begins, taken)))
        return window.shifted(-float(window.arrival_s[0]))


def _said_of(spec: WorkloadSpec) -> dict[str, Any]:
    """What a specification says about its trace file."""
    said = {name: getattr(spec, name) for name in _OF_FILES}
    return {name: value for name, value in said.items() if value not in (None, {})}


@lru_cache(maxsize=8)
def _read_file(path: str, _modified_ns: int, said: str) -> _TraceWindows | Generator:
    options = ReadOptions(**json.loads(said))
    if not is_fitted(Path(path)):
        return _TraceWindows(*read_trace(path, options))
    if options.given:
        raise ValueError(f"{path} is a fitted generator: {', '.join(_OF_FILES)} are for traces")
    return FittedWorkload.load(Path(path))


@lru_cache(maxsize=8)
def _made_outside(name: str, params: str) -> _TraceWindows | Generator:
    made = made_outside(name, json.loads(params))
    return _TraceWindows(made) if isinstance(made, Workload) else made


def _of_fields(spec: WorkloadSpec) -> WorkloadSpec:
    """Expands a specification that names a mapping of a package, with the user's other values."""
    stands_for = outside_fields(spec.name) if spec.name in workload_entry_points() else None
    if stands_for is None:
        return spec
    known = [entry.name for entry in fields(WorkloadSpec)]
    for key in stands_for:
        check_choice(f"field of workload {spec.name!r}", str(key), known)
    usual = WorkloadSpec()
    given = {key: getattr(spec, key) for key in known if getattr(spec, key) != getattr(usual, key)}
    return WorkloadSpec(**{**stands_for, **given, "name": stands_for.get("name", usual.name)})


_FLYING: dict[str, Callable[..., Generator]] = {
    "flying_bursty": flying.bursty,
    "flying_priority": flying.priority,
    "flying_long": flying.long,
}
_GENERATORS: dict[str, Callable[..., Generator]] = {
    **{name: partial(load_fitted, name) for name in fitted_names()},
    **_FLYING,
    TIERS: TieredTraffic,
    SHAREGPT: sharegpt.sharegpt_poisson,
    TYPE_MIX: TypeMix,
    **FUNCTIONS,
    WEEK: WeekTraffic,
    **SESSIONS,
    OVERLOAD: OverloadTraffic,
}


def _parts(spec: WorkloadSpec) -> tuple[WorkloadSource, ...]:
    """Sources of the parts of a mixture or a sequence; a part inherits missing values.

    Raises:
        ValueError: no parts, or a part that is not a specification.
    """
    whole = f"workload {spec.name!r}"
    parts = spec.params.get("parts")
    if not parts:
        raise ValueError(f"{whole} needs params.parts, a list of at least one workload")
    known = {entry.name for entry in fields(WorkloadSpec)}
    sources = []
    for part in parts:
        if not isinstance(part, Mapping):
            raise ValueError(f"a part of {whole} must be a mapping of workload fields, got {part!r}")
        for key in part:
            check_choice(f"field of a part of {whole}", str(key), sorted(known))
        if part.get("name") in _OF_PARTS:
            raise ValueError(f"a part of {whole} cannot be a {part['name']}")
        inherited = {"num_requests": spec.num_requests, "split": spec.split}
        sources.append(WorkloadSource(WorkloadSpec(**(inherited | dict(part)))))
    return tuple(sources)


def _with_levels(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Classes of a part of a sequence in which some requests have priority (see `with_priorities`)."""
    return classes if PRIORITY_CLASS in classes else (PRIORITY_CLASS, NORMAL_CLASS, *classes[1:])


def _length(spec: WorkloadSpec) -> int:
    """Number of parts of an episode of a sequence.

    Raises:
        ValueError: fewer than one, or more than there are.
    """
    most = len(spec.params["parts"])
    length = spec.params.get("length")
    if length is None:
        return most
    if not isinstance(length, int) or not 1 <= length <= most:
        raise ValueError(f"params.length must be between 1 and {most}, the number of parts, got {length!r}")
    return length


def _rate_spread(spec: WorkloadSpec) -> float:
    """Largest factor on the rate of a part of a sequence.

    Raises:
        ValueError: less than 1, or not a number.
    """
    spread = spec.params.get("rate_spread")
    if spread is None:
        return 1.0
    if isinstance(spread, bool) or not isinstance(spread, int | float) or not 1.0 <= spread < math.inf:
        raise ValueError(f"params.rate_spread must be a number of at least 1, got {spread!r}")
    return float(spread)


def _rate_in_turn(parts: tuple[WorkloadSource, ...]) -> float:
    """Mean rate of workloads that follow one another, each for its own number of requests, requests per second."""
    numbers = [1 if part.spec.num_requests is None else part.spec.num_requests for part in parts]
    spans_s = [number / part.rate_rps for number, part in zip(numbers, parts, strict=True)]
    return float(sum(numbers) / sum(spans_s))


def _params_of(name: str) -> tuple[str, ...]:
    if name in _FLYING:
        return tuple(entry.name for entry in fields(flying.FlyingTraffic) if entry.name not in _NOT_PARAMS)
    if name == TIERS:
        return tuple(entry.name for entry in fields(TieredTraffic) if entry.name not in _NOT_PARAMS)
    if name == SHAREGPT:
        return tuple(
            entry.name for entry in fields(sharegpt.ShareGPTTraffic) if entry.name not in _NOT_PARAMS
        )
    if name == TYPE_MIX:
        return tuple(entry.name for entry in fields(TypeMix) if entry.name not in _NOT_PARAMS)
    if name in SESSIONS:
        unused = (*_NOT_PARAMS, *SESSIONS[name].unused)
        return tuple(entry.name for entry in fields(SESSIONS[name]) if entry.name not in unused)
    if name in FUNCTIONS:
        return tuple(entry.name for entry in fields(FunctionTraffic) if entry.name not in _NOT_PARAMS)
    if name == WEEK:
        return tuple(entry.name for entry in fields(WeekTraffic) if entry.name not in _NOT_PARAMS)
    if name == OVERLOAD:
        return tuple(entry.name for entry in fields(OverloadTraffic) if entry.name not in _NOT_PARAMS)
    if name in workload_entry_points():
        return outside_parameters(name)
    if name in _OF_PARTS:
        return ("parts",) if name == MIXTURE else ("parts", "length", "rate_spread")
    return ("spread_s",) if name in TRACES else ()
