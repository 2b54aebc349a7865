"""A trace that comes in pieces is served as one that comes whole."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.streaming import run_stream
from serving_gym.envs.workload.schema import Workload

SLOS = (SLO(0.2, 0.02), SLO(2.0, 0.02))
SPEC = FleetSpec(
    (GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=32), 3),), order="priority", engine=""
)


def load(requests: int = 600) -> Workload:
    """Two classes with priorities of their own."""
    random = np.random.default_rng(2)
    class_id = random.integers(0, 2, requests)
    return Workload(
        arrival_s=np.cumsum(random.exponential(0.02, requests)),
        input_tokens=random.integers(10, 2000, requests),
        output_tokens=random.integers(1, 200, requests),
        priority=class_id,
        class_id=class_id,
        classes=("fast", "slow"),
    )


@pytest.mark.parametrize("size", [1, 7, 100, 599, 10_000])
def test_pieces_give_the_same_latencies(size: int) -> None:
    """Whatever the size of the pieces; figures are those of the requests that came whole."""
    workload = load()
    whole = FleetSimulator(SPEC, SLOS)
    whole.reset(workload)
    whole.run_to_completion()
    records = whole.results()
    pieces = (workload.rows(first, first + size) for first in range(0, len(workload), size))
    simulator = FleetSimulator(SPEC, SLOS)
    summary = run_stream(simulator, pieces, priorities=(0, 1)).summary()
    assert summary["requests"] == len(workload)
    for name, values in (("ttft", records.ttft_s), ("e2e", records.e2e_s)):
        expected = np.percentile(values, [50, 90, 99], method="inverted_cdf")
        shown = [summary[f"{name}_p{p}_s"] for p in (50, 90, 99)]
        np.testing.assert_allclose(shown, expected, rtol=1e-6)
    met = [
        records.ttft_s[row] <= SLOS[c].ttft_s and not records.tpot_s[row] > SLOS[c].tpot_s
        for row, c in enumerate(workload.class_id)
    ]
    assert summary["slo_attainment"] == pytest.approx(np.mean(met))


def test_requests_that_do_not_end_count_as_infinite() -> None:
    """They arrived, so they are in every figure."""
    tally = run_stream(FleetSimulator(SPEC, SLOS), iter([load()]), settle_s=0.0)
    summary = tally.summary()
    assert summary["requests"] == 600
    assert summary["e2e_p99_s"] == np.inf
    assert tally.summary(endpoint=0) == summary
    assert tally.summary(endpoint=1)["requests"] == 0


def test_priorities_of_later_pieces_must_be_known() -> None:
    """A level means the same priority throughout."""
    first, second = load().rows(0, 300), load().rows(300, 600)
    strange = Workload(second.arrival_s, second.input_tokens, second.output_tokens, priority=np.full(300, 9),
                       class_id=second.class_id, classes=second.classes)  # fmt: skip
    with pytest.raises(ValueError, match="priority"):
        run_stream(FleetSimulator(SPEC, SLOS), iter([first, strange]))


def test_pieces_cannot_overlap() -> None:
    """Requests are appended when all earlier ones have arrived."""
    simulator = FleetSimulator(SPEC, SLOS)
    simulator.reset(load().rows(0, 300))
    with pytest.raises(ValueError, match="appended"):
        simulator.append(load().rows(300, 600))


def test_a_stream_has_no_records_of_its_own() -> None:
    """Its workload is the last piece alone."""
    simulator = FleetSimulator(SPEC, SLOS)
    run_stream(simulator, iter([load().rows(0, 300), load().rows(300, 600)]), priorities=(0, 1))
    with pytest.raises(ValueError, match="drain_log"):
        simulator.results()
