from itertools import permutations

import pytest

from serving_gym.baselines.flying_serving.kv_cache_adaptor import KVCacheAdaptor, KVParameters
from serving_gym.baselines.flying_serving.scheduler import (
    EXECUTE_MODEL,
    RESET_TP_MODE,
    SET_TP_MODE,
    FlyingScheduler,
    Modes,
    ScheduledRequest,
    determine_mode,
    sync_workload,
)

DP0 = ScheduledRequest(0, 1.0, 20, (0,))
DP1 = ScheduledRequest(1, 2.0, 20, (1,))
PAIR = ScheduledRequest(2, 3.0, 40, (2, 3))
ALL = ScheduledRequest(3, 4.0, 40, (0, 1, 2, 3))


class Ranks:
    """Engines that note down what they are told."""

    def __init__(self, finishes=()):
        self.heard = [[] for _ in range(4)]
        self.finishes = set(finishes)

    def __call__(self, method, args):
        for heard in self.heard:
            heard.append((method, args))
        if method != EXECUTE_MODEL:
            return ()
        return [item.request for item in args[0] if item.request in self.finishes]

    @property
    def methods(self):
        return [(method, args if method != EXECUTE_MODEL else ()) for method, args in self.heard[0]]


@pytest.fixture
def kv():
    return KVCacheAdaptor(num_engines=4, blocks_per_engine=8, base_block_size=16, hidden_dim=64)


def test_input_is_only_collected(kv):
    ranks = Ranks()
    scheduler = FlyingScheduler(kv, ranks)
    scheduler.process_input([DP1, DP0])
    assert scheduler.queue == [DP1, DP0]
    assert ranks.heard[0] == []


def test_all_peers_agree_on_the_order():
    queues = [[PAIR, DP0], [DP1], [PAIR], []]
    orders = {sync_workload(order) for order in permutations(queues)}
    assert orders == {(DP0, DP1, PAIR)}


def test_ties_go_by_id():
    twin = ScheduledRequest(9, DP0.arrival_s, 5, (0,))
    assert sync_workload([[twin], [DP0]]) == (DP0, twin)


@pytest.mark.parametrize(
    ("queue", "modes"),
    [
        ((), Modes(set_flag=False, reset_flag=False, width=1)),
        ((DP0, DP1), Modes(set_flag=False, reset_flag=True, width=1)),
        ((PAIR,), Modes(set_flag=True, reset_flag=False, width=2)),
        ((DP0, PAIR), Modes(set_flag=True, reset_flag=True, width=2)),
        ((ALL, PAIR), Modes(set_flag=True, reset_flag=False, width=4)),
    ],
)
def test_mode_determination(queue, modes):
    assert determine_mode(queue) == modes


def test_a_tp_iteration(kv):
    ranks = Ranks()
    worklist = FlyingScheduler(kv, ranks).step([PAIR])
    assert ranks.methods == [(SET_TP_MODE, (2,)), (EXECUTE_MODEL, ())]
    (item,) = worklist
    assert (item.engines, item.parameters) == ((2, 3), KVParameters(block_size=32, local_dim=32))
    assert [len(blocks) for blocks in item.blocks] == [2, 2]  # 40 tokens in blocks of 32


def test_a_dp_iteration(kv):
    ranks = Ranks()
    worklist = FlyingScheduler(kv, ranks).step([DP0])
    assert ranks.methods == [(RESET_TP_MODE, ()), (EXECUTE_MODEL, ())]
    assert worklist[0].parameters == KVParameters(block_size=16, local_dim=64)


def test_in_a_mixed_iteration_the_set_flag_wins_and_each_keeps_its_parameters(kv):
    ranks = Ranks()
    worklist = FlyingScheduler(kv, ranks).step([PAIR, DP0])
    assert ranks.methods == [(SET_TP_MODE, (2,)), (EXECUTE_MODEL, ())]
    assert [(item.request, item.parameters.block_size) for item in worklist] == [(0, 16), (2, 32)]


def test_nothing_is_said_when_there_is_nothing_to_do(kv):
    ranks = Ranks()
    assert FlyingScheduler(kv, ranks).step([]) == ()
    assert ranks.heard[0] == []


def test_finished_requests_are_published_and_give_their_blocks_back(kv):
    ranks, published = Ranks(finishes=[0]), []
    scheduler = FlyingScheduler(kv, ranks, publish=published.append)
    scheduler.step([DP0, DP1])
    assert published == [(0,)]
    assert scheduler.queue == [DP1]
    assert (kv.free_blocks((0,)), kv.free_blocks((1,))) == (8, 6)


def test_running_requests_grow_by_a_token_an_iteration(kv):
    scheduler = FlyingScheduler(kv, Ranks())
    scheduler.step([DP0])
    scheduler.step([])
    assert kv.requests[0].num_tokens == 21


def test_a_request_without_blocks_keeps_its_place_and_switches_nothing(kv):
    ranks = Ranks()
    scheduler = FlyingScheduler(kv, ranks)
    large = ScheduledRequest(7, 0.0, 8 * 32 + 1, (0, 1))
    worklist = scheduler.step([large, DP0])
    assert [item.request for item in worklist] == [0]
    assert ranks.methods == [(RESET_TP_MODE, ()), (EXECUTE_MODEL, ())]
    assert scheduler.queue == [large, DP0]


def test_all_ranks_hear_the_same_in_the_same_order(kv):
    ranks = Ranks(finishes=[1])
    scheduler = FlyingScheduler(kv, ranks, peers=lambda: [[DP1], [ALL]])
    for arrivals in ([DP0], [PAIR], []):
        scheduler.step(arrivals)
    assert all(heard == ranks.heard[0] for heard in ranks.heard)
    items = [args[0] for method, args in ranks.heard[0] if method == EXECUTE_MODEL]
    assert [item.request for item in items[0]] == [0, 1, 3]
