"""Asynchronous scheduling by hand: an iteration takes 10 ps, and is put together while the one before it runs."""

from __future__ import annotations

import pytest

from serving_gym.calibration.profile import load_profile
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.fleet import FleetSpec, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.cluster import build_cluster
from serving_gym.envs.simulator.fleet.build import build_fleet
from serving_gym.envs.simulator.scheduling import schedules_async
from tests.simulator.oracle import Kind, Settings
from tests.simulator.twins import Case, Kernel, Row, Slot

SLOS = (SLO(ttft_s=1.0, tpot_s=1.0),)
PROFILE = "llama-3.1-8b_h100_vllm-0.24"


def served(
    *rows: tuple[int, int, int], asynchronous: bool, blocks: int = 100, seqs: int = 4
) -> list[tuple[int, int]]:
    """First token and end of each request, ps; rows are arrival, prompt and output, blocks hold one token."""
    kind = Kind([10] * 101, [10] * 101, 0, 0, 0, block_size=1, max_num_seqs=seqs, max_batched_tokens=100)
    settings = Settings(router="jsq", order="fcfs", async_scheduling=asynchronous)
    load = tuple(Row(at, prompt, output, output) for at, prompt, output in rows)
    kernel = Kernel(Case((kind,), (Slot(0, blocks),), load, settings))
    kernel.advance(10_000)
    found = kernel.requests()
    return [(int(found[i]["first_token_ps"]), int(found[i]["finish_ps"])) for i in range(len(rows))]


def test_an_arrival_waits_for_the_iteration_in_flight_and_the_next() -> None:
    rows = (0, 5, 20), (35, 5, 1)  # the second comes while the fourth iteration runs, from 30 to 40
    assert served(*rows, asynchronous=False) == [(10, 200), (50, 50)]
    assert served(*rows, asynchronous=True) == [(10, 200), (60, 60)]


def test_an_idle_engine_begins_at_once() -> None:
    rows = (0, 5, 2), (500, 5, 2), (500, 5, 2)
    assert served(*rows, asynchronous=True) == [(10, 20), (510, 520), (510, 520)]


def test_where_nothing_could_be_put_together_ahead_all_is_known() -> None:
    # The first is over with the iteration during which the second comes: there is nothing to do before that ends.
    assert served((0, 5, 1), (5, 5, 1), asynchronous=True) == [(10, 10), (20, 20)]
    assert served((0, 5, 2), (5, 5, 1), asynchronous=True) == [(10, 20), (30, 30)]


@pytest.mark.parametrize("short", ["places", "blocks"])
def test_places_and_blocks_are_handed_on_an_iteration_later(short: str) -> None:
    """The third request has room only when the first is over, which the iteration after that does not know yet."""
    rows, room = ((0, 4, 2), (0, 1, 5), (0, 4, 1)), {"seqs": 2} if short == "places" else {"blocks": 8}
    assert served(*rows, asynchronous=False, **room)[2] == (30, 30)
    assert served(*rows, asynchronous=True, **room)[2] == (40, 40)


def test_where_nobody_else_runs_they_are_handed_on_at_once() -> None:
    rows = (0, 2, 3), (0, 2, 2)
    assert served(*rows, asynchronous=True, seqs=1) == [(10, 30), (40, 50)]


def test_none_means_as_the_profile_was_measured() -> None:
    spec = ClusterSpec(num_gpus=1, order="fcfs", profile=PROFILE, engine="")
    assert build_cluster(spec, SLOS).tables.kinds["async_scheduling"].all()
    off = ClusterSpec(num_gpus=1, order="fcfs", profile=PROFILE, async_scheduling=False, engine="")
    assert not build_cluster(off, SLOS).tables.kinds["async_scheduling"].any()
    published = ClusterSpec(model="llama-3.1-8b", gpu="H100", num_gpus=1, order="fcfs", engine="")
    assert not build_cluster(published, SLOS).tables.kinds["async_scheduling"].any()


def test_each_replica_of_a_fleet_schedules_as_its_profile_says() -> None:
    measured = ReplicaSpec("llama-3.1-8b", "H100", profile=PROFILE)
    groups = (GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 1), GroupSpec(measured, 1))
    kinds = build_fleet(FleetSpec(groups, engine=""), SLOS).tables.kinds["async_scheduling"]
    assert kinds.tolist() == [0, 1]
    assert (
        build_fleet(FleetSpec(groups, async_scheduling=True, engine=""), SLOS)
        .tables.kinds["async_scheduling"]
        .all()
    )


def test_an_order_that_is_none_of_vllms() -> None:
    with pytest.raises(ValueError, match="order=dpa needs async_scheduling=false"):
        schedules_async(True, "dpa", load_profile("llama-3.1-8b", "H100"))
