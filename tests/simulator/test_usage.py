"""Energy and cost: between idle and peak, additive over time, ended by a stop, and the same in a fork."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_gym.calibration.power import POWER_LIMIT_W, power_of
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.commands import SetLayout, SwitchMode
from serving_gym.envs.interface.fleet import Crash, FleetSpec, GroupSpec, ReplicaSpec, SlowNode, Start, Stop
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.fleet.simulator import FleetSimulator
from serving_gym.envs.simulator.simulator import Simulator
from serving_gym.envs.workload.schema import Workload

SLOS = (SLO(1.0, 0.1),)
SPEC = FleetSpec(
    (
        GroupSpec(ReplicaSpec("llama-3.1-8b", "H100", max_num_seqs=16), 2, 3),
        GroupSpec(ReplicaSpec("llama-3.1-8b", "A100-80GB", tp_size=2, max_num_seqs=16), 1),
    ),
    start_fixed_s=0.5,
    engine="",
)
FAULTS = (Crash(1.7, 0), SlowNode(0.5, 3, 2.0, 2.0))
times = st.lists(st.floats(0.0, 12.0), max_size=6).map(sorted)


def load(seed: int, requests: int = 60) -> Workload:
    """Some seconds of requests."""
    random = np.random.default_rng(seed)
    return Workload(
        arrival_s=np.cumsum(random.exponential(0.05, requests)),
        input_tokens=random.integers(10, 900, requests),
        output_tokens=random.integers(1, 150, requests),
    )


def fleet(seed: int) -> FleetSimulator:
    simulator = FleetSimulator(SPEC, SLOS)
    simulator.reset(load(seed), FAULTS)
    return simulator


def act(simulator: FleetSimulator) -> None:
    """A start and a stop in the middle."""
    simulator.advance(2.0)
    simulator.apply(Start(2))
    simulator.apply(Stop(1))


@settings(max_examples=20)
@given(times, st.integers(0, 5))
def test_energy_is_bounded_grows_and_does_not_depend_on_how_time_is_sliced(slices, seed):
    whole, sliced = fleet(seed), fleet(seed)
    act(whole)
    whole.advance(15.0)
    before = np.zeros(4)
    acted = False
    for until_s in [*slices, 15.0]:
        if until_s >= 2.0 and not acted:
            acted = True
            act(sliced)
        sliced.advance(until_s)
        kwh, kept_s = sliced.usage().energy_kwh, sliced.gpu_seconds()
        assert (kwh >= before).all()
        before = kwh
        for place, group in enumerate(sliced.fleet.places):
            power = power_of(group.replica.gpu, group.replica.tp_size)
            low, high = (watts * kept_s[place] / 3.6e6 for watts in (power.idle_w, power.prefill_w))
            assert low - 1e-12 <= kwh[place] <= high + 1e-12 <= POWER_LIMIT_W["H100"] * 2
    fork = whole.fork()
    for simulator in (sliced, fork):
        for name in ("gpu_hours", "energy_kwh", "cost_usd"):
            np.testing.assert_array_equal(getattr(whole.usage(), name), getattr(simulator.usage(), name))
    whole.advance(20.0)
    fork.advance(20.0)
    np.testing.assert_array_equal(whole.usage().energy_kwh, fork.usage().energy_kwh)


def test_a_stop_ends_energy_and_cost():
    simulator = fleet(0)
    for place in (0, 1, 3):
        simulator.apply(Stop(place, drain=False))
    simulator.advance(1.0)
    assert simulator.usage().totals() == {"gpu_hours": 0.0, "energy_kwh": 0.0, "cost_usd": 0.0}
    simulator = fleet(0)
    simulator.advance(1.0)
    simulator.apply(Stop(1, drain=False))
    before = simulator.usage()
    simulator.advance(5.0)
    after = simulator.usage()
    for name in ("gpu_hours", "energy_kwh", "cost_usd"):
        changed = getattr(before, name) != getattr(after, name)
        assert changed.tolist() == [True, False, False, True]


def test_an_idle_replica_costs_its_price_and_its_idle_power():
    simulator = FleetSimulator(
        FleetSpec((GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 2),), engine=""), SLOS
    )
    simulator.reset(Workload(np.array([7200.0]), np.array([10]), np.array([1])))
    simulator.advance(3600.0)
    totals = simulator.usage().totals()
    assert totals == pytest.approx({"gpu_hours": 2.0, "energy_kwh": 2 * 0.0803, "cost_usd": 2 * 6.88})


def test_a_price_that_nobody_documents_is_not_invented():
    simulator = FleetSimulator(
        FleetSpec((GroupSpec(ReplicaSpec("llama-3.1-8b", "H200"), 1, 2),), engine=""), SLOS
    )
    simulator.reset(load(0))
    simulator.advance(1.0)
    cost = simulator.usage().cost_usd
    assert math.isnan(cost[0])
    assert cost[1] == 0.0, "an empty place costs nothing, whatever the price"


@given(times, st.integers(0, 3))
@settings(max_examples=10)
def test_a_node_keeps_its_gpus_throughout(slices, seed):
    """Merging and splitting moves work between engines that share GPUs; energy stays within the GPUs' bounds."""
    spec = ClusterSpec(model="llama-3.1-8b", gpu="H100", num_gpus=4, router="jsq", engine="")
    whole, sliced = (Simulator(spec, SLOS) for _ in range(2))
    for simulator in (whole, sliced):
        simulator.reset(load(seed))
        simulator.advance(1.0)
        simulator.apply(SetLayout((4,), SwitchMode.HARD))
    for until_s in slices:
        sliced.advance(1.0 + until_s)
    for simulator in (whole, sliced):
        simulator.advance(20.0)
    assert whole.usage().totals() == sliced.usage().totals()
    totals = whole.usage().totals()
    assert totals["gpu_hours"] == 4 * 20.0 / 3600
    assert 4 * 20 * 80.3 < totals["energy_kwh"] * 3.6e6 < 4 * 20 * 0.82 * 700
