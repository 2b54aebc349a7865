import numpy as np
import pytest

from serving_gym.baselines.llm_mesh.kv_scaling import compromise, recommended, scale_down_to, scale_up_to
from serving_gym.baselines.llm_mesh.memory_demand import OutputLengths
from serving_gym.baselines.llm_mesh.memory_orchestration import MemoryOrchestrator, Verdict


def test_the_running_mean_of_a_model_then_of_all_then_the_given_one():
    lengths = OutputLengths(initial_tokens=200.0)
    assert lengths.mean(0) == 200.0
    lengths.note(0, 100)
    lengths.note(0, 300)
    lengths.note(1, 50)
    assert lengths.mean(0) == 200.0
    assert lengths.mean(1) == 50.0
    assert lengths.mean(2) == 150.0
    with pytest.raises(ValueError, match="initial_tokens"):
        OutputLengths(0.0)


def test_early_up():
    # w = 20 %: 10 does for a demand of 10; 11 are scaled to 13.2 at once.
    assert scale_up_to(10.0, 10.0, 0.2) is None
    assert scale_up_to(10.0, 11.0, 0.2) == pytest.approx(13.2)


def test_lazy_down():
    # M_recommend = 12, by the watermark again 14.4: only a cache beyond that shrinks, to 12.
    assert recommended(10.0, 0.2) == pytest.approx(12.0)
    assert scale_down_to(14.3, 10.0, 0.2) is None
    assert scale_down_to(14.5, 10.0, 0.2) == pytest.approx(12.0)


def test_the_compromise():
    for free, expected in ((13.3, 13.2), (12.0, 11.0), (10.5, None)):
        found = compromise(10.0, 11.0, 0.2, lambda size, free=free: size <= free)
        assert found == (None if expected is None else pytest.approx(expected))
    assert compromise(10.0, 9.0, 0.2, lambda size: False) == 10.0  # what there is does
    assert compromise(10.0, 11.0, 0.2, lambda size: size <= 12.0, allowed=False) is None


def test_figure_9_a_scale_up_after_a_scale_down_waits_in_the_station():
    node = MemoryOrchestrator(100.0)
    assert node.demand(1, 60.0) is Verdict.EXECUTE
    assert node.demand(2, 40.0) is Verdict.EXECUTE
    node.complete(1)
    node.complete(2)
    # Scale-down: out of the budget at once, still held.
    assert node.demand(1, 30.0) is Verdict.EXECUTE
    assert node.budget_used == 70.0
    assert node.tracked == 100.0
    # Scale-up: within the budget, but an OOM if it began now.
    assert node.demand(2, 70.0) is Verdict.RESERVED
    assert node.budget_used == 100.0
    assert node.tracked == 100.0
    # Beyond the budget: rejected, and nothing changes.
    assert node.demand(3, 1.0) is Verdict.REJECTED
    assert node.budget_used == 100.0
    assert node.complete(1) == [2]
    assert node.tracked == 100.0
    assert node.complete(2) == []
    assert node.station == []


def test_the_station_is_left_out_of_order():
    node = MemoryOrchestrator(100.0)
    for instance, size in ((1, 50.0), (2, 30.0), (3, 20.0)):
        node.demand(instance, size)
        node.complete(instance)
    node.demand(1, 20.0)
    node.demand(3, 10.0)
    assert node.demand(2, 60.0) is Verdict.RESERVED  # needs 30 that instance 1 gives back
    assert node.demand(4, 10.0) is Verdict.RESERVED  # needs 10
    assert node.complete(3) == [4]  # 10 came back: not enough for 2, which issued first
    assert node.complete(1) == [2]
    assert node.tracked <= node.capacity


def test_operations_of_one_instance_execute_one_after_another():
    node = MemoryOrchestrator(100.0)
    node.demand(1, 50.0)
    assert node.demand(1, 70.0) is Verdict.RESERVED  # it is being loaded
    assert node.target(1) == 70.0
    assert node.complete(1) == [1]
    assert node.tracked == 70.0
    assert node.demand(1, 0.0) is Verdict.RESERVED
    assert node.complete(1) == [1]
    assert node.complete(1) == []
    assert node.allocations == {}
    with pytest.raises(KeyError):
        node.complete(1)


def test_a_demand_that_is_taken_back_needs_no_operation():
    node = MemoryOrchestrator(100.0)
    node.demand(1, 100.0)
    node.complete(1)
    node.demand(1, 50.0)
    assert node.demand(2, 50.0) is Verdict.RESERVED
    assert node.demand(2, 0.0) is Verdict.UNCHANGED
    assert node.station == []
    assert node.complete(1) == []
    with pytest.raises(ValueError, match="no operation"):
        node.complete(1)


def test_random_operations_never_hold_more_than_there_is():
    rng = np.random.default_rng(1)
    node, reserved = MemoryOrchestrator(100.0), 0
    for _ in range(3000):
        underway = [i for i, own in node.allocations.items() if own.executing is not None]
        if underway and rng.random() < 0.5:
            node.complete(int(rng.choice(underway)))
        else:
            reserved += node.demand(int(rng.integers(5)), float(rng.integers(0, 60))) is Verdict.RESERVED
        assert node.budget_used <= 100.0
        assert node.tracked <= 100.0
        assert all(node.allocations[i].executing is None for i in node.station)
    assert reserved > 100
    while underway := [i for i, own in node.allocations.items() if own.executing is not None]:
        node.complete(underway[0])
    assert node.station == []  # what the budget allowed has been done
