import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving_gym.baselines.flying_serving.kv_cache_adaptor import KVCacheAdaptor, KVParameters, block_bytes
from serving_gym.envs.interface.layout import all_groups

BASE, HIDDEN, BLOCKS, ENGINES = 16, 1024, 10, 4


def _adaptor():
    return KVCacheAdaptor(ENGINES, BLOCKS, BASE, HIDDEN)


def test_equation_2():
    assert block_bytes(block_size=16, local_dim=1024, element_bytes=2) == 32768


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_equations_3_and_4_keep_the_bytes_of_a_block(degree):
    parameters = _adaptor().parameters(degree)
    assert parameters == KVParameters(block_size=BASE * degree, local_dim=HIDDEN // degree)
    assert block_bytes(parameters.block_size, parameters.local_dim, 2) == _adaptor().block_bytes


def test_a_degree_must_divide_the_hidden_width():
    with pytest.raises(ValueError, match="degree"):
        _adaptor().parameters(3)


def test_degrees_lie_side_by_side():
    """Section 5.2.3: a paused DP request keeps its blocks while its engine works in a group, and goes on after."""
    kv = _adaptor()
    assert kv.allocate(1, engine=0, num_tokens=33)  # three blocks of 16 on engine 0
    kv.bind((0, 1))
    assert kv.allocate(2, engine=1, num_tokens=33)  # two blocks of 32 on both
    paused, grouped = kv.requests[1], kv.requests[2]
    assert (len(paused.blocks[0]), paused.capacity_tokens) == (3, 48)
    assert ([len(grouped.blocks[e]) for e in (0, 1)], grouped.capacity_tokens) == ([2, 2], 64)
    assert kv.free_blocks((0,)) == BLOCKS - 5
    assert kv.free_blocks((1,)) == BLOCKS - 2
    before = {engine: list(blocks) for engine, blocks in paused.blocks.items()}
    kv.release((0, 1))
    assert paused.blocks == before
    assert kv.append(1, 16)
    assert len(paused.blocks[0]) == 4
    assert kv.group_of(0) == (0,)


def test_a_group_pools_memory():
    """Use case 3: what no engine holds, a group of p engines of p times the tokens does."""
    kv = _adaptor()
    assert not kv.allocate(1, 0, BLOCKS * BASE + 1)
    assert 1 not in kv.requests
    kv.bind((0, 1, 2, 3))
    assert kv.allocate(1, 0, ENGINES * BLOCKS * BASE)
    assert not kv.append(1)


def test_locate():
    kv = _adaptor()
    kv.bind((2, 3))
    kv.allocate(1, 2, 40)
    blocks = kv.requests[1].blocks[3]
    assert kv.locate(1, engine=3, token=33) == (blocks[1], 1)
    with pytest.raises(ValueError, match="40 tokens"):
        kv.locate(1, 3, 40)


def test_rehome_keeps_what_it_can_use():
    """Soft preempt: a request that ran in DP continues in the group, its KV computed anew."""
    kv = _adaptor()
    kv.allocate(1, 0, 64)
    old = list(kv.requests[1].blocks[0])
    kv.bind((0, 1))
    assert kv.rehome(1, engine=0, num_tokens=64)
    entry = kv.requests[1]
    assert entry.blocks[0] == old[:2]
    assert entry.parameters.block_size == 2 * BASE
    assert (kv.free_blocks((0,)), kv.free_blocks((1,))) == (BLOCKS - 2, BLOCKS - 2)


def test_rehome_changes_nothing_where_there_is_no_room():
    kv = _adaptor()
    kv.allocate(1, 0, 64)
    kv.allocate(2, 1, BLOCKS * BASE)
    kv.bind((0, 1))
    before = [list(blocks) for blocks in kv.requests[1].blocks.values()]
    assert not kv.rehome(1, 0, 64)
    assert [list(blocks) for blocks in kv.requests[1].blocks.values()] == before


def test_a_request_is_allocated_once():
    kv = _adaptor()
    kv.allocate(1, 0, 1)
    with pytest.raises(ValueError, match="blocks already"):
        kv.allocate(1, 1, 1)


class Conservation(RuleBasedStateMachine):
    """Whatever happens, each block of each engine is free once or owned by one request."""

    def __init__(self):
        super().__init__()
        self.kv, self.next = _adaptor(), 0

    @rule(group=st.sampled_from(all_groups(ENGINES)))
    def bind(self, group):
        tables = {r: {e: list(b) for e, b in entry.blocks.items()} for r, entry in self.kv.requests.items()}
        for engine in group.members:
            self.kv.release(self.kv.group_of(engine))
        self.kv.bind(tuple(group.members))
        assert tables == {r: entry.blocks for r, entry in self.kv.requests.items()}

    @rule(engine=st.integers(0, ENGINES - 1), tokens=st.integers(1, 300))
    def allocate(self, engine, tokens):
        fits = -(-tokens // (BASE * len(self.kv.group_of(engine)))) <= self.kv.free_blocks(
            self.kv.group_of(engine)
        )
        assert self.kv.allocate(self.next, engine, tokens) == fits
        self.next += 1

    @precondition(lambda self: self.kv.requests)
    @rule(data=st.data(), tokens=st.integers(1, 100))
    def append(self, data, tokens):
        request = data.draw(st.sampled_from(sorted(self.kv.requests)))
        before = self.kv.requests[request].num_tokens
        grown = self.kv.append(request, tokens)
        assert self.kv.requests[request].num_tokens == before + tokens * grown

    @precondition(lambda self: self.kv.requests)
    @rule(data=st.data(), engine=st.integers(0, ENGINES - 1), tokens=st.integers(1, 300))
    def rehome(self, data, engine, tokens):
        request = data.draw(st.sampled_from(sorted(self.kv.requests)))
        if self.kv.rehome(request, engine, tokens):
            assert self.kv.requests[request].engines == self.kv.group_of(engine)
            assert self.kv.requests[request].num_tokens == tokens

    @precondition(lambda self: self.kv.requests)
    @rule(data=st.data())
    def free(self, data):
        self.kv.free(data.draw(st.sampled_from(sorted(self.kv.requests))))

    @invariant()
    def blocks_are_conserved(self):
        for engine in range(ENGINES):
            owned = [b for entry in self.kv.requests.values() for b in entry.blocks.get(engine, ())]
            assert sorted(owned + self.kv._free[engine]) == list(range(BLOCKS))

    @invariant()
    def tokens_fit_and_no_block_is_idle(self):
        for entry in self.kv.requests.values():
            size = entry.parameters.block_size
            assert size == BASE * len(entry.engines)
            assert set(entry.blocks) == set(entry.engines)
            assert {len(blocks) for blocks in entry.blocks.values()} == {-(-entry.num_tokens // size)}


Conservation.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestConservation = Conservation.TestCase
