"""One-time profiling (Appendix D): how many requests of each type a replica of each kind sustains in a span.

Three ways to the same number. `measured_rps` saturates one replica of the simulator with requests of the type and
counts what it finishes, which is what profiling an engine means. One run of a few hundred requests is off by 1 to 14 %,
more than deployments differ by, so runs are repeated until the 95 % interval of the rate is within `PRECISION`.
`closed_form_rps` works it out from the iteration times alone, as Appendix D composes it: prefill by arithmetic,
decoding by one latency a batch, pipeline stages by what is sent between them. It knows no preemption, so that it says
too much where the KV pool is what limits the batch, and the more so the longer the answers are.

`mixed_rps` corrects what is measured of each type alone for the company that types keep on a replica. C3 adds up shares
of a span, as if a request cost the same whatever runs beside it. On pipelines it costs 10 to 20 % more, as stages that
wait for a long prompt are lost to the answers; where memory limits the batch, short answers beside long ones cost up to
30 % less. So pairs of types and all of them together are run as well, each with an equal share of the span, and the
n_kj are those under which all of these runs fill a span best (least squares). Source: ours; the text profiles alone.

Types come as the lengths that were observed of them, so that a capacity is that of the type's real mix. Departure:
Appendix D profiles layers and communication on GPUs and composes them; here the calibrated latency model stands for the
measurements. A pipeline is profiled with its stages joined by NVLink, wherever they will stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.stats import t as student_t

from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.machines.cluster import ReplicaKind, replica_spec
from serving_gym.envs.simulator.fleet.build import kv_tokens, tables_of
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.kernel.state import PS_PER_S
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.seeding import stream

FloatArray = NDArray[np.float64]

SPAN_S = 60.0  # section 3: "the next time span (in our case, one minute)"
# Requests of a saturation run: so many times what runs at once, and at least so many; the rate is that of the middle
# half of what finishes. Source: ours.
TURNOVERS, FEWEST_REQUESTS = 10, 400
# Half of the 95 % interval of a rate, share of it, at which no further run is made: two capacities then differ by 2 %
# at least if one is to be preferred. Source: ours; the gains that a deployment is to bring (`min_gain`) begin at 2 %.
PRECISION = 0.01
FEWEST_RUNS, MOST_RUNS = 3, 128  # source: ours
STRATA = 20  # of lengths, each of which a block of as many requests has one of; source: ours
METHODS = ("measured", "mixed", "closed_form")
MIXED_REQUESTS = 2000  # drawn for a mix; source: ours
KEPT_SHARE = 0.9  # of requests that keep a promise of which one asks; source: ours
FEWER = 0.8  # from one number of running requests to the next that is tried; source: ours
LEAST_COST, MOST_COST = 0.5, 2.0  # of a request in company over alone; source: ours
_NO_PROMISE = (SLO(1.0, 1.0),)


@dataclass(frozen=True, eq=False)
class WorkloadType:
    """Lengths that were observed of one workload type.

    Attributes:
        input_tokens: (n,), tokens.
        output_tokens: (n,), tokens.
    """

    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.input_tokens) != len(self.output_tokens) or not len(self.input_tokens):
            raise ValueError(
                "a workload type needs as many input_tokens as output_tokens, and at least one; got "
                f"{len(self.input_tokens)} and {len(self.output_tokens)}"
            )


@dataclass(frozen=True, eq=False)
class CapacityTable:
    """Capacities n_kj of one replica of each kind.

    Attributes:
        kinds: K kinds, those with some capacity.
        per_span: (K, J), requests of a type that a replica alone finishes in a span if it gets no others.
        span_s: Length of a span, s.
    """

    kinds: tuple[ReplicaKind, ...]
    per_span: FloatArray
    span_s: float = SPAN_S

    def __post_init__(self) -> None:
        if self.per_span.ndim != 2 or len(self.per_span) != len(self.kinds):
            raise ValueError(
                f"per_span must have a row for each of {len(self.kinds)} kinds, got {self.per_span.shape}"
            )
        if not np.isfinite(self.per_span).all() or (self.per_span < 0).any():
            raise ValueError("per_span must be finite and not negative")

    @property
    def num_types(self) -> int:
        """J."""
        return int(self.per_span.shape[1])

    def row(self, kind: ReplicaKind) -> FloatArray:
        """(J,), capacities of one kind; zeros for a kind without any."""
        row = self._rows.get(kind)
        return np.zeros(self.num_types) if row is None else np.asarray(self.per_span[row], np.float64)

    @cached_property
    def _rows(self) -> dict[ReplicaKind, int]:
        return {kind: row for row, kind in enumerate(self.kinds)}

    def of_role(self, *roles: str) -> CapacityTable:
        """The rows of some roles.

        Raises:
            ValueError: there is none.
        """
        found = self.some(kind.role in roles for kind in self.kinds)
        if not found.kinds:
            raise ValueError(f"the table has no kinds of role {' or '.join(roles)}")
        return found

    def some(self, chosen: Iterable[bool]) -> CapacityTable:
        """Some of the rows.

        Args:
            chosen: Whether each is among them.
        """
        rows = [row for row, wanted in enumerate(chosen) if wanted]
        return CapacityTable(tuple(self.kinds[row] for row in rows), self.per_span[rows], self.span_s)

    def counts(self, kinds: Mapping[ReplicaKind, int]) -> NDArray[np.int64]:
        """(K,), how many replicas there are of each kind."""
        return np.array([kinds.get(kind, 0) for kind in self.kinds], np.int64)


def profile_capacities(
    engine: ReplicaSpec,
    kinds: Sequence[ReplicaKind],
    types: Sequence[WorkloadType],
    span_s: float = SPAN_S,
    method: str = "measured",
    seed: int = 0,
    scheduling: Mapping[str, Any] | None = None,
    precision: float = PRECISION,
    tpot_s: float | None = None,
) -> CapacityTable:
    """Profiles every kind with every type, once.

    Args:
        engine: Model, GPU and how the engine schedules; its degrees are replaced by those of the kinds. It should name
            its `engine`, as most widths have no other profile.
        kinds: What to profile.
        types: Workload types.
        span_s: Length of a span, s.
        method: "measured", "mixed" or "closed_form".
        seed: Of the lengths that are drawn.
        scheduling: Fields of `FleetSpec` that say how the engines schedule, as `DeploymentSpec.scheduling` has them.
        precision: Half of the 95 % interval of a measured rate, share of it, below which no further run is made.
        tpot_s: As of `SaturationRuns`.

    Raises:
        ValueError: The method is unknown or cannot keep `tpot_s`, the span or the precision is not positive, or no kind
            holds the model or keeps `tpot_s`.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is not allowed; choose one of {', '.join(METHODS)}")
    if not span_s > 0:
        raise ValueError(f"span_s must be positive, got {span_s}")
    if not precision > 0:
        raise ValueError(f"precision must be positive, got {precision}")
    if tpot_s is not None and method == "closed_form":
        raise ValueError("tpot_s needs runs: choose the method measured or mixed")
    run = SaturationRuns(scheduling or {}, precision, seed, tpot_s)
    fitting = [kind for kind in kinds if kv_tokens(replica_spec(kind, engine)) > 0]
    rates = [_rates(replica_spec(kind, engine), types, method, run) for kind in fitting]
    able = [row for row, of in enumerate(rates) if any(of)]
    if not able and tpot_s is not None:
        raise ValueError(f"no replica of {engine.model} on {engine.gpu} has a token every {tpot_s:g} s")
    if not able:
        raise ValueError(f"{engine.model} fits none of {', '.join(map(str, kinds))} on {engine.gpu}")
    per_span = span_s * np.array([rates[row] for row in able], np.float64).reshape(len(able), len(types))
    return CapacityTable(tuple(fitting[row] for row in able), per_span, span_s)


def profile(
    engine: ReplicaSpec,
    kinds: tuple[ReplicaKind, ...],
    types: Sequence[WorkloadType],
    span_s: float,
    method: str,
    scheduling: Mapping[str, Any] | None = None,
    precision: float = PRECISION,
    tpot_s: float | None = None,
) -> CapacityTable:
    """`profile_capacities`, kept: the same is profiled once."""
    lengths = tuple((of.input_tokens.tobytes(), of.output_tokens.tobytes()) for of in types)
    words = tuple(sorted((scheduling or {}).items()))
    return _profiled(engine, kinds, lengths, span_s, method, words, precision, tpot_s)


@lru_cache(maxsize=32)
def _profiled(
    engine: ReplicaSpec,
    kinds: tuple[ReplicaKind, ...],
    lengths: tuple[tuple[bytes, bytes], ...],
    span_s: float,
    method: str,
    scheduling: tuple[tuple[str, Any], ...],
    precision: float,
    tpot_s: float | None,
) -> CapacityTable:
    types = [WorkloadType(np.frombuffer(i, np.int64), np.frombuffer(o, np.int64)) for i, o in lengths]
    return profile_capacities(
        engine, kinds, types, span_s, method, scheduling=dict(scheduling), precision=precision, tpot_s=tpot_s
    )


def _rates(
    replica: ReplicaSpec, types: Sequence[WorkloadType], method: str, run: SaturationRuns
) -> list[float]:
    """(J,), requests of each type a second."""
    if method == "closed_form":
        return [closed_form_rps(replica, kind_type) for kind_type in types]
    if method == "mixed":
        return mixed_rps(replica, types, run).tolist()
    return [measured_rps(replica, kind_type, run) for kind_type in types]


def batch_of(replica: ReplicaSpec, kind_type: WorkloadType) -> float:
    """Requests that run at once in a saturated replica: by its limit, or by KV with answers half written on average."""
    each = float(np.mean(kind_type.input_tokens) + np.mean(kind_type.output_tokens) / 2)
    return max(1.0, min(replica.max_num_seqs, kv_tokens(replica) / each))


# -- by running it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SaturationRuns:
    """How a replica is saturated.

    Attributes:
        scheduling: Fields of `FleetSpec` that say how engines schedule.
        precision: Half of the 95 % interval of a rate, share of it, below which no further run is made.
        seed: Of the draws.
        tpot_s: Mean time between tokens, seconds, that `KEPT_SHARE` of the requests must keep: a replica runs only as
            many of them at once as do; None: as many as it can, whatever they wait.
    """

    scheduling: Mapping[str, Any] = field(default_factory=dict)
    precision: float = PRECISION
    seed: int = 0
    tpot_s: float | None = None


def measured_rps(replica: ReplicaSpec, kind_type: WorkloadType, run: SaturationRuns | None = None) -> float:
    """Requests of a type that a saturated replica finishes, 1/s; 0 where it cannot hold them.

    A prefill worker ends a request with its first token. A decode worker is fed by as many prefill workers as keep it
    busy. Requests that a replica could never hold are refused on arrival and not counted.

    Args:
        replica: What runs.
        kind_type: Lengths; as many as needed are drawn from them.
        run: How; None: the defaults.
    """
    return rate_of(replica, kind_type, run)[0]


def rate_of(
    replica: ReplicaSpec, kind_type: WorkloadType, run: SaturationRuns | None = None
) -> tuple[float, float]:
    """`measured_rps`, and half of its 95 % interval as a share of it (at most `MOST_RUNS` runs are made)."""
    run = run or SaturationRuns()
    if not kv_tokens(replica):
        return 0.0, 0.0
    if run.tpot_s is not None:
        most = most_running(replica, kind_type, run, run.tpot_s)
        if not most:
            return 0.0, 0.0
        replica = replace(replica, max_num_seqs=most)
    rng = stream(run.seed, "oserve", "profiling")
    groups, outputs = _saturated(replica, kind_type, run)
    wanted = max(FEWEST_REQUESTS, math.ceil(TURNOVERS * batch_of(replica, kind_type)))
    seconds: list[float] = []
    while True:
        drawn = _stratified(kind_type, wanted, rng)
        rate = _one_run(FleetSpec(groups, **run.scheduling), kind_type.input_tokens[drawn], outputs[drawn])
        if not rate:
            return 0.0, 0.0
        seconds.append(1.0 / rate)
        if len(seconds) >= FEWEST_RUNS:
            mean = float(np.mean(seconds))
            error = float(student_t.ppf(0.975, len(seconds) - 1) * np.std(seconds, ddof=1))
            half = error / math.sqrt(len(seconds)) / mean
            if half <= run.precision or len(seconds) == MOST_RUNS:
                return 1.0 / mean, half


def most_running(replica: ReplicaSpec, kind_type: WorkloadType, run: SaturationRuns, tpot_s: float) -> int:
    """Most requests at once of which `KEPT_SHARE` keep a time between tokens, to a step of `FEWER`; 0: not even one.

    Args:
        replica: What runs; `max_num_seqs` is the most that is tried.
        kind_type: Lengths.
        run: How it is saturated.
        tpot_s: Mean time between tokens, seconds.
    """
    tried, most = [replica.max_num_seqs], max(1, math.floor(batch_of(replica, kind_type)))
    while tried[-1] > 1:
        tried.append(min(tried[-1] - 1, most))
        most = max(1, math.floor(tried[-1] * FEWER))
    rng = stream(run.seed, "oserve", "most running")

    def keeps(place: int) -> bool:
        few = replace(replica, max_num_seqs=tried[place])
        groups, outputs = _saturated(few, kind_type, replace(run, tpot_s=None))
        drawn = _stratified(kind_type, max(FEWEST_REQUESTS, 4 * tried[place]), rng)
        records = _run(FleetSpec(groups, **run.scheduling), kind_type.input_tokens[drawn], outputs[drawn])
        found = records.tpot_s[np.isfinite(records.tpot_s)]
        return not len(found) or float(np.quantile(found, KEPT_SHARE)) <= tpot_s

    first, last = 0, len(tried)  # the first that keeps it is among these, or there is none
    while first < last:
        middle = (first + last) // 2
        if keeps(middle):
            last = middle
        else:
            first = middle + 1
    return tried[first] if first < len(tried) else 0


def _saturated(
    replica: ReplicaSpec, kind_type: WorkloadType, run: SaturationRuns
) -> tuple[tuple[GroupSpec, ...], NDArray[np.int64]]:
    """The replica with those that feed it, and the answers that it writes."""
    if replica.role == "prefill":
        return (GroupSpec(replace(replica, role="mixed"), 1),), np.ones_like(kind_type.output_tokens)
    if replica.role == "decode":
        feeding = replace(replica, role="prefill")
        share = closed_form_rps(replica, kind_type) / measured_rps(
            feeding, kind_type, replace(run, precision=1.0)
        )
        fed = (GroupSpec(feeding, math.ceil(2 * share) + 1), GroupSpec(replica, 1))
        return fed, kind_type.output_tokens
    return (GroupSpec(replica, 1),), kind_type.output_tokens


def _stratified(kind_type: WorkloadType, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count,), requests drawn so that each block of `STRATA` has one of every stratum of lengths, in random order."""
    order = np.argsort(kind_type.input_tokens + kind_type.output_tokens, kind="stable")
    blocks = math.ceil(count / STRATA)
    strata = rng.permuted(np.tile(np.arange(STRATA), (blocks, 1)), axis=1).ravel()
    places = (strata + rng.random(len(strata))) / STRATA * len(order)
    return order[places.astype(np.int64)][:count]


def _one_run(fleet: FleetSpec, inputs: NDArray[np.int64], outputs: NDArray[np.int64]) -> float:
    """Rate at which requests that all arrive at once are finished, 1/s."""
    finish_s = _run(fleet, inputs, outputs).finish_s
    return _middle_rate(np.sort(finish_s[np.isfinite(finish_s)]))


def _run(fleet: FleetSpec, inputs: NDArray[np.int64], outputs: NDArray[np.int64]) -> RequestRecords:
    """What becomes of requests that all arrive at once."""
    simulator = FleetSimulator(fleet, _NO_PROMISE)
    simulator.reset(Workload(np.zeros(len(inputs)), inputs.astype(np.int32), outputs.astype(np.int32)))
    simulator.run_to_completion()
    return simulator.results()


def _middle_rate(finish_s: FloatArray) -> float:
    """Rate of the middle half of some completions, 1/s, the warm-up and the emptying left out.

    Args:
        finish_s: (n,), when each ended, ascending, s.
    """
    first, last = len(finish_s) // 4, 3 * len(finish_s) // 4
    if last <= first or finish_s[last] <= finish_s[first]:
        return 0.0
    return float((last - first) / (finish_s[last] - finish_s[first]))


def mixed_rps(
    replica: ReplicaSpec, types: Sequence[WorkloadType], run: SaturationRuns | None = None
) -> FloatArray:
    """(J,), `measured_rps` of each type, corrected for what it costs beside others, 1/s.

    A prefill or a decode worker has its requests one like the other, and nothing is corrected.

    Args:
        replica: What runs.
        types: Workload types.
        run: How replicas are saturated; None: the defaults.
    """
    run = run or SaturationRuns()
    alone = np.array([measured_rps(replica, kind_type, run) for kind_type in types])
    able = np.flatnonzero(alone).tolist()
    if replica.role != "mixed" or len(able) < 2:
        return alone
    groups = [(j,) for j in able] + list(combinations(able, 2)) + ([tuple(able)] if len(able) > 2 else [])
    served = np.zeros((len(groups), len(types)))  # each row fills a second
    for row, group in enumerate(groups):
        if len(group) == 1:
            served[row, group[0]] = alone[group[0]]
            continue
        shares = alone[list(group)] / alone[list(group)].sum()
        mix = _mix_of([types[j] for j in group], shares, stream(run.seed, "oserve", "mixed profiling"))
        served[row, list(group)] = measured_rps(replica, mix, run) * shares
    shares_of_time = served[:, able] / alone[able]
    cost = lsq_linear(shares_of_time, np.ones(len(groups)), (LEAST_COST, MOST_COST)).x
    corrected = alone.copy()
    corrected[able] /= cost
    return corrected


def _mix_of(types: Sequence[WorkloadType], shares: FloatArray, rng: np.random.Generator) -> WorkloadType:
    """Requests of several types in some shares."""
    counts = np.maximum(np.rint(shares * MIXED_REQUESTS), 1).astype(np.int64)
    drawn = [rng.integers(0, len(of.input_tokens), count) for of, count in zip(types, counts, strict=True)]
    return WorkloadType(
        np.concatenate([of.input_tokens[rows] for of, rows in zip(types, drawn, strict=True)]),
        np.concatenate([of.output_tokens[rows] for of, rows in zip(types, drawn, strict=True)]),
    )


# -- from the iteration times ------------------------------------------------------------------------------------------


def closed_form_rps(replica: ReplicaSpec, kind_type: WorkloadType) -> float:
    """The same from the latency model alone, 1/s.

    A fluid model of a saturated engine of B requests of mean prompt P and mean answer A: a request spends I iterations
    there, A - 1 of them decoding, so that B/I prompts are due in an iteration on average. If that is less than one, the
    share B/I of the iterations prefills one prompt and the others only decode; else all prefill as many. Where prompts
    exceed what the token budget leaves, I grows until they do not.

    Args:
        replica: What runs.
        kind_type: Lengths, of which only the means count.
    """
    tokens = kv_tokens(replica)
    P, A = float(np.mean(kind_type.input_tokens)), float(np.mean(kind_type.output_tokens))
    if tokens < P + A:
        return 0.0
    B, N = batch_of(replica, kind_type), float(replica.max_num_batched_tokens)
    if replica.role == "prefill":
        return N / P * PS_PER_S / _mixed_ps(replica, 0.0, N, P)
    if replica.role == "decode":
        return B / max(A - 1, 1.0) * PS_PER_S / _decode_ps(replica, B, P + A / 2)
    iterations, decoding = A, B * (A - 1) / A
    for _ in range(100):  # to its fixed point
        room = max(N - decoding, 1.0)
        iterations = max(A - 1 + max(1.0, P / room), B * P / room)
        decoding = B * (A - 1) / iterations
    room = max(N - decoding, 1.0)
    due = B * P / iterations  # prompt tokens an iteration
    chunk = min(max(P, due), room)
    share = min(1.0, due / chunk)
    context = P + A / 2
    plain = _decode_ps(replica, decoding, context) if decoding else 0.0
    mixed = _mixed_ps(replica, decoding, chunk, P) + tables_of(replica).kv_ps * decoding * context
    return B * PS_PER_S / (iterations * ((1 - share) * plain + share * mixed))


def _decode_ps(replica: ReplicaSpec, decoding: float, context: float) -> float:
    """Iteration in which so many requests of so much context decode, ps."""
    tables = tables_of(replica)
    base = np.interp(decoding, np.arange(len(tables.decode_ps)), tables.decode_ps)
    return float(base + tables.kv_ps * decoding * context)


def _mixed_ps(replica: ReplicaSpec, decoding: float, chunk: float, prompt: float) -> float:
    """Iteration that prefills `chunk` tokens of prompts beside decoding requests, without what these read, ps.

    With pipeline stages it is that of the largest batch, which holds one prompt at least (`calibration.pipeline`).
    """
    tables, stages = tables_of(replica), replica.pp_size
    whole = min(prompt, chunk)
    batch = max((chunk + decoding) / stages, whole) if stages > 1 else chunk + decoding
    pairs = chunk * (prompt + 1) / 2
    work = max(pairs / stages, whole * (prompt + 1) / 2) if stages > 1 else pairs
    base = np.interp(batch, np.arange(len(tables.mixed_ps)), tables.mixed_ps)
    return float(base + tables.sequence_ps * decoding + tables.attn_fs * work / 1000)
