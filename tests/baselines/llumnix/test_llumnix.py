import numpy as np
import pytest
import yaml

from serving_gym.baselines.llumnix.migration import pairs, request_to_move
from serving_gym.baselines.llumnix.policy import LlumnixConfig, LlumnixPolicy
from serving_gym.baselines.llumnix.virtual_usage import freeness, queue_order, usage_of
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.interface.fleet import Migrate, Underway
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.routing.state import Dispatch
from tests.baselines.preserve.states import in_flight, request, row, spec, state
from tests.paths import ROOT

CONFIG = ROOT / "configs" / "policy" / "llumnix.yaml"
NOBODY_HIGH = np.array([False])


def policy(num_places, classes=("chat",), models=None, **constants):
    made = LlumnixPolicy(LlumnixConfig(**constants))
    made.reset(spec(num_places, classes=classes, models=models), 0)
    return made


def usage(rows, num_places=1, capacity_tokens=1000, max_num_seqs=256, high=NOBODY_HIGH, by_priority=False):
    flying, ones = in_flight(rows), np.ones(num_places, np.int64)
    waiting = queue_order(flying, by_priority)
    return usage_of(flying, waiting, high, capacity_tokens * ones, 16 * ones, max_num_seqs * ones)


def test_the_config_holds_every_constant_and_its_default():
    params = yaml.safe_load(CONFIG.read_text())["params"]
    params["priority_classes"] = tuple(params["priority_classes"])
    assert params == vars(make_policy("llumnix").config)


def test_a_worked_example_of_virtual_usage():
    """1000 tokens: two running requests of 100 and 33 tokens (7 and 3 blocks of 16), one queued with 860.

    Physical 112 + 48 = 160, head of line 54 blocks = 864: V = 1024 and F = (1000 - 1024) / 3 = -8.
    """
    found = usage([row(0, 60, 50, 40), row(0, 30, 50, 3), row(0, 860, 10)])
    assert found.physical_tokens.tolist() == [160]
    assert found.batch_size.tolist() == [2]
    assert found.head_tokens.tolist() == [864]
    capacity, terminating = np.array([1000]), np.array([False])
    assert freeness(found, capacity, 1600.0, terminating).tolist() == [-8.0]
    # 96 tokens are a block less: it fits, is taken to be in prefill and the batch is three.
    found = usage([row(0, 60, 50, 36), row(0, 30, 50, 2), row(0, 832, 10)])
    assert found.physical_tokens.tolist() == [96 + 32 + 832]
    assert found.head_tokens.tolist() == [0]
    assert freeness(found, capacity, 1600.0, terminating).tolist() == [40 / 3]


def test_only_the_head_of_the_queue_counts_and_nobody_passes_it():
    rows = [
        row(0, 500, 9, 1),
        row(0, 600, 9, arrival_s=2.0),
        row(0, 700, 9, arrival_s=1.0),
        row(0, 16, 9, arrival_s=3.0),
    ]
    assert usage(rows).head_tokens.tolist() == [704]
    assert usage(rows).batch_size.tolist() == [1]
    assert usage(rows).physical_tokens.tolist() == [512]


def test_the_queue_has_the_engines_order():
    rows = [row(0, 500, 9, 1), row(0, 600, 9, arrival_s=2.0), row(0, 700, 9, arrival_s=1.0, priority=1)]
    assert usage(rows).head_tokens.tolist() == [704]
    assert usage(rows, by_priority=True).head_tokens.tolist() == [608]


def test_a_full_batch_admits_nobody():
    found = usage([row(0, 16, 9, 1), row(0, 16, 9)], max_num_seqs=1)
    assert found.batch_size.tolist() == [1]
    assert found.head_tokens.tolist() == [16]


def test_headroom_of_high_priority_keeps_the_target_however_many_there_are():
    high = np.array([True, False])
    rows = [row(0, 31, 9, 1, class_id=0), row(0, 31, 9, 1, class_id=0), row(0, 31, 9, 1, class_id=1)]
    found = usage(rows, high=high)
    assert found.high_priority.tolist() == [2]
    # 96 tokens are used and 1000 - 400 kept free: (1000 - 96 - 600) / 3
    assert freeness(found, np.array([1000]), 400.0, np.array([False])).tolist() == [304 / 3]
    # an instance smaller than the target has no headroom
    assert freeness(found, np.array([1000]), 1600.0, np.array([False])).tolist() == [904 / 3]
    # nor does a queued request have one
    queued = usage([row(0, 999, 9, 1, class_id=1), row(0, 100, 9, class_id=0)], high=high)
    assert freeness(queued, np.array([1000]), 400.0, np.array([False])).tolist() == [(1000 - 1008 - 112) / 2]


def test_idle_and_terminating_instances():
    found = usage([], num_places=2)
    capacity = np.array([1000, 1000])
    assert freeness(found, capacity, 1600.0, np.array([False, True])).tolist() == [np.inf, -np.inf]


def test_a_request_goes_to_the_freest_instance():
    rows = [row(0, 100, 9, 12), row(1, 300, 9, 20), row(2, 40, 9, 8), row(2, 40, 9, 8), row(2, 40, 9, 8)]
    # F: 1000 - 112 = 888; 680; (1000 - 144) / 3 = 285
    router = policy(3, migrate=False)
    assert router.act(None, state(3, rows)) == 0
    assert router.act(None, state(3, rows, can_take=[False, True, True])) == 1
    assert router.act(None, state(3, rows, can_take=[False, False, True])) == 2
    assert router.act(None, state(3, rows, can_take=[False] * 3)) is None
    assert router.act(None, state(3, rows[1:])) == 0  # idle: infinitely free


def test_instances_with_high_priority_requests_are_avoided():
    rows = [row(0, 100, 9, 12, class_id=0), row(1, 300, 9, 20, class_id=1)]
    classes = ("priority", "normal")
    assert policy(2, classes, priority_target_tokens=1000.0).act(None, state(2, rows)) == 0
    assert policy(2, classes, priority_target_tokens=400.0).act(None, state(2, rows)) == 1  # 288 against 680
    assert policy(2, ("a", "b"), priority_target_tokens=400.0).act(None, state(2, rows)) == 0


def test_the_least_free_is_paired_with_the_freest_within_an_endpoint():
    free = np.array([5.0, 900.0, 2.0, 500.0, np.inf, -np.inf, 100.0])
    sources, destinations = free < 10, free > 100
    together = np.zeros(7, np.int64)
    assert pairs(free, sources, destinations, together) == [(5, 4), (2, 1), (0, 3)]
    assert pairs(free, sources, destinations, np.array([0, 0, 1, 1, 1, 2, 2])) == [(0, 1), (2, 4)]
    assert pairs(free, sources, np.zeros(7, np.bool_), together) == []


def test_of_lower_priority_first_then_the_shorter():
    rows = in_flight(
        [
            row(0, 10, 9, 1, class_id=0, priority=5),
            row(0, 90, 9, 9, class_id=1, priority=2),
            row(0, 50, 9, 9, class_id=1, priority=1),
            row(0, 80, 9, 9, class_id=1, priority=2),
            row(0, 5, 9, class_id=1, priority=9),
            row(1, 5, 9, 1, class_id=1, priority=9),
        ]
    )
    high = np.array([True, False])
    assert request_to_move(rows, 0, 1000, high, {}) == 3
    assert request_to_move(rows, 0, 1000, high, {3: 0}) == 1
    assert request_to_move(rows, 0, 1000, high, {3: 0, 1: 0}) == 2
    assert request_to_move(rows, 0, 1000, high, {3: 0, 1: 0, 2: 0}) == 0  # of high priority: the last
    assert request_to_move(rows, 0, 60, high, {}) == 2  # what fits
    assert request_to_move(rows, 0, 10, high, {}) is None


CROWDED = [row(0, 300, 90, 20, index=7), row(0, 600, 90, 20, index=8), row(1, 100, 90, 12, index=9)]
MOVE_7 = Dispatch(1, commands=(Migrate(7, 1),))  # F of 0: (1000 - 320 - 624) / 2 = 28; of 1: 888


def test_an_instance_below_the_threshold_gives_requests_away():
    assert policy(2).act(None, state(2, CROWDED)) == MOVE_7
    assert policy(2, migrate=False).act(None, state(2, CROWDED)) == 1
    assert policy(2, migrate_out_iterations=28.0).act(None, state(2, CROWDED)) == 1
    assert policy(2, migrate_in_iterations=888.0).act(None, state(2, CROWDED)) == 1
    assert policy(2).act(None, state(2, CROWDED, can_take=[True, False])) == Dispatch(
        0, commands=MOVE_7.commands
    )
    assert policy(2).act(None, state(2, CROWDED, can_take=[False] * 2)) == Dispatch(
        None, commands=MOVE_7.commands
    )
    assert policy(2, models=("llama2-7b", "opt-13b")).act(None, state(2, CROWDED)) == 1


def test_defragmentation_makes_room_for_the_head_of_the_queue():
    # Two requests of 320 leave 360 tokens, which the queued one of 400 does not fit: F = (360 - 400) / 3 < 0.
    rows = [row(0, 300, 90, 20), row(0, 300, 90, 20), row(0, 400, 90), row(1, 500, 90, 12)]
    assert policy(2).act(None, state(2, rows)) == Dispatch(1, commands=(Migrate(0, 1),))
    assert policy(2).act(None, state(2, [*rows[:2], rows[3]])) == 1
    # not where it would not fit either
    assert policy(2).act(None, state(2, [*rows[:3], row(1, 700, 90, 12)])) == 1


def test_a_terminating_instance_gives_all_it_runs_away():
    rows = [row(0, 16, 90, 16, index=3), row(1, 100, 90, 12)]
    gauges = {0: {"status": EngineStatus.DRAINING}}
    busy = state(2, rows, gauges=gauges, can_take=[False, True])
    assert policy(2).act(None, busy) == Dispatch(1, commands=(Migrate(3, 1),))
    gauges = {0: {"status": EngineStatus.DOWN}}
    assert policy(2).act(None, state(2, rows, gauges=gauges, can_take=[False, True])) == 1


def test_rounds_are_a_period_apart():
    router = policy(2, period_s=1.0)
    assert router.act(None, state(2, CROWDED, now_s=10.0)) == MOVE_7
    assert router.act(None, state(2, CROWDED, now_s=10.9)) == 1
    assert router.act(None, state(2, CROWDED, now_s=11.0)) == MOVE_7  # it was refused: nothing is under way
    router.reset(router.spec, 0)
    assert router.act(None, state(2, CROWDED, now_s=10.0)) == MOVE_7


def test_a_source_moves_one_request_at_a_time():
    router = policy(2)
    underway = [Underway("migrating", 0, 10.0, None)]
    assert router.act(None, state(2, CROWDED, now_s=10.0)) == MOVE_7
    assert router.act(None, state(2, CROWDED, now_s=11.0, operations=underway)) == 1
    # It arrived, and its place is as crowded as it was: the next one goes, although another one is under way.
    rows = [row(0, 400, 90, 8, index=10), *CROWDED[1:], row(1, 300, 90, 21, index=7)]
    moved = state(2, rows, now_s=12.0, operations=underway)
    assert router.act(None, moved) == Dispatch(1, commands=(Migrate(10, 1),))


def test_the_end_of_an_episode():
    ended = state(2, CROWDED)
    object.__setattr__(ended, "request", None)
    assert policy(2).act(None, ended) is None


def test_can_take_is_respected_and_decisions_repeat_themselves():
    rng = np.random.default_rng(0)
    routers = [make_policy("llumnix") for _ in range(2)]
    for router in routers:
        router.reset(spec(6, capacity_tokens=4000), 3)
    migrations = 0
    for step in range(60):
        draws = rng.integers((0, 1, 1, 0), (6, 900, 400, 300), (40, 4)).tolist()
        rows = [row(*draw) for draw in draws]
        busy = state(6, rows, asked=request(6), can_take=rng.random(6) < 0.4, now_s=float(step))
        first, second = (router.act(None, busy) for router in routers)
        assert first == second
        if isinstance(first, Dispatch):
            migrations += len(first.commands)
            assert all(rows[move.request]["place"] != move.place for move in first.commands)
            first = first.place
        assert busy.can_take[first] if busy.can_take.any() else first is None
    assert migrations > 0


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"period_s": -1.0}, "period_s must not be negative"),
        ({"migrate_in_iterations": 10.0}, "migrate_in_iterations must be at least migrate_out_iterations"),
        ({"priority_target_tokens": -1.0}, "priority_target_tokens must not be negative"),
    ],
)
def test_mistakes_are_named(constants, message):
    with pytest.raises(ValueError, match=message):
        LlumnixConfig(**constants)
