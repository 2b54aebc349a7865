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
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from baselines.llm_mesh.quantification import Quantification, decode_time, prefill_time

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

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

    def with_instance(self, profile: int, ready_s: float) -> NodeView:
        """The view with one more instance."""
        return self._replace(
            profile=np.append(self.profile, profile), ready_s=np.append(self.ready_s, ready_s)
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
    return simulate(
        *view,
        instance,
        deadline_s,
        float(length),
        quantification.batches,
        quantification.lengths,
        quantification.prefill_s,
        quantification.decode_s,
        tpot_slo_s,
        1.0 + overestimate,
        max_iterations,
    )


@njit(cache=True)
def simulate(
    now_s: float,
    busy_instance: int,
    busy_until_s: float,
    profile: IntArray,
    ready_s: FloatArray,
    present_instance: IntArray,
    present_phase: IntArray,
    present_deadline_s: FloatArray,
    present_length: FloatArray,
    new_instance: int,
    new_deadline_s: float,
    new_length: float,
    batches: FloatArray,
    lengths: FloatArray,
    prefill_s: FloatArray,
    decode_s: FloatArray,
    tpot_slo_s: float,
    longer: float,
    max_iterations: int,
) -> Case:
    """`shadow_validation` on plain arrays; iterations last `longer` times what is quantified."""
    new = len(present_instance)
    instance = np.empty(new + 1, np.int64)
    phase = np.empty(new + 1, np.int64)
    deadline_s = np.empty(new + 1)
    length = np.empty(new + 1)
    for r in range(new):
        instance[r], phase[r] = present_instance[r], present_phase[r]
        deadline_s[r], length[r] = present_deadline_s[r], present_length[r]
    instance[new], phase[new] = new_instance, np.int64(Phase.WAITING)
    deadline_s[new], length[new] = new_deadline_s, new_length

    num_instances = len(profile)
    batch = np.zeros(num_instances)
    tokens = np.zeros(num_instances)
    joined = np.zeros(num_instances)  # batch when every prompt is prefilled, and its tokens
    joined_tokens = np.zeros(num_instances)
    in_time = np.full(num_instances, np.inf)  # earliest deadline of running requests that are not late
    running = np.full(num_instances, np.inf)  # earliest of all that run
    head = np.full(num_instances, -1)  # most urgent request that waits
    waits = np.zeros(len(instance), np.bool_)
    prefilled_now = -1
    for r in range(len(instance)):
        i = instance[r]
        joined[i] += 1.0
        joined_tokens[i] += length[r]
        if phase[r] != Phase.RUNNING:
            waits[r] = True
            if phase[r] == Phase.PREFILLING:
                prefilled_now = r
            if head[i] < 0 or deadline_s[r] < deadline_s[head[i]]:
                head[i] = r
        else:
            batch[i] += 1.0
            tokens[i] += length[r]
            running[i] = min(running[i], deadline_s[r])
            if deadline_s[r] >= now_s:
                in_time[i] = min(in_time[i], deadline_s[r])

    round_s = 0.0
    for i in range(num_instances):
        if joined[i] > 0.0:
            mean = joined_tokens[i] / joined[i]
            round_s += longer * decode_time(batches, lengths, decode_s, profile[i], joined[i], mean)
    if round_s > tpot_slo_s:
        return Case.DECODE_ROUND_TOO_LONG

    clock = now_s
    for iteration in range(max_iterations):
        if iteration == 0 and busy_instance >= 0:
            chosen, r = busy_instance, prefilled_now
            clock = max(busy_until_s, now_s)
        else:
            chosen, urgent, ready_next, settled = -1, np.inf, np.inf, True
            for i in range(num_instances):
                due = running[i]
                if head[i] >= 0:
                    settled = False
                    due = min(due, deadline_s[head[i]])
                settled = settled and due - clock >= round_s
                if due < np.inf and ready_s[i] > clock:
                    ready_next = min(ready_next, ready_s[i])
                elif due < urgent:
                    chosen, urgent = i, due
            if settled:
                return Case.PASSED
            if chosen < 0:
                clock = ready_next
                continue
            r = head[chosen]
            if r >= 0 and running[chosen] <= deadline_s[r]:
                r = -1
            if r >= 0:
                step_s = prefill_time(lengths, prefill_s, profile[chosen], length[r])
            else:
                mean = tokens[chosen] / batch[chosen]
                step_s = decode_time(batches, lengths, decode_s, profile[chosen], batch[chosen], mean)
            clock += longer * step_s
        if r >= 0:
            if now_s <= deadline_s[r] < clock:
                return Case.OWN_PREFILL_LATE if r == new else Case.OTHER_LATE
            waits[r] = False
            head[chosen] = -1
            for other in range(len(instance)):
                first = head[chosen] < 0 or deadline_s[other] < deadline_s[head[chosen]]
                if waits[other] and instance[other] == chosen and first:
                    head[chosen] = other
            batch[chosen] += 1.0
            tokens[chosen] += length[r] + 1.0
            running[chosen] = min(running[chosen], deadline_s[r] + tpot_slo_s)
            if deadline_s[r] >= now_s:
                in_time[chosen] = min(in_time[chosen], deadline_s[r] + tpot_slo_s)
        else:
            if in_time[chosen] < clock:
                return Case.OTHER_LATE
            tokens[chosen] += batch[chosen]
            running[chosen] += tpot_slo_s
            in_time[chosen] += tpot_slo_s
    return Case.PASSED
