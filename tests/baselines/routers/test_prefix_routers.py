"""Routers by prompts and sessions."""

import numpy as np
import pytest

from serving_gym.baselines.common.routers.cache_aware import CacheAwareConfig, CacheAwarePolicy
from serving_gym.baselines.common.routers.consistent_hash import ConsistentHashPolicy
from serving_gym.baselines.common.routers.rendezvous_hash import RendezvousHashPolicy
from serving_gym.baselines.common.routers.sessions import session_of
from tests.baselines.routers.states import arriving, routing_spec, routing_state


def _begun(policy, num_places=3, seed=0):
    policy.reset(routing_spec(num_places), seed)
    return policy


def _prompt(*ids, block_tokens=16, **fields):
    return arriving(
        hash_ids=ids, hash_block_tokens=block_tokens, **({"input_tokens": 16 * len(ids)} | fields)
    )


def _send(policy, request, loads=(0, 0, 0), can_take=None, now_s=0.0):
    return policy.act(
        None, routing_state(len(loads), in_flight=loads, request=request, can_take=can_take, now_s=now_s)
    )


def test_cache_aware_goes_where_the_prompt_has_been():
    policy = _begun(CacheAwarePolicy())
    assert (
        _send(policy, _prompt(1, 2, 3, 4), loads=(1, 0, 0)) == 1
    )  # unknown: the fewest requests, the first of them
    assert _send(policy, _prompt(1, 2, 3, 5), loads=(0, 9, 0)) == 1  # three of four blocks
    assert _send(policy, _prompt(7, 8), loads=(1, 1, 0)) == 2


def test_cache_aware_needs_more_than_the_threshold():
    policy = _begun(CacheAwarePolicy(CacheAwareConfig(cache_threshold=0.5)))
    assert _send(policy, _prompt(1, 2), loads=(1, 1, 0)) == 2
    assert _send(policy, _prompt(1, 2, 3, 4)) == 0  # half of it is not more than half; now 0 has had it too
    assert (
        _send(policy, _prompt(1, 2, 5), loads=(1, 0, 0)) == 2
    )  # two thirds at 0 and 2, fewest requests at 2


def test_cache_aware_counts_tokens_of_a_prompt_that_fills_its_last_block_in_part():
    policy = _begun(CacheAwarePolicy(CacheAwareConfig(cache_threshold=0.6)))
    assert _send(policy, _prompt(1, 2), loads=(1, 1, 0)) == 2
    # two blocks of 16 and 1 token of a third: 32 of 33
    assert _send(policy, _prompt(1, 2, 3, input_tokens=33)) == 2
    # ids cover the first 32 of 100 tokens
    assert _send(policy, _prompt(1, 2, input_tokens=100)) == 0


def test_cache_aware_takes_the_best_share_among_those_that_can():
    policy = _begun(CacheAwarePolicy())
    assert _send(policy, _prompt(1, 2, 3, 4), loads=(1, 0, 0)) == 1
    assert _send(policy, _prompt(1, 2), can_take=[1, 0, 1]) == 0
    request = _prompt(1, 2, 3, 4)
    assert _send(policy, request) == 1
    assert _send(policy, request, can_take=[1, 0, 1]) == 0


@pytest.mark.parametrize(
    ("loads", "place"),
    [
        ((4, 2, 2), 0),  # the gap is 2: not more than the threshold
        ((5, 2, 4), 1),  # the gap is 3 and 5 > 1.5 x 2: the fewest requests
        ((9, 6, 6), 0),  # the gap is 3, but 9 = 1.5 x 6
        ((5, 2, 2), 1),
    ],
)
def test_cache_aware_out_of_balance_takes_the_fewest_requests(loads, place):
    policy = _begun(CacheAwarePolicy(CacheAwareConfig(balance_abs_threshold=2, balance_rel_threshold=1.5)))
    assert _send(policy, _prompt(1, 2)) == 0
    assert _send(policy, _prompt(1, 2), loads=loads) == place
    if place:  # it has had the prompt now
        assert _send(policy, _prompt(1, 2), loads=(1, 0, 1)) == place


def test_cache_aware_looks_at_the_loads_of_those_that_can_take_the_request():
    policy = _begun(CacheAwarePolicy(CacheAwareConfig(balance_abs_threshold=2)))
    assert _send(policy, _prompt(1, 2)) == 0
    assert _send(policy, _prompt(1, 2), loads=(2, 1, 90), can_take=[1, 1, 0]) == 0


def test_cache_aware_prunes_by_the_clock():
    config = CacheAwareConfig(eviction_interval_s=10.0, max_tree_size=8 * 16 * 2)  # two blocks
    policy = _begun(CacheAwarePolicy(config))
    assert _send(policy, _prompt(1, 2), loads=(1, 1, 0), now_s=1.0) == 2
    assert _send(policy, _prompt(3), loads=(1, 1, 0), now_s=2.0) == 2
    assert _send(policy, _prompt(1, 2), now_s=9.9) == 2
    assert _send(policy, _prompt(3), now_s=25.0) == 0  # two intervals have passed: 3 was the older
    assert _send(policy, _prompt(1, 2), now_s=26.0) == 2
    assert _send(policy, _prompt(4), loads=(1, 1, 0), now_s=29.0) == 2
    assert _send(policy, _prompt(4), now_s=30.0) == 2  # pruned again at 30: 1 2 was the older
    assert _send(policy, _prompt(1, 2), now_s=31.0) == 0


def test_cache_aware_balances_requests_that_share_nothing():
    policy = _begun(CacheAwarePolicy())
    assert _send(policy, arriving(), loads=(1, 1, 0)) == 2
    assert _send(policy, arriving(), loads=(1, 0, 1)) == 1


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"cache_threshold": 1.5}, "cache_threshold must lie in"),
        ({"balance_abs_threshold": -1}, "balance_abs_threshold must not be negative"),
        ({"balance_rel_threshold": 0.5}, "balance_rel_threshold must be at least 1"),
        ({"eviction_interval_s": 0}, "eviction_interval_s must be positive"),
        ({"max_tree_size": -1}, "max_tree_size must not be negative"),
    ],
)
def test_cache_aware_refuses(params, message):
    with pytest.raises(ValueError, match=message):
        CacheAwareConfig(**params)


def test_sessions():
    assert session_of(_prompt(7, 8, index=1)) == session_of(_prompt(7, 9, index=2))
    assert session_of(_prompt(7)) != session_of(_prompt(8))
    assert session_of(arriving(index=7)) not in (session_of(_prompt(7)), session_of(arriving(index=8)))


HASHES = [ConsistentHashPolicy, RendezvousHashPolicy]


def _homes(policy, can_take=None, num_places=8):
    return np.array(
        [_send(policy, _prompt(s), loads=(0,) * num_places, can_take=can_take) for s in range(1500)], np.int64
    )


@pytest.mark.parametrize("policy", HASHES)
def test_hashes_keep_a_session_where_it_is_whatever_the_load(policy):
    policy = _begun(policy(), 8)
    first = _send(policy, _prompt(5, 6, index=1), loads=(0,) * 8)
    loads = [0] * 8
    loads[first] = 50
    assert _send(policy, _prompt(5, 9, index=2), loads=loads) == first
    assert _send(_begun(policy, 8, seed=1), _prompt(5), loads=loads) == first


@pytest.mark.parametrize(
    ("policy", "tolerance"), [(ConsistentHashPolicy, 0.35), (RendezvousHashPolicy, 0.25)]
)
def test_hashes_spread_sessions_evenly(policy, tolerance):
    shares = np.bincount(_homes(_begun(policy(), 8)), minlength=8) / 1500
    np.testing.assert_allclose(shares, 1 / 8, rtol=tolerance)


@pytest.mark.parametrize("policy", HASHES)
def test_hashes_move_only_the_sessions_of_an_engine_that_is_away(policy):
    policy = _begun(policy(), 8)
    before = _homes(policy)
    can_take = np.arange(8) != 3
    away = _homes(policy, can_take)
    assert (away[before != 3] == before[before != 3]).all()
    moved = np.bincount(away[before == 3], minlength=8)
    assert moved[3] == 0
    assert (np.delete(moved, 3) > 0).all()  # to all the others, not to one
    assert (_homes(policy) == before).all()


@pytest.mark.parametrize("policy", HASHES)
def test_hashes_move_few_sessions_when_an_engine_comes(policy):
    before, after = _homes(_begun(policy(), 7), num_places=7), _homes(_begun(policy(), 8))
    assert (after[after != before] == 7).all()
    assert 0.06 < (after != before).mean() < 0.2  # an eighth


def test_the_ring_is_walked_to_the_next_engine_that_can():
    policy = _begun(ConsistentHashPolicy(), 4)
    homes, without = _homes(policy, num_places=4), _homes(policy, [1, 1, 0, 1], num_places=4)
    # the next node on the ring after a session's own that does not belong to engine 2
    at, owners = policy._at, policy._owners
    assert (np.diff(at.astype(float)) >= 0).all()
    assert np.bincount(owners).tolist() == [160] * 4
    assert set(without[homes == 2]) <= {0, 1, 3}
    assert (without[homes != 2] == homes[homes != 2]).all()
