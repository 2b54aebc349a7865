"""What happens in a trace: proof that the workloads are hard enough to tell schedulers apart."""

from __future__ import annotations

from collections import Counter

from tests.vllm.replay import Step
from tests.vllm.scenarios import Scenario

# What 500 workloads must show at least once a workload on average, without and with prefix caching.
COMMON = (
    "chunks",
    "preemptions",
    "decoding preempted",
    "prefilling preempted",
    "resumed",
    "budget exhausted",
    "batch full",
    "head does not fit",
    "cut by threshold",
)
WITH_PREFIXES = ("hits", "evictions", "hits of resumed", "hits cut short of the last token")
# Rarer by nature: at least once in fifty workloads.
RARE = (
    "waits unchunked",
    "preempted out of order",
    "stands still",
    "aborted waiting",
    "aborted prefilling",
    "aborted decoding",
    "aborted in flight",
)


class _Reader:
    """Reads a trace step by step, counting."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.settings = scenario, scenario.settings
        self.count: Counter[str] = Counter()
        self.known = [request.num_prompt_tokens for request in scenario.requests]
        self.computed = [0] * len(scenario.requests)
        self.seen: set[int] = set()  # have been in the batch
        self.running: list[int] = []
        self.gone: set[int] = set()

    def read(self, step: Step) -> None:
        self._aborts(step, during=False)
        self._preemptions(step)
        self._scheduled(step)
        self._refusals(step)
        self._aborts(step, during=True)
        self.running = step["ended"]["running"]
        self.gone.update(step["finished"])
        self.count["finished"] += len(step["finished"])
        self.count["evictions"] += step["evictions"]
        self.count["steps"] += 1

    def _aborts(self, step: Step, during: bool) -> None:
        for abort in self.scenario.aborts:
            number = abort.request
            if (abort.step, abort.during) != (step["step"], during) or number in self.gone:
                continue
            self.gone.add(number)
            if number not in (step["begun"]["running"] if during else self.running):
                self.count["aborted waiting"] += 1
            elif self.computed[number] < self.known[number] - 1:
                self.count["aborted prefilling"] += 1
            else:
                self.count["aborted decoding"] += 1
            self.count["aborted in flight"] += during and number in {row[0] for row in step["scheduled"]}

    def _preemptions(self, step: Step) -> None:
        victims = {number for number, _ in step["preempted"]}
        kept = [number for number in self.running if number in step["begun"]["running"]]
        for number, times in step["preempted"]:
            self.count["preemptions"] += times
            decoding = self.computed[number] >= self.known[number] - 1
            self.count["decoding preempted" if decoding else "prefilling preempted"] += times
            self.computed[number] = 0
        if victims and self.running[: len(kept)] != kept:
            self.count["preempted out of order"] += 1

    def _scheduled(self, step: Step) -> None:
        for number, start, tokens in step["scheduled"]:
            if number not in self.running or number in {row[0] for row in step["preempted"]}:
                self._admitted(number, start)
            end = self.computed[number] = start + tokens
            if end < self.known[number]:
                self.count["chunks"] += 1
                if tokens == self.settings.long_prefill_token_threshold:
                    self.count["cut by threshold"] += 1
            else:
                self.known[number] += 1

    def _admitted(self, number: int, start: int) -> None:
        again = number in self.seen
        self.seen.add(number)
        self.count["resumed"] += again
        self.count["hits"] += start > 0
        self.count["hit tokens"] += start
        self.count["hits of resumed"] += again and start > 0
        block = self.settings.block_size
        self.count["hits cut short of the last token"] += start > 0 and start + block == self.known[number]

    def _refusals(self, step: Step) -> None:
        begun, total = step["begun"], sum(row[2] for row in step["scheduled"])
        full = total >= self.settings.max_num_batched_tokens
        crowded = len(begun["running"]) >= self.settings.max_num_seqs
        self.count["stands still"] += len(begun["running"]) - len(step["scheduled"])
        if begun["waiting"] and not step["preempted"]:
            self.count["budget exhausted"] += full
            self.count["batch full"] += crowded and not full
            self.count["head does not fit"] += not crowded and not full
            left = self.settings.max_num_batched_tokens - total
            long = not self.settings.chunked_prefill and self.known[begun["waiting"][0]] > left
            self.count["waits unchunked"] += long and not crowded and not full


def coverage(scenario: Scenario, trace: list[Step]) -> Counter[str]:
    """How often each thing of note happens in a trace."""
    reader = _Reader(scenario)
    for step in trace:
        reader.read(step)
    reader.count["workloads"] += 1
    reader.count["requests"] += len(scenario.requests)
    return reader.count


def missing(total: Counter[str], prefix_caching: bool) -> list[str]:
    """What happens too seldom for a comparison to mean much."""
    workloads = total["workloads"]
    frequent = COMMON + (WITH_PREFIXES if prefix_caching else ())
    return [name for name in frequent if total[name] < workloads] + [
        name for name in RARE if 50 * total[name] < workloads
    ]
