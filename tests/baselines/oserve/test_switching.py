"""Ad hoc switching: which bytes go where, and how long that takes on shared links."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_gym.calibration.models import get_model
from serving_gym.envs.machines.cluster import Cluster, Deployment, Replica, ReplicaKind
from serving_gym.envs.machines.kv_migration import RequestKV, plan_kv
from serving_gym.envs.machines.placement import packable, place, stage_widths
from serving_gym.envs.machines.shards import Shard, layer_bytes, model_shards, stage_layers
from serving_gym.envs.machines.switch_plan import BALANCES, STORAGE, Transfer, greedy_switch_plan
from serving_gym.envs.machines.transfer import fair_rates, link_loads, naive_reload_s, transfer_s
from serving_gym.envs.simulator.fleet.links import max_min_rates

K = ReplicaKind
OPT = get_model("opt-66b")
WHOLE = (Fraction(0), Fraction(1))


def shard(sources: tuple[int, ...], targets: tuple[int, ...], size: float = 1.0) -> Shard:
    return Shard(0, *WHOLE, size, sources, targets)


def sent(plan: tuple[Transfer, ...]) -> list[tuple[int, int, int]]:
    return [(transfer.shard, transfer.source, transfer.target) for transfer in plan]


# -- shards ------------------------------------------------------------------------------------------------------------


def test_stages_share_the_layers_and_take_embedding_and_head():
    """Four layers are 1 to 4; 0 is the embedding, 5 the head."""
    assert stage_layers(4, 2) == (range(3), range(3, 6))
    assert stage_layers(4, 1) == (range(6),)
    assert [len(layers) for layers in stage_layers(64, 3)] == [23, 21, 22]


def test_layers_are_the_model():
    assert sum(layer_bytes(OPT)) == pytest.approx(OPT.weight_bytes)
    assert len(layer_bytes(OPT)) == 66


def test_two_and_three_ranks_cut_a_layer_in_four_pieces():
    """0, 1/3, 1/2, 2/3, 1: the second third is one half's end and the other's beginning."""
    cluster = Cluster(1)
    before = Deployment(cluster, (Replica(K(2), (0, 1)),))
    after = Deployment(cluster, (Replica(K(3), (0, 1, 2)),))
    pieces = [s for s in model_shards(OPT, before, after) if s.layer == 1]
    assert [(str(s.start), s.sources, s.targets) for s in pieces] == [
        ("0", (0,), (0,)),
        ("1/3", (0,), (1,)),
        ("1/2", (1,), (1,)),
        ("2/3", (1,), (2,)),
    ]
    # GPU 1 needs the sixth from 1/3 to 1/2, GPU 2 the last third; GPU 0 has what it needs.
    plan = greedy_switch_plan(cluster, model_shards(OPT, before, after))
    received = {t: sum(x.size_bytes for x in plan if x.target == t) / OPT.weight_bytes for t in (0, 1, 2)}
    assert received == {0: 0.0, 1: pytest.approx(1 / 6), 2: pytest.approx(1 / 3)}


deployments = st.dictionaries(
    st.sampled_from([K(2), K(3), K(4), K(8), K(2, 2), K(3, 2), K(1, 4), K(4, 2), K(2, 3)]),
    st.integers(0, 3),
    min_size=1,
)


@given(deployments, deployments, st.sampled_from(BALANCES))
@settings(deadline=None, max_examples=30)
def test_after_a_switch_every_gpu_has_its_part(first, second, balance):
    """What it had of it and what it gets is its share of the weights; nobody gets what it has."""
    cluster = Cluster(2)
    if not all(packable(cluster, stage_widths(kinds)) for kinds in (first, second)):
        return
    before = place(cluster, first)
    after = place(cluster, second, before)
    shards = model_shards(OPT, before, after)
    plan = greedy_switch_plan(cluster, shards, balance)
    had: defaultdict[int, float] = defaultdict(float)
    for part in shards:
        for gpu in set(part.sources) & set(part.targets):
            had[gpu] += part.size_bytes
    for transfer in plan:
        part = shards[transfer.shard]
        assert transfer.source in (part.sources or (STORAGE,))
        assert transfer.target not in part.sources
        inside = [s for s in part.sources if cluster.machine_of(s) == cluster.machine_of(transfer.target)]
        assert transfer.source in inside or not inside
        had[transfer.target] += transfer.size_bytes
    sizes = layer_bytes(OPT)
    for replica in after.replicas:
        for number, layers in enumerate(stage_layers(OPT.num_layers, replica.kind.pp)):
            for gpu in replica.stage(number):
                assert had[gpu] == pytest.approx(sum(sizes[layer] for layer in layers) / replica.kind.tp)
    if before == after:
        assert plan == ()


# -- Algorithm 2 -------------------------------------------------------------------------------------------------------


def test_algorithm_2_by_hand():
    """Two machines of two. Each line is one branch."""
    cluster = Cluster(2, 2)
    # t holds m: nothing to do.
    assert greedy_switch_plan(cluster, [shard((0, 1), (1,))]) == ()
    # Intra before inter, even where the inter source is idle and has a lower number.
    assert sent(greedy_switch_plan(cluster, [shard((0, 3), (2,)), shard((0, 3), (2,))])) == [
        (0, 3, 2),
        (1, 3, 2),
    ]
    # No intra source: the inter source with the lowest load to this target.
    assert sent(
        greedy_switch_plan(cluster, [shard((0, 1), (2,), 5.0), shard((0, 1), (2,)), shard((0, 1), (2,))])
    ) == [
        (0, 0, 2),
        (1, 1, 2),
        (2, 1, 2),
    ]
    # Nobody holds it: storage.
    assert sent(greedy_switch_plan(cluster, [shard((), (3,))])) == [(0, STORAGE, 3)]


def test_a_counter_a_pair_and_a_counter_a_source_differ():
    """GPU 0 has sent to 2 but nothing to 3, so that Algorithm 2 takes it again where section 5.2 takes GPU 1."""
    shards = [shard((0, 1), (2,)), shard((0, 1), (3,))]
    cluster = Cluster(2, 2)
    assert sent(greedy_switch_plan(cluster, shards)) == [(0, 0, 2), (1, 0, 3)]
    assert sent(greedy_switch_plan(cluster, shards, "source")) == [(0, 0, 2), (1, 1, 3)]
    with pytest.raises(ValueError, match="balance='fair'"):
        greedy_switch_plan(cluster, shards, "fair")


# -- time --------------------------------------------------------------------------------------------------------------


def test_transfers_share_links():
    """400 GB over NVLink take a second; over a network of 200 GB/s two; two from one GPU share its link."""
    cluster = Cluster(2)
    one = [Transfer(0, 0, 1, 400e9)]
    assert transfer_s(cluster, one) == pytest.approx(1.0)
    assert transfer_s(cluster, [Transfer(0, 0, 8, 400e9)]) == pytest.approx(2.0)
    assert transfer_s(cluster, [*one, Transfer(0, 0, 2, 400e9)]) == pytest.approx(2.0)
    assert transfer_s(cluster, [*one, Transfer(0, 2, 3, 400e9)]) == pytest.approx(1.0)
    # From two GPUs of a machine to two of the other: the network of the machines is what they share.
    assert transfer_s(cluster, [Transfer(0, 0, 8, 200e9), Transfer(0, 1, 9, 200e9)]) == pytest.approx(2.0)
    assert transfer_s(cluster, [Transfer(0, STORAGE, 0, 3.31e9)]) == pytest.approx(1.0)
    assert transfer_s(cluster, []) == 0.0
    slow = replace(cluster, network_bytes_per_s=10e9)
    assert transfer_s(slow, [Transfer(0, 0, 8, 400e9)]) == pytest.approx(40.0)


def test_what_ends_leaves_its_share_to_the_others():
    """100 GB and 300 GB over one link of 400 GB/s: both at 200 GB/s until 0.5 s, then the second alone at 400."""
    moved = [Transfer(0, 0, 1, 100e9), Transfer(0, 0, 2, 300e9)]
    assert transfer_s(Cluster(1), moved) == pytest.approx(0.5 + 200 / 400)


flows = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 15), st.floats(1e6, 1e11)), max_size=20)


@given(flows)
@settings(deadline=None)
def test_no_plan_is_faster_than_its_fullest_link(parts):
    cluster = Cluster(2)
    moved = [Transfer(0, source, target, size) for source, target, size in parts if source != target]
    sizes, links, capacity = link_loads(cluster, moved, storage_bytes_per_s=1e9)
    carried = np.zeros(len(capacity))
    for size, ends in zip(sizes, links, strict=True):
        carried[np.unique(ends)] += size
    seconds, bound = transfer_s(cluster, moved), (carried / capacity).max(initial=0.0)
    assert bound <= seconds * (1 + 1e-6)
    assert seconds <= sum(transfer_s(cluster, [part]) for part in moved) * (1 + 1e-6)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=10))
@settings(deadline=None)
def test_rates_are_those_of_the_fleet_where_links_are_alike(pairs):
    """`envs.simulator.fleet.links` in whole bytes."""
    links = np.array([(source, 6 + target) for source, target in pairs])
    rates = fair_rates(links, np.full(12, 1e10), np.ones(len(pairs), bool))
    np.testing.assert_allclose(rates, max_min_rates(pairs, 10**10), rtol=1e-8)


def test_a_switch_moves_bytes_in_well_under_a_second_and_a_reload_takes_minutes():
    """Trace 1, P1 to P2 (Appendix G). Section 6.3: a reload takes over 50 seconds, a switch around 10 for any case."""
    cluster = Cluster(2)
    before = place(cluster, {K(3, 2): 1, K(2, 2): 1, K(2): 3})
    after = place(cluster, {K(4, 2): 1, K(2, 2): 1, K(2): 2}, before)
    moving = transfer_s(cluster, greedy_switch_plan(cluster, model_shards(OPT, before, after)))
    reload = naive_reload_s(OPT, before, after)
    assert 0 < moving < 1 < 50 < reload
    assert naive_reload_s(OPT, before, before) == 0.0
    assert naive_reload_s(OPT, before, after, start_fixed_s=0.0) == pytest.approx(OPT.weight_bytes / 3.31e9)


# -- KV ----------------------------------------------------------------------------------------------------------------


def test_kv_moves_with_its_request():
    """From two ranks to one stage of one GPU each: the first stage takes half of the layers from both ranks."""
    source, target, other = Replica(K(2), (0, 1)), Replica(K(1, 2), (2, 3)), Replica(K(2), (4, 5))
    running = [
        RequestKV(1024, source, target),
        RequestKV(2000, source, target),
        RequestKV(5000, other, other),
    ]
    chunks = plan_kv(Cluster(1), OPT, running, chunk_bytes=1e12)
    half = 3024 * OPT.kv_bytes_per_token / 4
    assert [(c.source, c.target, c.layers) for c in chunks] == [
        (0, 2, range(32)),
        (0, 3, range(32, 64)),
        (1, 2, range(32)),
        (1, 3, range(32, 64)),
    ]
    assert all(c.size_bytes == pytest.approx(half) for c in chunks)
    assert transfer_s(Cluster(1), chunks) == pytest.approx(2 * half / 400e9)


def test_chunks_hold_whole_layers_as_many_as_fit():
    source, target = Replica(K(2), (0, 1)), Replica(K(2), (2, 3))
    layer = 2000 * OPT.kv_bytes_per_layer_token / 2
    chunks = plan_kv(Cluster(1), OPT, [RequestKV(2000, source, target)], chunk_bytes=10.5 * layer)
    first = [c.layers for c in chunks if c.source == 0]
    assert [len(layers) for layers in first] == [10] * 6 + [4]
    assert all(c.size_bytes == pytest.approx(len(c.layers) * layer) for c in chunks)
    tiny = plan_kv(Cluster(1), OPT, [RequestKV(2000, source, target)], chunk_bytes=1.0)
    assert all(len(c.layers) == 1 for c in tiny)
    assert sum(c.size_bytes for c in tiny) == pytest.approx(2000 * OPT.kv_bytes_per_token)


def test_a_gpu_that_has_the_kv_gets_none_and_repeated_heads_have_a_choice():
    """GPUs 0 and 1 stay ranks of the halves. Eight heads on 16 ranks: both ranks of a head need it."""
    source, target = Replica(K(2), (0, 1)), Replica(K(2), (0, 1))
    assert plan_kv(Cluster(1), OPT, [RequestKV(5000, source, target)]) == ()
    llama = get_model("llama-3.1-70b")
    wide = Replica(K(16), tuple(range(16)))
    chunks = plan_kv(Cluster(1, 32), llama, [RequestKV(5000, Replica(K(2), (16, 17)), wide)])
    assert sum(c.size_bytes for c in chunks) == pytest.approx(2 * 5000 * llama.kv_bytes_per_token)


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="chunk_bytes must be positive"):
        plan_kv(Cluster(1), OPT, [], chunk_bytes=0.0)
