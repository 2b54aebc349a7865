import numpy as np
import pytest

from serving_gym.baselines.flying_serving.weights_manager import (
    COLUMNS,
    ROWS,
    AttentionShape,
    WeightsManager,
    activate,
    activate_qkv,
)

TOKENS, HIDDEN = 5, 16


def _attention(q, k, v, shape):
    """Causal attention over `shape`'s heads; (tokens, num_heads * head_dim)."""
    n = len(q)
    heads = []
    for head in range(shape.num_heads):
        kv = head * shape.num_kv_heads // shape.num_heads
        a, b = (
            slice(head * shape.head_dim, (head + 1) * shape.head_dim),
            slice(kv * shape.head_dim, (kv + 1) * shape.head_dim),
        )
        scores = np.where(np.tri(n, dtype=bool), q[:, a] @ k[:, b].T, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, b])
    return np.concatenate(heads, axis=1)


@pytest.mark.parametrize("num_kv_heads", [8, 4, 2, 1])
@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_figure_4(num_kv_heads, degree):
    """Column-parallel W_QKV, row-parallel W_O and one all-reduce give what one engine alone computes."""
    rng = np.random.default_rng(0)
    shape = AttentionShape(num_heads=8, num_kv_heads=num_kv_heads, head_dim=2)
    x = rng.normal(size=(TOKENS, HIDDEN))
    qkv = rng.normal(size=(HIDDEN, (8 + 2 * num_kv_heads) * 2))
    out = rng.normal(size=(16, HIDDEN))

    whole = _attention(*(x @ w for w in shape.segments(qkv)), shape)
    projected = whole @ out

    local = [
        _attention(*(x @ w for w in activate_qkv(qkv, shape, r, degree)), shape.shard(degree))
        for r in range(degree)
    ]
    np.testing.assert_allclose(np.concatenate(local, axis=1), whole)
    partial = [local[r] @ activate(out, ROWS, r, degree) for r in range(degree)]
    np.testing.assert_allclose(np.sum(partial, axis=0), projected)


@pytest.mark.parametrize("dim", [ROWS, COLUMNS])
def test_shards_are_views_that_tile_the_weight(dim):
    weight = np.arange(64.0).reshape(8, 8)
    shards = [activate(weight, dim, rank, 4) for rank in range(4)]
    assert all(np.shares_memory(shard, weight) and shard.base is weight.base for shard in shards)
    np.testing.assert_array_equal(np.concatenate(shards, axis=dim), weight)


def test_qkv_shards_are_views():
    qkv = np.zeros((4, 16))
    shape = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=2)
    assert all(np.shares_memory(part, qkv) for part in activate_qkv(qkv, shape, 3, 4))


def test_ranks_beyond_the_kv_heads_share_them():
    shape = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=1)
    qkv = np.arange(8.0)[None]  # columns: q0 q1 q2 q3 k0 k1 v0 v1
    parts = [[part.ravel().tolist() for part in activate_qkv(qkv, shape, rank, 4)] for rank in range(4)]
    assert parts == [[[0], [4], [6]], [[1], [4], [6]], [[2], [5], [7]], [[3], [5], [7]]]


@pytest.mark.parametrize(
    ("rank", "degree", "message"), [(2, 2, "rank"), (-1, 2, "rank"), (0, 3, "does not divide")]
)
def test_impossible_shards_are_refused(rank, degree, message):
    with pytest.raises(ValueError, match=message):
        activate(np.zeros((8, 8)), ROWS, rank, degree)


def test_heads_must_divide():
    with pytest.raises(ValueError, match="does not divide"):
        AttentionShape(num_heads=6, num_kv_heads=3, head_dim=1).shard(2)
    with pytest.raises(ValueError, match="columns"):
        AttentionShape(num_heads=2, num_kv_heads=2, head_dim=1).segments(np.zeros((1, 5)))


def test_the_manager_loads_once_and_switches_without_copying():
    weight = np.arange(16.0).reshape(4, 4)
    manager = WeightsManager()
    manager.load("o_proj", weight, ROWS)
    manager.switch(rank=1, degree=2)
    assert np.shares_memory(manager.active("o_proj"), weight)
    np.testing.assert_array_equal(manager.active("o_proj"), weight[2:])
    with pytest.raises(ValueError, match="does not divide"):
        manager.switch(rank=0, degree=3)
    assert (manager.rank, manager.degree) == (1, 2)
    manager.switch(rank=0, degree=1)
    np.testing.assert_array_equal(manager.active("o_proj"), weight)
    with pytest.raises(ValueError, match="loaded already"):
        manager.load("o_proj", weight, ROWS)
