"""Whether a node can take one more request (LLM-Mesh, section 5.3 and figure 6).

The request is added to its instance virtually, and the node goes on iteration by iteration as it would: the instance
with the shortest headroom computes next, the prompt of that request or one token of its whole batch. Every iteration is
taken to last 10 % longer than quantified. The request is refused in three cases:

    1. its own prefill ends too late;
    2. a request that was still in time gets a token too late;
    3. one decode iteration of every instance of the node together lasts longer than TPOT_SLO.

Readings. A request that is late already cannot become so, and no longer counts in case 2, though it is computed as
before. The text does not say how far to simulate: here until nothing can fail any more, which is when no prompt waits
and every headroom is as long as one round of all instances. From there on taking turns keeps every deadline if case 3
does not occur, so the shortest headroom first does as well. Prompts are prefilled one at a time.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.baselines.llm_mesh.quantification import Quantification, decode_time, prefill_time

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Of functions that allocate nothing: to count references to a node's arrays would take most of their time.
_WITHOUT_COUNTS: dict[str, Any] = {"cache": True, "_nrt": False}
_lean = njit(**_WITHOUT_COUNTS)

OVERESTIMATE = 0.10  # section 5.3
MAX_ITERATIONS = (
    20_000  # source: ours; some minutes of a node, reached only where late requests never catch up
)


class Case(IntEnum):
    """What a shadow validation finds."""

    PASSED = 0
    OWN_PREFILL_LATE = 1
    OTHER_LATE = 2
    DECODE_ROUND_TOO_LONG = 3


class Phase(IntEnum):
    """Where a request stands."""

    WAITING = 0
    PREFILLING = 1  # in the iteration under way
    RUNNING = 2


class NodeView(NamedTuple):
    """A node as it stands: I instances, R requests.

    Attributes:
        now_s: Time.
        busy_instance: Instance whose iteration is under way; -1: none.
        busy_until_s: When that ends.
        profile: (I,) row of the quantification.
        ready_s: (I,) when each can compute: the past where it can already.
        instance: (R,) instance of each request.
        phase: (R,) `Phase`.
        deadline_s: (R,) when the next token is due.
        length: (R,) tokens in the KV cache, or to prefill where there are none yet.
    """

    now_s: float
    busy_instance: int
    busy_until_s: float
    profile: IntArray
    ready_s: FloatArray
    instance: IntArray
    phase: IntArray
    deadline_s: FloatArray
    length: FloatArray

    def with_request(self, instance: int, deadline_s: float, length: float) -> NodeView:
        """The view with one more request, as its last."""
        return self._replace(
            instance=np.append(self.instance, instance),
            phase=np.append(self.phase, int(Phase.WAITING)),
            deadline_s=np.append(self.deadline_s, deadline_s),
            length=np.append(self.length, float(length)),
        )

    def without_request(self, instance: int, deadline_s: float, length: float) -> NodeView:
        """The view without one request of an instance with this deadline and length."""
        same = (self.instance == instance) & (self.deadline_s == deadline_s) & (self.length == length)
        stay = np.arange(len(same)) != np.argmax(same) if same.any() else np.ones(len(same), bool)
        return self._keep(stay)

    def _keep(self, stay: NDArray[np.bool_]) -> NodeView:
        return self._replace(
            instance=self.instance[stay],
            phase=self.phase[stay],
            deadline_s=self.deadline_s[stay],
            length=self.length[stay],
        )

    def without_instance(self, instance: int) -> NodeView:
        """The view with an instance emptied: its requests are gone and what it computes is dropped."""
        busy = -1 if self.busy_instance == instance else self.busy_instance
        return self._keep(self.instance != instance)._replace(busy_instance=busy)


def shadow_validation(
    view: NodeView,
    instance: int,
    deadline_s: float,
    length: float,
    quantification: Quantification,
    tpot_slo_s: float,
    overestimate: float = OVERESTIMATE,
    max_iterations: int = MAX_ITERATIONS,
) -> Case:
    """Validates a request that is virtually added to an instance.

    Args:
        view: The node without the request.
        instance: Where it would go.
        deadline_s: When its next token is due.
        length: Tokens to prefill.
        quantification: Iteration times.
        tpot_slo_s: TPOT_SLO.
        overestimate: By how much an iteration may last longer than quantified, a fraction.
        max_iterations: After so many iterations without a failure the request is accepted.
    """
    return _validate(
        *view,
        instance,
        deadline_s,
        float(length),
        quantification.batches,
        quantification.lengths,
        quantification.prefill_s,
        quantification.decode_s,
        1.0 + overestimate,
        tpot_slo_s,
        max_iterations,
    )


class Times(NamedTuple):
    """How long iterations last, and may last: the quantification, and what else shadow validation counts with.

    Attributes:
        batches: As in `Quantification`, like the next three.
        lengths: Tokens.
        prefill_s: (P, S_L).
        decode_s: (P, S_B, S_L).
        longer: Iterations last so many times what is quantified.
        tpot_slo_s: TPOT_SLO.
    """

    batches: FloatArray
    lengths: FloatArray
    prefill_s: FloatArray
    decode_s: FloatArray
    longer: float
    tpot_slo_s: float


class Course(NamedTuple):
    """What changes as a node goes on: I instances, R requests.

    Attributes:
        batch: (I,) running requests.
        tokens: (I,) their tokens.
        earliest_s: (I,) earliest deadline of running requests.
        in_time_s: (I,) earliest of those that were not late at the beginning.
        head: (I,) most urgent request that waits; -1: none does.
        waits: (R,) which requests are still to be prefilled.
    """

    batch: FloatArray
    tokens: FloatArray
    earliest_s: FloatArray
    in_time_s: FloatArray
    head: IntArray
    waits: NDArray[np.bool_]


@njit(cache=True)
def _validate(
    now_s: float,
    busy_instance: int,
    busy_until_s: float,
    profile: IntArray,
    ready_s: FloatArray,
    instance: IntArray,
    phase: IntArray,
    deadline_s: FloatArray,
    length: FloatArray,
    new_instance: int,
    new_deadline_s: float,
    new_length: float,
    batches: FloatArray,
    lengths: FloatArray,
    prefill_s: FloatArray,
    decode_s: FloatArray,
    longer: float,
    tpot_slo_s: float,
    max_iterations: int,
) -> Case:
    """`shadow_validation`; tuples are made here because they are dear to hand over."""
    view = NodeView(
        now_s,
        busy_instance,
        busy_until_s,
        profile,
        ready_s,
        np.append(instance, new_instance),
        np.append(phase, np.int64(Phase.WAITING)),
        np.append(deadline_s, new_deadline_s),
        np.append(length, new_length),
    )
    times = Times(batches, lengths, prefill_s, decode_s, longer, tpot_slo_s)
    count = len(profile)
    course = Course(
        np.zeros(count),
        np.zeros(count),
        np.full(count, np.inf),
        np.full(count, np.inf),
        np.full(count, -1),
        np.zeros(len(view.phase), np.bool_),
    )
    return simulate(view, times, course, max_iterations)


@_lean
def simulate(view: NodeView, times: Times, course: Course, max_iterations: int) -> Case:
    """`shadow_validation` of the last request of a node; `course` is there to write in."""
    round_s = _round_s(view, times, course)
    if round_s > times.tpot_slo_s:
        return Case.DECODE_ROUND_TOO_LONG
    _begin(view, course)
    clock = view.now_s
    for iteration in range(max_iterations):
        if iteration == 0 and view.busy_instance >= 0:
            i, r = view.busy_instance, _prefilled_now(view)
            clock = max(view.busy_until_s, view.now_s)
        else:
            i, ready_s, settled = _choose(view, course, clock, round_s)
            if settled:
                return Case.PASSED
            if i < 0:
                clock = ready_s
                continue
            r = _to_prefill(view, course, i)
            clock += _iteration_s(view, course, times, i, r)
        found = (
            _end_prefill(view, course, times, r, clock) if r >= 0 else _end_decode(course, times, i, clock)
        )
        if found != Case.PASSED:
            return found
    return Case.PASSED


@_lean
def _round_s(view: NodeView, times: Times, course: Course) -> float:
    """One decode iteration of every instance, with all prompts prefilled (case 3); leaves `course` as it was."""
    for r in range(len(view.instance)):
        course.batch[view.instance[r]] += 1.0
        course.tokens[view.instance[r]] += view.length[r]
    total = 0.0
    for i in range(len(view.profile)):
        if course.batch[i] > 0.0:
            total += times.longer * _decode_s(view, times, i, course.batch[i], course.tokens[i])
        course.batch[i] = course.tokens[i] = 0.0
    return total


@_lean
def _decode_s(view: NodeView, times: Times, i: int, batch: float, tokens: float) -> float:
    """A decode iteration of an instance, as quantified."""
    return decode_time(times.batches, times.lengths, times.decode_s, view.profile[i], batch, tokens / batch)


@_lean
def _begin(view: NodeView, course: Course) -> None:
    """Writes the node as it stands; nothing runs or waits yet in `course`."""
    for r in range(len(view.instance)):
        course.waits[r] = view.phase[r] != Phase.RUNNING
        if not course.waits[r]:
            _join(view, course, r, view.length[r], view.deadline_s[r])
    for i in range(len(view.profile)):
        _find_head(view, course, i)


@_lean
def _join(view: NodeView, course: Course, r: int, tokens: float, deadline_s: float) -> None:
    """A request runs from now on; one that was late at the beginning cannot become so."""
    i = view.instance[r]
    course.batch[i] += 1.0
    course.tokens[i] += tokens
    course.earliest_s[i] = min(course.earliest_s[i], deadline_s)
    if view.deadline_s[r] >= view.now_s:
        course.in_time_s[i] = min(course.in_time_s[i], deadline_s)


@_lean
def _find_head(view: NodeView, course: Course, i: int) -> None:
    """The most urgent request of an instance that waits; the first of equals."""
    head = -1
    for r in range(len(view.instance)):
        first = head < 0 or view.deadline_s[r] < view.deadline_s[head]
        if course.waits[r] and view.instance[r] == i and first:
            head = r
    course.head[i] = head


@_lean
def _prefilled_now(view: NodeView) -> int:
    """The request that the iteration under way prefills; -1: it decodes."""
    for r in range(len(view.phase) - 1, -1, -1):
        if view.phase[r] == Phase.PREFILLING:
            return r
    return -1


@_lean
def _choose(view: NodeView, course: Course, clock: float, round_s: float) -> tuple[int, float, bool]:
    """The instance that computes next, -1 where none can; when the next can; whether nothing can fail any more."""
    chosen, urgent, ready_s, settled = -1, np.inf, np.inf, True
    for i in range(len(view.profile)):
        due = course.earliest_s[i]
        if course.head[i] >= 0:
            settled = False
            due = min(due, view.deadline_s[course.head[i]])
        settled = settled and due - clock >= round_s
        if due < np.inf and view.ready_s[i] > clock:
            ready_s = min(ready_s, view.ready_s[i])
        elif due < urgent:
            chosen, urgent = i, due
    return chosen, ready_s, settled


@_lean
def _to_prefill(view: NodeView, course: Course, i: int) -> int:
    """What the iteration of an instance prefills; -1: it decodes, as a running request is the more urgent."""
    r = course.head[i]
    return r if r >= 0 and view.deadline_s[r] < course.earliest_s[i] else -1


@_lean
def _iteration_s(view: NodeView, course: Course, times: Times, i: int, r: int) -> float:
    """How long an iteration lasts, with the overestimate."""
    if r >= 0:
        step_s = prefill_time(times.lengths, times.prefill_s, view.profile[i], view.length[r])
    else:
        step_s = _decode_s(view, times, i, course.batch[i], course.tokens[i])
    return times.longer * step_s


@_lean
def _end_prefill(view: NodeView, course: Course, times: Times, r: int, clock: float) -> Case:
    """A prompt is prefilled: cases 1 and 2, or the request runs."""
    if view.now_s <= view.deadline_s[r] < clock:
        return Case.OWN_PREFILL_LATE if r == len(view.instance) - 1 else Case.OTHER_LATE
    course.waits[r] = False
    _find_head(view, course, view.instance[r])
    _join(view, course, r, view.length[r] + 1.0, view.deadline_s[r] + times.tpot_slo_s)
    return Case.PASSED


@_lean
def _end_decode(course: Course, times: Times, i: int, clock: float) -> Case:
    """Every running request of an instance has a token more: case 2, or their next ones are due later."""
    if course.in_time_s[i] < clock:
        return Case.OTHER_LATE
    course.tokens[i] += course.batch[i]
    course.earliest_s[i] += times.tpot_slo_s
    course.in_time_s[i] += times.tpot_slo_s
    return Case.PASSED
