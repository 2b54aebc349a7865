"""Kernel and oracle schedule as vLLM's V1 scheduler does, step by step: against vLLM itself, and a recording."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.vllm import recording
from tests.vllm.compare import ASYNC, SUBJECTS, Subject, compare, first_difference, seldom
from tests.vllm.installation import VARIABLE, vllm_traces
from tests.vllm.mutations import MUTATIONS, Mutation
from tests.vllm.replay import Step
from tests.vllm.scenarios import Scenario, both_ways

Pairs = list[tuple[Scenario, list[Step]]]


@pytest.mark.vllm
@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no Python with vLLM")
def test_500_random_workloads_are_scheduled_identically_synchronously_and_asynchronously() -> None:
    scenarios = both_ways(500)
    _, traces = vllm_traces(Path(os.environ[VARIABLE]), scenarios)
    tallies = compare(zip(scenarios, traces, strict=True))
    differences = [difference for tally in tallies.values() for difference in tally.differences]
    assert not differences, str(differences[0])
    assert seldom(tallies) == []


@pytest.fixture(scope="module")
def recorded() -> Pairs:
    return recording.read()[1]


def test_the_recording_shows_what_matters(recorded: Pairs) -> None:
    tallies = compare(recorded, subjects=())
    workloads = {kind: tally.counts["workloads"] for kind, tally in tallies.items()}
    asynchronous = sum(count for kind, count in workloads.items() if ASYNC in kind)
    assert asynchronous >= recording.ASYNC_WORKLOADS
    assert sum(workloads.values()) - asynchronous >= recording.WORKLOADS
    assert seldom(tallies) == []


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_the_recording_is_reproduced(recorded: Pairs, subject: Subject) -> None:
    for scenario, trace in recorded:
        difference = first_difference(subject, scenario, trace)
        assert difference is None, str(difference)


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_scheduler_that_differs_is_told_apart(recorded: Pairs, mutation: Mutation) -> None:
    assert any(mutation.told_apart(scenario, trace) for scenario, trace in recorded)
