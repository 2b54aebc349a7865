"""The one form every workload takes: a table of requests held as parallel arrays."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_gym.envs.interface.state import WaitingRequest
from serving_gym.envs.workload.ragged import gather_rows

FloatArray = NDArray[np.float64]
TokenArray = NDArray[np.int32]
OffsetArray = NDArray[np.int64]

DEFAULT_HASH_BLOCK_TOKENS = 512
_INT32_MAX = int(np.iinfo(np.int32).max)
_OF_SESSIONS = ("session_id", "delay_s", "after_offsets", "after")
_OPTIONAL_COLUMNS = ("predicted_tokens", "patience_s", "skipped_s", "hash_offsets", "hash_ids", *_OF_SESSIONS)
_PLAIN_COLUMNS = (
    *("arrival_s", "input_tokens", "output_tokens", "max_output_tokens"),
    *("priority", "class_id", "model_id", "region_id"),
)
_OPTIONAL_PLAIN = ("predicted_tokens", "patience_s", "skipped_s", "session_id", "delay_s")
_NAMED_COLUMNS = (("class_id", "classes"), ("model_id", "models"), ("region_id", "regions"))


def _unset() -> Any:
    """Empty column: ``Workload`` fills it with the default."""
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in order of arrival, one row each.

    Columns are parallel arrays because both the compiled kernel and NumPy read them so. Columns left out are
    filled: ``max_output_tokens`` with the largest output of the workload, ``priority`` and ``class_id`` with
        0. Construction
    converts types and refuses what has no integer value; :meth:`validate` checks the rest.

    Real traces hold requests that produced no token (aborted or failed ones). An engine always samples at
    least one, so the loaders of this package clip an output of 0 to 1.

    Attributes:
        arrival_s: (N,), seconds from the start of the workload, never decreasing.
        input_tokens: (N,), prompt length in tokens, at least 1.
        output_tokens: (N,), true output length in tokens, at least 1. Never shown to a policy.
        max_output_tokens: (N,), tokens; the cap that the client declares, at least ``output_tokens``. What a
            policy may know about the length of an answer.
        predicted_tokens: (N,), tokens, or None; output length that a predictor expects from the prompt's text, at
            least 1.
        priority: (N,), vLLM's convention: the lower value is served first; 0 is the default.
        class_id: (N,), index into ``classes``.
        classes: names of the request classes (for objectives that differ by class).
        model_id: (N,), index into ``models``.
        models: names of the models; the single name "" is any model of the cluster.
        region_id: (N,), index into ``regions``.
        regions: names of the regions that requests come from; the one name "" is wherever the cluster is.
        hash_offsets: (N + 1,) or None; row ``i`` owns ``hash_ids[hash_offsets[i]:hash_offsets[i + 1]]``.
        hash_ids: (number of blocks,) or None; ids of the prompt's prefix blocks from its beginning (the last
            one may be partly filled). Equal ids are equal text, hence reusable KV blocks. A row without ids
            shares nothing.
        hash_block_tokens: tokens that one id covers.
        patience_s: (N,), seconds from its arrival that a client waits for the first token before it hangs up, or None:
            all wait as long as it takes. Infinite: as long as it takes.
        session_id: (N,), the session of each request, -1 where it has none; or None: no request has one.
        delay_s: (N,), seconds between the end of the last answer that a request waits for and its arrival; 0 where
            it waits for none. Given with ``after``.
        after_offsets: (N + 1,) or None; row ``i`` waits for the answers of the rows
            ``after[after_offsets[i]:after_offsets[i + 1]]``. A row that waits for none arrives at ``arrival_s``. One
            that waits arrives ``delay_s`` after the last of those answers has ended, however late that is, and never
            where one of them was refused, failed or was given up. Its ``arrival_s`` is then the earliest time at which
            it could arrive: that of serving in no time.
        after: (edges,) or None; earlier rows.
        skipped_s: (N,), idle time that a trace has before each request and that ``arrival_s`` leaves out, seconds since
            the trace began; None: none. `runners.simulate` puts it back into its results.
        num_clients: 0 where requests arrive when ``arrival_s`` says (open loop); else that many clients, each of which
            sends its next request when its last one has ended (closed loop), and ``arrival_s`` says nothing.
        name: what the workload is called in reports.
        provenance: where it comes from, in one line.
    """

    arrival_s: FloatArray
    input_tokens: TokenArray
    output_tokens: TokenArray
    max_output_tokens: TokenArray = field(default_factory=_unset)
    predicted_tokens: TokenArray | None = None
    priority: TokenArray = field(default_factory=_unset)
    class_id: TokenArray = field(default_factory=_unset)
    classes: tuple[str, ...] = ("standard",)
    model_id: TokenArray = field(default_factory=_unset)
    models: tuple[str, ...] = ("",)
    region_id: TokenArray = field(default_factory=_unset)
    regions: tuple[str, ...] = ("",)
    hash_offsets: OffsetArray | None = None
    hash_ids: TokenArray | None = None
    hash_block_tokens: int = DEFAULT_HASH_BLOCK_TOKENS
    patience_s: FloatArray | None = None
    session_id: TokenArray | None = None
    delay_s: FloatArray | None = None
    after_offsets: OffsetArray | None = None
    after: TokenArray | None = None
    skipped_s: FloatArray | None = None
    num_clients: int = 0
    name: str = "unnamed"
    provenance: str = ""

    def __post_init__(self) -> None:
        rows = np.size(self.arrival_s)
        put = object.__setattr__
        put(self, "arrival_s", np.ascontiguousarray(self.arrival_s, dtype=np.float64))
        for column in ("input_tokens", "output_tokens"):
            put(self, column, _int32(column, getattr(self, column)))
        cap = self.output_tokens.max(initial=1)
        defaults = (("priority", 0), ("class_id", 0), ("model_id", 0), ("region_id", 0))
        for column, default in (("max_output_tokens", cap), *defaults):
            given = getattr(self, column)
            values = np.full(rows, default, dtype=np.int32) if np.size(given) == 0 else _int32(column, given)
            put(self, column, values)
        for names in ("classes", "models", "regions"):
            put(self, names, tuple(getattr(self, names)))
        for column in ("predicted_tokens", "hash_ids", "session_id", "after"):
            if getattr(self, column) is not None:
                put(self, column, _int32(column, getattr(self, column)))
        for column in ("hash_offsets", "after_offsets"):
            if getattr(self, column) is not None:
                put(self, column, np.ascontiguousarray(getattr(self, column), dtype=np.int64))
        for column in ("patience_s", "delay_s", "skipped_s"):
            if getattr(self, column) is not None:
                put(self, column, np.ascontiguousarray(getattr(self, column), dtype=np.float64))

    def __len__(self) -> int:
        """Number of requests."""
        return int(self.arrival_s.size)

    def __repr__(self) -> str:
        """Name and size, without the arrays."""
        return f"Workload(name={self.name!r}, requests={len(self)}, duration_s={self.duration_s:.1f})"

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def whole_duration_s(self) -> float:
        """Seconds from the first arrival to the last, with the idle time that is left out."""
        skipped_s = 0.0 if self.skipped_s is None else float(self.skipped_s[-1] - self.skipped_s[0])
        return self.duration_s + skipped_s

    @property
    def rate_rps(self) -> float:
        """Mean arrival rate, requests per second; NaN if fewer than two arrival times differ."""
        return (len(self) - 1) / self.duration_s if self.duration_s > 0 else math.nan

    @property
    def has_sessions(self) -> bool:
        """Whether some requests wait for the answers of others."""
        return self.after is not None and self.after.size > 0

    @property
    def num_awaited(self) -> NDArray[np.int64]:
        """Answers that each request waits for, (N,)."""
        if self.after_offsets is None:
            return np.zeros(len(self), np.int64)
        return np.diff(self.after_offsets)

    @property
    def turn(self) -> TokenArray:
        """Place of each request in its session, (N,): 0 where it waits for none, else one more than the latest awaited.

        Source: longest path from a first request, for requests that fan out and join.
        """
        turn = np.zeros(len(self), np.int32)
        if self.after is not None and self.after_offsets is not None:
            for row in np.flatnonzero(self.num_awaited):
                awaited = self.after[self.after_offsets[row] : self.after_offsets[row + 1]]
                turn[row] = turn[awaited].max() + 1
        return turn

    def validate(self) -> Workload:
        """Checks every column and returns the workload itself.

        Raises:
            ValueError: no requests; columns of different lengths; a time that is missing, negative or earlier
                than the one before; a token count below 1; an output above its cap; an unknown class; broken
                prefix blocks; a request that waits for itself or a later one. The message names row (from 0) and
                column.
        """
        if len(self) == 0:
            raise ValueError(f"workload {self.name!r} is empty: it holds no requests")
        self._check_shapes()
        time = self.arrival_s
        self._refuse("arrival_s", ~np.isfinite(time), "is not a finite number of seconds")
        self._refuse("arrival_s", time < 0, "is negative")
        if self.num_clients < 0:
            raise ValueError(f"workload {self.name!r}: num_clients must be 0 (open loop) or more")
        earlier = np.zeros(len(self), dtype=bool)
        earlier[1:] = np.diff(time) < 0
        self._refuse(
            "arrival_s", earlier, "is earlier than the row before: requests must be sorted by arrival"
        )
        self._refuse("input_tokens", self.input_tokens < 1, "is below 1 token")
        self._refuse("output_tokens", self.output_tokens < 1, "is below 1 token")
        self._refuse(
            "max_output_tokens", self.max_output_tokens < self.output_tokens, "is below output_tokens"
        )
        if self.predicted_tokens is not None:
            self._refuse("predicted_tokens", self.predicted_tokens < 1, "is below 1 token")
        for column, names in _NAMED_COLUMNS:
            values, known = getattr(self, column), getattr(self, names)
            self._refuse(
                column, (values < 0) | (values >= len(known)), f"is not an index into {names} {known}"
            )
        self._check_hashes()
        if self.patience_s is not None:
            self._refuse("patience_s", ~(self.patience_s > 0), "is not a positive number of seconds")
        self._check_sessions()
        return self

    def with_rate_scale(self, factor: float) -> Workload:
        """Same requests, arriving ``factor`` times as fast; in a session only its first request does, delays stay.

        Args:
            factor: above 0; 2.0 halves every interval.

        Raises:
            ValueError: the factor is not a positive number.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise ValueError(f"rate scale must be a positive number, got {factor}")
        return replace(self, arrival_s=self.arrival_s / factor).planned()

    def with_classes(self, classes: tuple[str, ...]) -> Workload:
        """Same requests, their classes numbered anew.

        Args:
            classes: all that there are from now on, those of this workload among them.

        Raises:
            ValueError: one of this workload's is not among them.
        """
        if classes == self.classes:
            return self
        missing = [name for name in self.classes if name not in classes]
        if missing:
            raise ValueError(f"classes of workload {self.name!r} that are not among {classes}: {missing}")
        numbers = np.array([classes.index(name) for name in self.classes], np.int32)
        return replace(self, class_id=numbers[self.class_id], classes=classes)

    def shifted(self, offset_s: float) -> Workload:
        """Same requests, every one ``offset_s`` seconds later (earlier where negative).

        Raises:
            ValueError: a request would arrive before 0.
        """
        if len(self) and self.arrival_s[0] + offset_s < 0:
            raise ValueError(
                f"shifting workload {self.name!r} by {offset_s} s would move its first arrival "
                f"({self.arrival_s[0]} s) before 0"
            )
        return replace(self, arrival_s=self.arrival_s + offset_s)

    def window(self, start_s: float, end_s: float) -> Workload:
        """Requests that arrive in ``[start_s, end_s)``, with times counted from ``start_s``.

        A session belongs to the window that its first request arrives in, with all that come after.

        Raises:
            ValueError: no request arrives in the window.
        """
        first, last = np.searchsorted(self.arrival_s, (start_s, end_s), side="left")
        if last <= first:
            raise ValueError(
                f"workload {self.name!r} has no request between {start_s} s and {end_s} s "
                f"(it spans {self.arrival_s[0]} to {self.arrival_s[-1]} s)"
            )
        if self.has_sessions:
            begins = self.first_of_tree()
            inside = (begins >= first) & (begins < last)
            return self.take(np.flatnonzero(inside)).shifted(-start_s)
        return self.rows(int(first), int(last)).shifted(-start_s)

    def head(self, n: int) -> Workload:
        """First ``n`` requests (all where there are fewer)."""
        if n < 1:
            raise ValueError(f"head needs at least 1 request, got {n}")
        return self.rows(0, n)

    def rows(self, first: int, last: int) -> Workload:
        """Requests ``first`` to ``last - 1``, copied, with their times unchanged.

        Those that wait for an answer outside of these rows are left out, and so are those that wait for them.
        """
        wanted = np.arange(len(self))[first:last]
        if not self.has_sessions:
            return self._of_rows(wanted)
        return self.take(wanted[self.session_start()[wanted] >= first])

    def take(self, wanted: NDArray[np.intp]) -> Workload:
        """Requests by row, copied, with their times unchanged.

        Args:
            wanted: (M,), rows, each after all that it waits for, which must be among them.
        """
        part = self._of_rows(wanted)
        if self.after is None or self.after_offsets is None:
            return part
        offsets, after = gather_rows(np.diff(self.after_offsets), self.after, wanted)
        number = np.full(len(self), -1, np.int32)
        number[wanted] = np.arange(len(wanted))
        return replace(part, after_offsets=offsets, after=number[after])

    def last_arrival_s(self, answer_s: FloatArray) -> float:
        """When the last request arrives if the answer to each takes so long, seconds.

        Args:
            answer_s: (N,), seconds from the arrival of each request to the end of its answer.
        """
        arrival_s = self.arrival_s.copy()
        if self.after is not None and self.after_offsets is not None and self.delay_s is not None:
            for row in np.flatnonzero(self.num_awaited):
                awaited = self.after[self.after_offsets[row] : self.after_offsets[row + 1]]
                arrival_s[row] = (arrival_s[awaited] + answer_s[awaited]).max() + self.delay_s[row]
        return float(arrival_s.max(initial=0.0))

    def session_start(self) -> NDArray[np.int64]:
        """First row that must be there for each row to arrive, (N,): its own where it waits for none."""
        start = np.arange(len(self), dtype=np.int64)
        if self.after is not None and self.after_offsets is not None:
            for row in np.flatnonzero(self.num_awaited):
                start[row] = start[self.after[self.after_offsets[row] : self.after_offsets[row + 1]]].min()
        return start

    def first_of_tree(self) -> NDArray[np.int64]:
        """First row among all that are linked to each row by awaited answers, (N,): its own where there is none."""
        rows = len(self)
        if self.after is None:
            return np.arange(rows, dtype=np.int64)
        # Imported here because it takes time, and most workloads have no sessions.
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        links = coo_array(
            (np.ones(self.after.size), (np.repeat(np.arange(rows), self.num_awaited), self.after)),
            (rows, rows),
        )
        _, tree = connected_components(links, directed=False)
        first = np.full(rows, rows, np.int64)
        np.minimum.at(first, tree, np.arange(rows))
        return first[tree]

    def _of_rows(self, wanted: NDArray[np.intp]) -> Workload:
        """Rows with all columns but the answers they wait for."""
        own: dict[str, Any] = {name: getattr(self, name)[wanted] for name in _PLAIN_COLUMNS}
        for name in _OPTIONAL_PLAIN:
            column = getattr(self, name)
            own[name] = None if column is None else column[wanted]
        if self.hash_offsets is not None and self.hash_ids is not None:
            own["hash_offsets"], own["hash_ids"] = gather_rows(
                np.diff(self.hash_offsets), self.hash_ids, wanted
            )
        return replace(self, **own)

    def planned(self) -> Workload:
        """Same requests in the order of their earliest arrivals, which are computed anew for those that wait."""
        if self.after is None or self.after_offsets is None or self.delay_s is None:
            return self
        arrival_s = self.arrival_s.copy()
        for row in np.flatnonzero(self.num_awaited):
            awaited = self.after[self.after_offsets[row] : self.after_offsets[row + 1]]
            arrival_s[row] = arrival_s[awaited].max() + self.delay_s[row]
        order = np.argsort(arrival_s, kind="stable")
        return replace(self, arrival_s=arrival_s).take(order)

    def copy(self) -> Workload:
        """Same requests in arrays of their own."""
        return self.rows(0, len(self))

    @staticmethod
    def merge(*workloads: Workload) -> Workload:
        """All requests of several workloads in order of arrival.

        Classes, models and regions of equal name become one. Prefix ids and sessions are renumbered so that no two
        workloads share a block or a session. Ties keep the order of the arguments.

        Raises:
            ValueError: no workload given, prefix blocks of different sizes, or predicted lengths in some of the
                workloads and not in others.
        """
        if not workloads:
            raise ValueError("merge needs at least one workload")
        arrival_s = np.concatenate([part.arrival_s for part in workloads])
        order = np.argsort(arrival_s, kind="stable")
        offsets, ids, block_tokens = _merge_hashes(workloads, order)
        without = [part.name for part in workloads if part.predicted_tokens is None]
        if 0 < len(without) < len(workloads):
            raise ValueError(
                f"cannot merge workloads with column 'predicted_tokens' and {without[0]!r} without it"
            )

        def column(name: str) -> TokenArray:
            joined: TokenArray = np.concatenate([getattr(part, name) for part in workloads])[order]
            return joined

        return Workload(
            arrival_s=arrival_s[order],
            input_tokens=column("input_tokens"),
            output_tokens=column("output_tokens"),
            max_output_tokens=column("max_output_tokens"),
            predicted_tokens=None if without else column("predicted_tokens"),
            priority=column("priority"),
            **_merge_names(workloads, order),
            hash_offsets=offsets,
            hash_ids=ids,
            hash_block_tokens=block_tokens,
            **_merge_sessions(workloads, order),
            name="+".join(part.name for part in workloads),
            provenance="; ".join(dict.fromkeys(part.provenance for part in workloads if part.provenance)),
        )

    def waiting_request(self, row: int) -> WaitingRequest:
        """A row as a router observes it."""
        return WaitingRequest(
            index=row,
            arrival_s=float(self.arrival_s[row]),
            input_tokens=int(self.input_tokens[row]),
            max_output_tokens=int(self.max_output_tokens[row]),
            priority=int(self.priority[row]),
            class_id=int(self.class_id[row]),
        )

    def equals(self, other: Workload) -> bool:
        """Whether both hold the same requests (names and provenance aside)."""
        if any(getattr(self, names) != getattr(other, names) for _, names in _NAMED_COLUMNS):
            return False
        if any((getattr(self, name) is None) != (getattr(other, name) is None) for name in _OPTIONAL_COLUMNS):
            return False
        if self.num_clients != other.num_clients:
            return False
        columns = ["arrival_s", "input_tokens", "output_tokens", "max_output_tokens", "priority"]
        columns += [column for column, _ in _NAMED_COLUMNS]
        columns += [name for name in _OPTIONAL_COLUMNS if getattr(self, name) is not None]
        return all(np.array_equal(getattr(self, column), getattr(other, column)) for column in columns)

    def sha256(self) -> str:
        """Digest of arrivals (to the microsecond) and lengths, the same whatever file they came from."""
        digest = hashlib.sha256(np.rint(self.arrival_s * 1e6).astype("<i8").tobytes())
        digest.update(self.input_tokens.astype("<i4").tobytes())
        digest.update(self.output_tokens.astype("<i4").tobytes())
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """Statistics of the workload, ready for JSON.

        ``interarrival_cv`` is 1 for a Poisson process; ``count_cv_10s`` is the coefficient of variation of
        arrivals per 10 s; ``repeated_block_ratio`` is the share of prefix blocks seen earlier in the
        workload, hence the best hit ratio an unbounded cache could reach.
        """
        gaps = np.diff(self.arrival_s)
        figures: dict[str, Any] = {
            "name": self.name,
            "provenance": self.provenance,
            "requests": len(self),
            "duration_s": self.duration_s,
            "rate_rps": self.rate_rps,
            "interarrival_cv": variation(gaps),
            "count_cv_10s": variation(counts_per_bin(self.arrival_s, 10.0)),
        }
        for column in ("input_tokens", "output_tokens", "predicted_tokens"):
            values = getattr(self, column)
            if values is None:
                continue
            p50, p95, p99 = np.percentile(values, (50, 95, 99))
            figures[column] = {
                "mean": float(values.mean()), "p50": float(p50), "p95": float(p95), "p99": float(p99),
                "min": int(values.min()), "max": int(values.max()),
            }  # fmt: skip
        counts = np.bincount(self.class_id, minlength=len(self.classes))
        if self.session_id is not None:
            figures["sessions"] = int(np.unique(self.session_id[self.session_id >= 0]).size)
            figures["requests_that_wait_for_an_answer"] = int((self.num_awaited > 0).sum())
        figures["classes"] = {name: int(count) for name, count in zip(self.classes, counts, strict=True)}
        figures["max_output_tokens"] = int(self.max_output_tokens.max())
        if self.hash_ids is not None and self.hash_ids.size:
            figures["repeated_block_ratio"] = 1.0 - np.unique(self.hash_ids).size / self.hash_ids.size
        return figures

    def _check_shapes(self) -> None:
        for column in (
            *("input_tokens", "output_tokens", "max_output_tokens", "priority"),
            *(column for column, _ in _NAMED_COLUMNS),
            *(name for name in _OPTIONAL_PLAIN if getattr(self, name) is not None),
        ):
            size = getattr(self, column).size
            if size != len(self):
                raise ValueError(
                    f"workload {self.name!r}: column {column!r} has {size} rows, arrival_s has {len(self)}"
                )

    def _check_hashes(self) -> None:
        if (self.hash_ids is None) != (self.hash_offsets is None):
            raise ValueError(f"workload {self.name!r}: hash_ids and hash_offsets must be given together")
        if self.hash_block_tokens < 1:
            raise ValueError(f"workload {self.name!r}: hash_block_tokens must be at least 1")
        if self.hash_ids is None or self.hash_offsets is None:
            return
        ends = self.hash_offsets
        if ends.size != len(self) + 1 or ends[0] != 0 or ends[-1] != self.hash_ids.size:
            raise ValueError(
                f"workload {self.name!r}: column 'hash_offsets' must have {len(self) + 1} entries "
                f"from 0 to {self.hash_ids.size}"
            )
        self._refuse("hash_offsets", np.diff(ends) < 0, "decreases")

    def _check_sessions(self) -> None:
        given = [getattr(self, name) is not None for name in ("delay_s", "after_offsets", "after")]
        if any(given) != all(given):
            raise ValueError(
                f"workload {self.name!r}: delay_s, after_offsets and after must be given together"
            )
        if self.after is None or self.after_offsets is None or self.delay_s is None:
            return
        ends = self.after_offsets
        if (
            ends.size != len(self) + 1
            or ends[0] != 0
            or ends[-1] != self.after.size
            or np.diff(ends).min(initial=0) < 0
        ):
            raise ValueError(
                f"workload {self.name!r}: column 'after_offsets' must have {len(self) + 1} entries that do not "
                f"decrease, from 0 to {self.after.size}"
            )
        self._refuse(
            "delay_s", ~(np.isfinite(self.delay_s) & (self.delay_s >= 0)), "is not 0 seconds or more"
        )
        owner = np.repeat(np.arange(len(self)), self.num_awaited)
        wrong = (self.after < 0) | (self.after >= owner)
        if wrong.any():
            row = int(owner[np.argmax(wrong)])
            raise ValueError(
                f"workload {self.name!r}: row {row}, column 'after': {self.after[np.argmax(wrong)]} "
                "is not an earlier row"
            )
        if self.num_clients:
            raise ValueError(
                f"workload {self.name!r}: sessions and num_clients cannot be combined; num_clients must be 0"
            )

    def _refuse(self, column: str, bad: NDArray[np.bool_], why: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            value = getattr(self, column)[row]
            raise ValueError(f"workload {self.name!r}: row {row}, column {column!r}: {value} {why}")


def variation(values: NDArray[Any]) -> float:
    """Coefficient of variation: standard deviation over mean; not a number where there is no mean to divide by."""
    mean = float(values.mean()) if values.size else 0.0
    return float(values.std()) / mean if mean else math.nan


def counts_per_bin(arrival_s: FloatArray, bin_s: float) -> NDArray[np.int64]:
    """Arrivals in each whole bin of ``bin_s`` seconds from the first arrival on."""
    elapsed = arrival_s - arrival_s[0] if arrival_s.size else arrival_s
    bins = int(elapsed[-1] // bin_s) if elapsed.size else 0
    index = (elapsed // bin_s).astype(np.int64)
    return np.bincount(index[index < bins], minlength=bins)


def _int32(column: str, values: ArrayLike) -> TokenArray:
    """Column as int32; raises for values that are not whole numbers in that range."""
    array = np.asarray(values)
    if array.dtype == np.int32:
        return np.ascontiguousarray(array)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"column {column!r} must hold whole numbers, not {array.dtype}")
    bad = ~((np.abs(array) <= _INT32_MAX) & (array == np.floor(array)))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"row {row}, column {column!r}: {array[row]} is not a whole number of at most {_INT32_MAX}"
        )
    return np.ascontiguousarray(array, dtype=np.int32)


def _merge_names(workloads: tuple[Workload, ...], order: NDArray[np.intp]) -> dict[str, Any]:
    """Classes, models and regions of the merged rows; equal names become one."""
    merged: dict[str, Any] = {}
    for column, names in _NAMED_COLUMNS:
        known = tuple(dict.fromkeys(name for part in workloads for name in getattr(part, names)))
        ids = [
            np.array([known.index(name) for name in getattr(part, names)])[getattr(part, column)]
            for part in workloads
        ]
        merged |= {names: known, column: np.concatenate(ids)[order].astype(np.int32)}
    return merged


def _merge_hashes(
    workloads: tuple[Workload, ...], order: NDArray[np.intp]
) -> tuple[OffsetArray | None, TokenArray | None, int]:
    """Prefix blocks of the merged rows: offsets, ids and block size."""
    hashed = [part for part in workloads if part.hash_ids is not None]
    if not hashed:
        return None, None, workloads[0].hash_block_tokens
    sizes = {part.hash_block_tokens for part in hashed}
    if len(sizes) > 1:
        raise ValueError(f"cannot merge workloads whose prefix blocks differ in size: {sorted(sizes)} tokens")
    lengths, ids, next_id = [], [], 0
    for part in workloads:
        if part.hash_ids is None or part.hash_offsets is None:
            lengths.append(np.zeros(len(part), dtype=np.int64))
            continue
        lengths.append(np.diff(part.hash_offsets))
        ids.append(part.hash_ids + next_id)
        next_id += int(part.hash_ids.max(initial=-1)) + 1
    offsets, gathered = gather_rows(np.concatenate(lengths), np.concatenate(ids), order)
    return offsets, gathered, sizes.pop()


def _merge_sessions(workloads: tuple[Workload, ...], order: NDArray[np.intp]) -> dict[str, Any]:
    """Patience, sessions and awaited answers of the merged rows; nothing where no workload has any."""
    merged: dict[str, Any] = {}
    for name, none in (
        ("patience_s", math.inf),
        ("skipped_s", 0.0),
        ("delay_s", 0.0),
        ("session_id", -1),
    ):
        if any(getattr(part, name) is not None for part in workloads):
            columns, next_id = [], 0
            for part in workloads:
                own = getattr(part, name)
                column = np.full(len(part), none) if own is None else own
                if name == "session_id":
                    column = np.where(column >= 0, column + next_id, -1)
                    next_id = max(next_id, int(column.max(initial=-1)) + 1)
                columns.append(column)
            merged[name] = np.concatenate(columns)[order]
    if any(part.after is not None for part in workloads):
        starts = np.concatenate([[0], np.cumsum([len(part) for part in workloads])])
        after = [
            np.zeros(0, np.int64) if part.after is None else part.after.astype(np.int64) + start
            for part, start in zip(workloads, starts[:-1], strict=True)
        ]
        lengths = np.concatenate([part.num_awaited for part in workloads])
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        merged["after_offsets"], gathered = gather_rows(lengths, np.concatenate(after), order)
        merged["after"] = number[gathered]
    return merged
