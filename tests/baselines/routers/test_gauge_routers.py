"""Routers by engines' gauges: vLLM's own, PreServe's MU, llm-d."""

import numpy as np
import pytest

from serving_gym.baselines.common.routers.llm_d_legacy import LLMDLegacyConfig, LLMDLegacyPolicy, queue_score
from serving_gym.baselines.common.routers.minimum_use import MinimumUseConfig, MinimumUsePolicy
from serving_gym.baselines.common.routers.vllm_data_parallel import VLLMDataParallelPolicy
from tests.baselines.routers.states import arriving, engine, routing_spec, routing_state


def _begun(policy, num_places=3, seed=0):
    policy.reset(routing_spec(num_places), seed)
    return policy


def test_vllm_takes_equals_in_turns():
    policy = _begun(VLLMDataParallelPolicy())
    # as reports are new each time, scores are equal each time
    chosen = [policy.act(None, routing_state(3, gauges_s=float(i))) for i in range(7)]
    assert chosen == [0, 1, 2, 0, 1, 2, 0]


def test_vllm_counts_what_it_sent_since_the_report():
    policy = _begun(VLLMDataParallelPolicy())
    engines = [engine(num_running=1), engine(), engine(num_running=1)]

    def choose():
        return policy.act(None, routing_state(engines, gauges_s=1.0))

    # start 0, loads 1 0 1: engine 1; start 1, loads 1 1 1: engine 1, where the scan begins;
    # start 2, loads 1 2 1: engine 2; start 0, loads 1 2 2: engine 0; then 2 2 2 from 1 on: engine 1
    assert [choose() for _ in range(5)] == [1, 1, 2, 0, 1]
    # start 2; a new report wipes them out: loads 1 0 1
    assert policy.act(None, routing_state(engines, gauges_s=1.1)) == 1


def test_vllm_takes_the_greater_of_its_own_count_and_the_report():
    policy = _begun(VLLMDataParallelPolicy())
    engines = [engine(num_running=4), engine(num_running=3, num_waiting=2), engine(num_running=1)]
    # max(1, 4), max(1, 5), max(6, 1)
    assert policy.act(None, routing_state(engines, in_flight=[1, 1, 6])) == 0
    assert (
        policy.act(None, routing_state(engines, in_flight=[1, 1, 6], can_take=[0, 1, 1], gauges_s=11.0)) == 1
    )


@pytest.mark.parametrize(("usage", "place"), [(0.5, 0), (0.6, 0), (0.66, 0), (0.68, 1), (1.0, 1)])
def test_vllm_penalises_queues_by_kv_usage(usage, place):
    policy = _begun(VLLMDataParallelPolicy(), 2)
    # 10 + 6 x 3 x (usage - 0.5) against 13: even at 2/3
    engines = [engine(usage, num_running=7, num_waiting=3), engine(1.0, num_running=13)]
    assert policy.act(None, routing_state(engines)) == place


def test_vllm_penalises_what_it_sent_itself():
    policy = _begun(VLLMDataParallelPolicy(), 2)
    engines = [engine(1.0, num_running=1), engine(0.0, num_running=3)]
    # 1 against 3; then 1 + 1 + 6 x 1 x 0.5 = 5 against 3
    assert [policy.act(None, routing_state(engines)) for _ in range(2)] == [0, 1]


def test_minimum_use_weighs_gpu_and_memory():
    policy = _begun(MinimumUsePolicy(MinimumUseConfig(gpu_weight=0.25, window_s=2.0)), 3)

    def choose(gauges_s, busy, kv):
        engines = [engine(k, busy_s=b) for b, k in zip(busy, kv, strict=True)]
        return policy.act(None, routing_state(engines, gauges_s=gauges_s))

    # nothing is known of utilisation: 0.3 is the lowest usage
    assert choose(10.0, (5, 5, 5), (0.5, 0.3, 0.4)) == 1
    # two seconds on: busy 0.5, 1 and 0.75; 0.125 + 0.375, 0.25 + 0.225 and 0.1875 + 0.3
    assert choose(12.0, (6.0, 7.0, 6.5), (0.5, 0.3, 0.4)) == 1
    # 0.125 + 0.375, 0.25 + 0.33 and 0.1875 + 0.3
    assert choose(12.0, (6.0, 7.0, 6.5), (0.5, 0.44, 0.4)) == 2
    # within the window utilisation stays as it was
    assert choose(13.9, (7.9, 7.0, 6.5), (0.5, 0.44, 0.4)) == 2
    # it is over: busy 1, 0 and 0.25; 0.25 + 0.375, 0.33 and 0.0625 + 0.3
    assert choose(14.0, (8.0, 7.0, 7.0), (0.5, 0.44, 0.4)) == 1


def test_minimum_use_gives_ties_to_the_first():
    assert _begun(MinimumUsePolicy()).act(None, routing_state(3, can_take=[0, 1, 1])) == 1


@pytest.mark.parametrize("params", [{"gpu_weight": 1.1}, {"gpu_weight": -0.1}, {"window_s": 0}])
def test_minimum_use_refuses(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        MinimumUseConfig(**params)


def test_queue_score():
    assert queue_score(np.array([4, 0, 3])).tolist() == [0.0, 1.0, 0.25]
    assert queue_score(np.array([2, 2])).tolist() == [1.0, 1.0]


ONLY = {"prefix_weight": 0.0, "queue_weight": 0.0, "kv_weight": 0.0, "no_hit_lru_weight": 0.0}


def _scorer(num_places=3, **weights):
    return _begun(LLMDLegacyPolicy(LLMDLegacyConfig(**(ONLY | weights))), num_places)


def test_llm_d_legacy_by_queue():
    policy = _scorer(queue_weight=1.0)
    engines = [engine(num_waiting=3), engine(num_waiting=1), engine(num_waiting=2)]
    assert policy.act(None, routing_state(engines)) == 1
    assert policy.act(None, routing_state(engines, can_take=[1, 0, 1])) == 2


def test_llm_d_legacy_by_kv():
    policy = _scorer(kv_weight=1.0)
    assert policy.act(None, routing_state([engine(0.9), engine(0.3), engine(0.2)], can_take=[1, 1, 0])) == 1


def test_llm_d_legacy_by_prefix():
    policy = _scorer(prefix_weight=1.0)
    first = policy.act(None, routing_state(3, request=arriving([1, 2, 3])))
    assert policy.act(None, routing_state(3, request=arriving([1, 2, 9]))) == first
    assert policy.act(None, routing_state(3, request=arriving([5]), can_take=np.arange(3) != first)) != first


def test_llm_d_legacy_holds_as_many_blocks_as_the_engine():
    spec = routing_spec(2, kv_capacity_tokens=np.array([32, 32]))  # of 16 tokens a block: two
    policy = LLMDLegacyPolicy(LLMDLegacyConfig(**(ONLY | {"prefix_weight": 1.0})))
    policy.reset(spec, 0)
    assert policy.act(None, routing_state(2, request=arriving([1]), can_take=[0, 1])) == 1
    assert policy.act(None, routing_state(2, request=arriving([1]))) == 1
    assert policy.act(None, routing_state(2, request=arriving([5, 6]), can_take=[0, 1])) == 1
    policy._picker.turn = 0
    assert policy.act(None, routing_state(2, request=arriving([1]))) == 0  # forgotten: a tie


def test_llm_d_legacy_looks_up_131072_tokens():
    policy = _scorer(2, prefix_weight=1.0)
    long = [1, 2, 3]
    request = arriving(long, hash_block_tokens=65_536)
    assert policy.act(None, routing_state(2, request=request, can_take=[0, 1])) == 1
    assert policy._index.match([3]).tolist() == [0, 0]
    assert policy._index.match([1, 2]).tolist() == [0, 2]


def test_llm_d_legacy_gives_cold_requests_to_who_has_waited_longest_for_one():
    policy = _scorer(no_hit_lru_weight=1.0)

    def cold(can_take=None):
        return policy.act(None, routing_state(3, request=arriving(), can_take=can_take))

    assert [cold() for _ in range(4)] == [0, 1, 2, 0]  # never given one: in their order; then the oldest
    # 1, 2 and 0 had theirs in this order; of 1 and 0 that can, it is 1
    assert cold([1, 1, 0]) == 1
    assert [cold() for _ in range(3)] == [2, 0, 1]


def test_llm_d_legacy_no_hit_scores():
    policy = _scorer(4, no_hit_lru_weight=1.0)
    everyone = np.arange(4)
    np.testing.assert_allclose(policy._lru_score(everyone), [1, 2 / 3, 1 / 3, 0])
    policy._given[:] = [7, 0, 3, 0]  # 2 before 0; 1 and 3 never
    # ranks: the two that never had one 0 and 1; then 2 and, last, 0
    np.testing.assert_allclose(policy._lru_score(everyone), [0, 1, 1 / 3, 2 / 3])
    # of two that can: 3 never had one; 0 has the rank 1 + 1, past the last
    np.testing.assert_allclose(policy._lru_score(np.array([0, 3])), [0, 1])
    assert policy._lru_score(np.array([2])).tolist() == [1]


def test_llm_d_legacy_leaves_the_order_to_cold_requests_alone():
    policy = _scorer(prefix_weight=3.0, no_hit_lru_weight=2.0)

    def send(*ids):
        return policy.act(None, routing_state(3, request=arriving(ids)))

    assert send(1, 2) == 0
    assert send(1, 2) == 0  # known: 3 + 1 against 1, and 0 does not move back
    assert send(7) == 1
    assert send(8) == 2
    assert send(9) == 0


def test_llm_d_legacy_adds_up_weighted_scores():
    policy = _begun(LLMDLegacyPolicy(), 2)
    assert policy.act(None, routing_state(2, request=arriving([1, 2, 3, 4]), can_take=[1, 0])) == 0
    # half the prompt: 0 has 3/2 + 0 + 2 x 0.4 + 1 = 3.3 against 0 + 2 + 2 x 0.1 + 1 = 3.2
    half = arriving([1, 2, 8, 9])
    queues = {"num_waiting": 5}
    assert policy.act(None, routing_state([engine(0.6, **queues), engine(0.9)], request=half)) == 0
    policy = _begun(LLMDLegacyPolicy(), 2)
    assert policy.act(None, routing_state(2, request=arriving([1, 2, 3, 4]), can_take=[1, 0])) == 0
    # with 1 - 0.8 free at 1: 3.4
    assert policy.act(None, routing_state([engine(0.6, **queues), engine(0.8)], request=half)) == 1


def test_llm_d_legacy_picks_equals_in_turns():
    policy = _scorer(queue_weight=1.0)
    assert [policy.act(None, routing_state(3)) for _ in range(5)] == [0, 1, 2, 0, 1]
    # the counter stands at 2: of two it takes the first, and 3 is no less than two, so it begins again
    assert policy.act(None, routing_state(3, can_take=[0, 1, 1])) == 1
    assert policy.act(None, routing_state(3, can_take=[0, 1, 1])) == 1
    assert policy.act(None, routing_state(3, can_take=[0, 1, 1])) == 2


def test_llm_d_legacy_refuses_negative_weights():
    with pytest.raises(ValueError, match="kv_weight must not be negative"):
        LLMDLegacyConfig(kv_weight=-1.0)
