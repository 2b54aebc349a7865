"""SGLang's buckets."""

import numpy as np
import pytest

from serving_gym.baselines.common.routers.bucket import BucketConfig, BucketPolicy, bucket_ends
from tests.baselines.routers.states import arriving, routing_spec, routing_state


def _begun(num_places=3, **params):
    policy = BucketPolicy(BucketConfig(**params))
    policy.reset(routing_spec(num_places), 0)
    return policy


def _send(policy, characters, now_s=0.0, can_take=None):
    request = arriving(input_tokens=characters // 4)
    return policy.act(
        None, routing_state(len(policy.engines), request=request, now_s=now_s, can_take=can_take)
    )


NEVER = {"balance_abs_threshold": 1e9}


@pytest.mark.parametrize(
    ("lengths", "ends"),
    [
        # the two examples of SGLang's own tests
        ([33, 34, 34], [33, 67, np.inf]),
        ([5, 10, 15, 20, 24, 26], [20, 26, np.inf]),
        # share 40: 100 fills the first bucket; 10 and 10 of the second are too few, so it is as wide as the share
        ([100], [100, 134, np.inf]),
        # share 30: the three 10s of the first end at 10; those of the second lie in it, so it is as wide as the share
        ([10] * 9, [10, 41, np.inf]),
    ],
)
def test_bucket_ends(lengths, ends):
    assert bucket_ends(lengths, 3) == ends


def test_one_bucket_has_no_end():
    assert bucket_ends([3, 4], 1) == [np.inf]


def test_the_first_buckets_are_even():
    policy = _begun(**NEVER)
    # 4096 / 3: up to 1364, to 2729 and beyond
    assert [_send(policy, length) for length in (4, 1364, 1368, 2728, 2732, 100_000)] == [0, 0, 1, 1, 2, 2]


def test_out_of_balance_the_smallest_load_wins():
    policy = _begun(balance_abs_threshold=100, balance_rel_threshold=1.5)
    assert _send(policy, 100) == 0
    assert _send(policy, 4) == 0  # 100 and 0: not more than the threshold
    assert _send(policy, 4) == 1  # 104: the first of two
    assert _send(policy, 200) == 2
    assert _send(policy, 300) == 1  # 104, 4 and 200
    assert _send(policy, 2000) == 0  # 104, 304 and 200: 200 more, and 304 > 1.5 x 104
    # 2104, 304 and 200
    assert _send(policy, 4) == 2


def test_a_large_difference_may_be_a_small_share():
    policy = _begun(2, balance_abs_threshold=100, balance_rel_threshold=1.5)
    policy._load[:] = (1000, 1400)
    assert _send(policy, 3000) == 1
    policy._load[:] = (1000, 1504)
    assert _send(policy, 3000) == 0


def test_load_is_of_the_last_interval():
    policy = _begun(2, balance_abs_threshold=100)
    assert _send(policy, 400, now_s=0.0) == 0
    assert _send(policy, 200, now_s=1.0) == 1
    assert policy._load.tolist() == [400, 200]
    assert _send(policy, 4, now_s=5.5) == 1  # 400 and 200; then that of 0 is dropped
    assert policy._load.tolist() == [0, 204]


def test_buckets_follow_the_load():
    policy = _begun(2, **NEVER)
    assert [_send(policy, length, now_s=1.0) for length in (40, 80, 120, 160)] == [0] * 4
    # share 200: 40 + 80 + 120 reach it
    assert _send(policy, 120, now_s=5.0) == 0
    assert _send(policy, 124, now_s=5.0) == 1
    # share (400 + 120 + 124) / 2 = 322, less than twice 200: as it was
    assert _send(policy, 160, now_s=10.0) == 1
    assert policy._ends[0] == 120
    # what is counted of the last interval: 160, less than half
    _send(policy, 40, now_s=15.1)
    _send(policy, 40, now_s=15.2)
    assert _send(policy, 48, now_s=20.0) == 1  # share (40 + 40) / 2
    assert policy._ends[0] == 40


def test_without_requests_buckets_stay():
    policy = _begun(2, **NEVER)
    assert _send(policy, 2000, now_s=50.0) == 0
    assert policy._ends[0] == 2047


def test_where_the_bucket_cannot_the_smallest_load_wins():
    policy = _begun(**NEVER)
    assert _send(policy, 2000) == 1
    assert _send(policy, 4, can_take=[0, 1, 1]) == 2
    assert _send(policy, 5000, can_take=[1, 1, 0]) == 0


@pytest.mark.parametrize(
    "params", [{"balance_abs_threshold": -1}, {"balance_rel_threshold": 0.9}, {"adjust_interval_s": 0.0}]
)
def test_mistakes_are_named(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        BucketConfig(**params)
