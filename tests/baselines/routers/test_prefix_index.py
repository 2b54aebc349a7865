"""What routers remember of prompts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_gym.baselines.common.routers.prefix_index import BlockIndex, PrefixTree


def _ids(*ids):
    return np.array(ids, np.int32)


def _tree(*prompts, num_places=2):
    tree = PrefixTree(num_places)
    for place, ids in prompts:
        tree.insert(_ids(*ids), place)
    return tree


def test_an_empty_tree_matches_nothing():
    assert PrefixTree(3).match(_ids(1, 2)).tolist() == [0, 0, 0]
    assert _tree((0, [1, 2])).match(_ids()).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("prompt", "matched"),
    [
        ([1, 2, 3, 4], [4, 2]),  # whole edge, then on
        ([1, 2, 3, 4, 5], [4, 2]),  # longer than all that is known
        ([1, 2, 3], [3, 2]),  # ends within an edge
        ([1, 2, 9, 4], [2, 3]),  # the other branch, and no further
        ([1, 7], [1, 1]),  # leaves within the common edge
        ([7, 1], [0, 0]),
    ],
)
def test_each_place_matches_its_own_prompts(prompt, matched):
    tree = _tree((0, [1, 2, 3, 4]), (1, [1, 2, 9]))
    assert tree.match(_ids(*prompt)).tolist() == matched


def test_a_prompt_that_ends_within_an_edge_splits_it():
    tree = _tree((0, [1, 2, 3, 4]), (1, [1, 2]))
    assert tree.match(_ids(1, 2, 3, 4)).tolist() == [4, 2]
    assert tree.sizes.tolist() == [4, 2]


def test_sizes_count_every_id_once():
    tree = _tree((0, [1, 2, 3]), (0, [1, 2, 3]), (0, [1, 2]), (0, [1, 2, 7, 8]), (1, [1, 2, 7]))
    assert tree.sizes.tolist() == [5, 3]


def test_pruning_drops_the_oldest_leaf_and_keeps_what_others_need():
    tree = _tree((0, [1, 2, 3]), (0, [1, 2, 4]), (1, [1, 2, 3]), (0, [1, 2, 3]))
    tree.prune(3)  # place 0 holds 1 2, 3 and 4: 4 ids; 4 is the oldest leaf
    assert tree.sizes.tolist() == [3, 3]
    assert tree.match(_ids(1, 2, 4)).tolist() == [2, 2]
    assert tree.match(_ids(1, 2, 3)).tolist() == [3, 3]


def test_pruning_goes_up_a_branch_whose_prompts_only_passed():
    tree = _tree((0, [1]), (0, [5, 6]), (0, [5, 6, 7]), (0, [2]))
    # leaves: 1 (first), 7 (third), 2 (fourth); below 7 stands 5 6, where the second prompt ended
    tree.prune(4)
    assert tree.match(_ids(1)).tolist() == [0, 0]
    tree.prune(3)  # 7 goes; 5 6 becomes a leaf and is older than 2
    assert tree.match(_ids(5, 6, 7)).tolist() == [2, 0]
    tree.prune(2)
    assert tree.match(_ids(5, 6, 7)).tolist() == [0, 0]
    assert tree.match(_ids(2)).tolist() == [1, 0]


def test_pruning_drops_whole_edges():
    tree = _tree((0, [1, 2, 3, 4, 5]))
    tree.prune(4)
    assert tree.sizes.tolist() == [0, 0]
    assert tree.match(_ids(1, 2, 3, 4, 5)).tolist() == [0, 0]


def test_pruning_leaves_places_that_fit():
    tree = _tree((0, [1, 2]), (1, [3, 4, 5]))
    tree.prune(2)
    assert tree.sizes.tolist() == [2, 0]


PROMPTS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), min_size=1, max_size=6)), max_size=25
)


@given(PROMPTS, st.lists(st.integers(0, 3), max_size=6))
def test_the_tree_equals_a_list_of_prompts(prompts, asked):
    tree = _tree(*prompts, num_places=3)
    for place in range(3):
        known = [ids for to, ids in prompts if to == place]
        prefixes = {tuple(ids[:n]) for ids in known for n in range(1, len(ids) + 1)}
        longest = max((n for n in range(len(asked) + 1) if tuple(asked[:n]) in prefixes), default=0)
        assert tree.match(_ids(*asked))[place] == longest
        assert tree.sizes[place] == len(prefixes)


@given(PROMPTS, st.integers(0, 12))
def test_pruning_bounds_every_place_and_keeps_sizes_true(prompts, capacity):
    tree = _tree(*prompts, num_places=3)
    tree.prune(capacity)
    assert (tree.sizes <= capacity).all()
    held = [set() for _ in range(3)]
    for to, ids in prompts:
        for place in range(3):
            held[place] |= {tuple(ids[:n]) for n in range(1, int(tree.match(_ids(*ids))[place]) + 1)}
        assert tree.match(_ids(*ids))[to] <= len(ids)
    assert [len(h) for h in held] == tree.sizes.tolist()


def _index(capacity=100, num_places=3):
    return BlockIndex(np.full(num_places, capacity))


def test_block_index_counts_held_blocks_up_to_one_that_nobody_holds():
    index = _index()
    index.insert([1, 2, 3], 0)
    index.insert([1, 2], 2)
    assert index.match([1, 2, 3, 4]).tolist() == [3, 0, 2]
    assert index.match([1, 9, 3]).tolist() == [1, 0, 1]
    assert index.match([]).tolist() == [0, 0, 0]


def test_block_index_drops_the_blocks_used_longest_ago():
    index = _index(capacity=3)
    index.insert([1, 2, 3], 0)
    index.insert([1, 4], 0)  # 2 is the oldest
    assert index.match([1]).tolist() == [1, 0, 0]
    assert index.match([2]).tolist() == [0, 0, 0]
    # a place may lack a block before one that it holds: it counts where another place has it
    index.insert([1, 2], 1)
    assert index.match([1, 2, 3]).tolist() == [2, 2, 0]


def test_block_index_has_a_capacity_for_each_place():
    index = BlockIndex(np.array([1, 3]))
    for place in (0, 1):
        index.insert([1, 2, 3], place)
    assert index.match([1, 2, 3]).tolist() == [1, 3]
    assert index.match([3]).tolist() == [1, 1]


def test_block_index_has_more_places_than_a_word_has_bits():
    index = _index(num_places=70)
    index.insert([1, 2], 69)
    index.insert([1], 0)
    counts = index.match([1, 2])
    assert (counts[0], counts[69], counts.sum()) == (1, 2, 3)
