"""Compares traces step by step and keeps count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.vllm import kernel_driver, oracle_driver
from tests.vllm.coverage import coverage, missing
from tests.vllm.replay import Step
from tests.vllm.scenarios import Scenario

Tracer = Callable[[Scenario], list[Step]]

_STATE = ("running", "waiting", "free_blocks")
_STEP = ("step", "scheduled", "preempted", "finished")
# What is compared, by dotted path; a trace that lacks one of these differs.
KERNEL_FIELDS = (*_STEP, *(f"{when}.{name}" for when in ("begun", "ended") for name in _STATE))
ORACLE_FIELDS = (
    *KERNEL_FIELDS,
    "evictions",
    *(f"{when}.{name}" for when in ("begun", "ended") for name in ("cached_hashes", "block_tables")),
)


@dataclass(frozen=True)
class Subject:
    """One that must schedule as vLLM does."""

    name: str
    trace: Tracer
    fields: tuple[str, ...]


KERNEL = Subject("kernel", kernel_driver.trace, KERNEL_FIELDS)
ORACLE = Subject("oracle", oracle_driver.trace, ORACLE_FIELDS)
SUBJECTS = (KERNEL, ORACLE)
ASYNC = "async"  # in the names of kinds of workloads: asynchronously scheduled
PREFIXES = "prefixes"  # in the names of kinds of workloads: with prefix caching


@dataclass(frozen=True)
class Difference:
    """The first step in which a subject does something else than vLLM."""

    subject: str
    scenario: Scenario
    step: int
    fields: dict[str, tuple[object, object]]  # vLLM's value and the subject's
    before: Step | None  # vLLM's step before
    vllm: Step | None
    ours: Step | None

    def __str__(self) -> str:
        lines = [
            f"{self.subject} differs from vLLM in scenario {self.scenario.seed} at step {self.step}",
            f"settings: {self.scenario.settings}",
        ]
        lines += [
            f"  {name}: vLLM {theirs}, {self.subject} {ours}" for name, (theirs, ours) in self.fields.items()
        ]
        lines += [
            f"{name}: {json.dumps(step)}"
            for name, step in (("before", self.before), ("vLLM", self.vllm), (self.subject, self.ours))
        ]
        return "\n".join(lines)


@dataclass
class Tally:
    """What has been compared so far, for workloads of one kind."""

    counts: Counter[str] = field(default_factory=Counter)
    identical: Counter[str] = field(default_factory=Counter)  # by subject
    differences: list[Difference] = field(default_factory=list)


def look_up(step: Step, path: str) -> object:
    """A field by its dotted path."""
    found: object = step
    for name in path.split("."):
        found = found[name] if isinstance(found, dict) and name in found else None
    return found


def first_difference(subject: Subject, scenario: Scenario, expected: list[Step]) -> Difference | None:
    """Runs a subject and compares it with vLLM's trace; None if they are equal."""
    ours = subject.trace(scenario)
    fields = [
        path
        for path in subject.fields
        if not (scenario.settings.async_scheduling and path.startswith("ended."))
    ]
    for i in range(max(len(expected), len(ours))):
        a = expected[i] if i < len(expected) else None
        b = ours[i] if i < len(ours) else None
        pairs = {path: (look_up(a or {}, path), look_up(b or {}, path)) for path in fields}
        unlike = {path: (x, y) for path, (x, y) in pairs.items() if x != y or x is None}
        if unlike:
            return Difference(subject.name, scenario, i, unlike, expected[i - 1] if i else None, a, b)
    return None


def compare(
    pairs: Iterable[tuple[Scenario, list[Step]]], subjects: tuple[Subject, ...] = SUBJECTS
) -> dict[str, Tally]:
    """Compares workload by workload; tallies by kind of workload."""
    tallies: dict[str, Tally] = {}
    for scenario, expected in pairs:
        tally = tallies.setdefault(kind_of(scenario), Tally())
        tally.counts += coverage(scenario, expected)
        for subject in subjects:
            difference = first_difference(subject, scenario, expected)
            if difference is None:
                tally.identical[subject.name] += 1
            else:
                tally.differences.append(difference)
    return tallies


def kind_of(scenario: Scenario) -> str:
    """Name of a workload's kind."""
    settings = scenario.settings
    mode = f"{settings.policy}, {ASYNC}" if settings.async_scheduling else settings.policy
    return f"{mode}, {PREFIXES}" if settings.prefix_caching else mode


def seldom(tallies: dict[str, Tally]) -> list[str]:
    """What happens too seldom in all workloads, without or with prefix caching, for a comparison to mean much."""
    found: list[str] = []
    for caching in (False, True):
        total: Counter[str] = Counter()
        for kind, tally in tallies.items():
            if kind.endswith(PREFIXES) == caching:
                total += tally.counts
        found += missing(total, caching)
    return sorted(set(found))
