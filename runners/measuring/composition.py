"""From counts in the log to what each iteration computed: decode contexts and query-key pairs of prefill.

A load is known to the last token and vLLM's queue is first come, first served, so the counts leave one story only:
prompts are prefilled in the order sent, a request decodes from the iteration after the one that ended its prompt, and
leaves with its last token. If the counts contradict this (a preemption, a request of another client, speculative
tokens) the load is discarded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serving_gym.calibration.latency import attention_pairs
from serving_gym.runners.measuring.drive import Sent
from serving_gym.runners.measuring.log import Iteration

# An engine that could have stood idle before an iteration did so if the distance of the lines says much more than the
# wait for the model.
_IDLE_FACTOR, _IDLE_S = 2.0, 0.002


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration with all that its time depends on.

    Attributes:
        decoding: Requests decoded.
        context_tokens: Their context together, tokens.
        prompt_tokens: Tokens prefilled.
        pairs: Query-key pairs of the prefill.
        seconds: How long it took.
    """

    decoding: int
    context_tokens: int
    prompt_tokens: int
    pairs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Story:
    """What the lines say happened to the requests of a load.

    Attributes:
        steps: One for each line; where the engine stood idle before, so that the length is not known, `seconds` is NaN.
        prompts: Of each request, places in `steps` of the first and the last iteration that computed its prompt.
    """

    steps: list[Step]
    prompts: list[tuple[int, int]]


@dataclass(slots=True)
class _Request:
    prompt: int
    output: int
    prefilled: int = 0
    generated: int = 0
    first: int = -1
    last: int = -1


class ContradictionError(ValueError):
    """The log does not match the load that was sent.

    Attributes:
        after: Lines that did, before the one that contradicts.
    """

    def __init__(self, message: str, after: int = 0) -> None:
        super().__init__(message)
        self.after = after


def steps_of(sent: Sequence[Sent], iterations: Sequence[Iteration]) -> list[Step]:
    """Iterations of one load; where the engine stood idle before, so that the length is not known, `seconds` is NaN.

    Args:
        sent: requests of the load, in the order sent.
        iterations: lines of the log from an idle engine to the next.

    Raises:
        ContradictionError: the counts are not those of the load.
    """
    steps = story_of(sent, iterations).steps
    for extra in iterations[len(steps) :]:
        if extra.prompts or extra.decoding:
            raise ContradictionError(f"iteration {extra.index} comes after the end of the load")
    return steps


def story_of(sent: Sequence[Sent], iterations: Iterable[Iteration]) -> Story:
    """What happened to the requests; lines after the last token of the last one are not looked at.

    Args:
        sent: requests of the load, in the order sent.
        iterations: lines of the log, the first of which found the engine idle.

    Raises:
        ContradictionError: the counts are not those of the load, or the lines end before it does.
    """
    requests = [_Request(request.prompt, request.output) for request in sent]
    prefilling, decoding = deque(requests), list[_Request]()
    steps: list[Step] = []
    before_s, always_busy = float("nan"), False
    for iteration in iterations:
        if not prefilling and not decoding:
            break
        chunks, whole = _prefill(prefilling, iteration, len(steps))
        if iteration.again:
            raise ContradictionError(
                f"iteration {iteration.index}: {iteration.again} tokens more than the one each of {iteration.decoding} "
                "decoding, by speculation or a preemption",
                len(steps),
            )
        if len(decoding) != iteration.decoding or len(chunks) != iteration.prompts:
            raise ContradictionError(
                f"iteration {iteration.index}: {iteration.decoding} decoding and {iteration.prompts} prefilling where "
                f"{len(decoding)} and {len(chunks)} were to be",
                len(steps),
            )
        context = sum(request.prompt + request.generated for request in decoding)
        seconds = iteration.stamp_s - before_s
        known = always_busy or seconds < _IDLE_FACTOR * iteration.elapsed_s + _IDLE_S
        steps.append(
            Step(
                len(decoding),
                context,
                iteration.prompt_tokens,
                attention_pairs(chunks),
                seconds if known else float("nan"),
            )
        )
        decoding += whole  # a prompt that is whole has brought its first token
        for request in decoding:
            request.generated += 1
        decoding = [request for request in decoding if request.generated < request.output]
        before_s = iteration.stamp_s
        always_busy = bool(decoding) or (bool(prefilling) and prefilling[0].prefilled > 0)
    if prefilling or decoding:
        raise ContradictionError("the log ends before the load does", len(steps))
    return Story(steps, [(request.first, request.last) for request in requests])


def _prefill(
    prefilling: deque[_Request], iteration: Iteration, place: int
) -> tuple[list[tuple[int, int]], list[_Request]]:
    """Deals the prompt tokens of the iteration at `place` out in order; takes prompts that are whole from the queue.

    Returns:
        (start, length) of each chunk, and whose prompts are whole.
    """
    left, chunks, whole = iteration.prompt_tokens, [], []
    while left and prefilling:
        request = prefilling[0]
        length = min(request.prompt - request.prefilled, left)
        chunks.append((request.prefilled, length))
        request.first = place if request.first < 0 else request.first
        request.last = place
        request.prefilled += length
        left -= length
        if request.prefilled == request.prompt:
            whole.append(prefilling.popleft())
    if left:
        raise ContradictionError(
            f"iteration {iteration.index}: {left} prompt tokens of somebody else's", place
        )
    return chunks, whole
