"""What the network sees: one vector for the state, one for each candidate action.

Both are computed from the observation alone, so the policy runs wherever the observation can be had. An action is
described by what it would do (how wide the engines become, how much of the node changes, what runs there now) and not
by its number, so layouts that differ only by a permutation share what is learned.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.dp_tp.action import NUM_MODES, encode_action
from serving_gym.envs.dp_tp.observation import CLASS_FEATURES, CLUSTER_FEATURES, ENGINE_FEATURES
from serving_gym.envs.interface.commands import Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import Layout, all_layouts, groups_of

_LOAD = tuple(
    ENGINE_FEATURES.index(name)
    for name in (
        "num_running",
        "num_waiting",
        "prefill_backlog_s",
        "kv_usage",
        "context_tokens",
        "iteration_s",
        "num_paused",
    )
)
_FLAGS = tuple(ENGINE_FEATURES.index(name) for name in ("group_width", "draining", "speculative", "down"))
_CLUSTER, _CLASS = len(CLUSTER_FEATURES), len(CLASS_FEATURES)
# Gentlest first: where engines are merged, what runs goes on; where they are split, it moves at once.
STAYING = (SwitchMode.SEQUENTIAL, SwitchMode.SOFT, SwitchMode.HARD)
MERGING = (SwitchMode.SOFT, SwitchMode.SEQUENTIAL, SwitchMode.HARD)
SPLITTING = (SwitchMode.HARD, SwitchMode.SEQUENTIAL, SwitchMode.SOFT)
_MOVED = tuple(ENGINE_FEATURES.index(name) for name in ("num_running", "num_waiting", "context_tokens"))


def num_ranks(num_base: int) -> int:
    """Different widths a group can have."""
    return num_base.bit_length()


def state_size(num_base: int) -> int:
    """Length of the state vector."""
    return 2 * len(_LOAD) + len(_FLAGS) + num_ranks(num_base) + len(CLUSTER_FEATURES) + len(CLASS_FEATURES)


def action_size(num_base: int, started: bool = False) -> int:
    """Length of an action vector.

    Args:
        num_base: Base engines of the node.
        started: Whether what the policy that was started from would do is among the actions.
    """
    return num_ranks(num_base) + 3 + 2 * len(_MOVED) + NUM_MODES + 1 + started


@lru_cache(maxsize=8)
def layout_tables(num_base: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First member and log2 length of the group of each base engine, (layouts, num_base) each."""
    layouts = all_layouts(num_base)
    first = np.zeros((len(layouts), num_base), np.int64)
    rank = np.zeros((len(layouts), num_base), np.int64)
    for i, layout in enumerate(layouts):
        for group in groups_of(layout):
            first[i, group.first : group.first + group.length] = group.first
            rank[i, group.first : group.first + group.length] = group.length.bit_length() - 1
    return first, rank


@lru_cache(maxsize=65536)
def shortlist(target: Layout, mask: bytes, even: bool = False) -> NDArray[np.int64]:
    """Possible actions worth comparing: of layouts alike but for a permutation, the one that changes least.

    Args:
        target: The layout that staying means.
        mask: The action mask's bytes.
        even: Whether but for that one only layouts of equal engines are, each reached in one way, the gentlest that is
            possible.
    """
    allowed = np.frombuffer(mask, bool).reshape(-1, NUM_MODES)
    layouts = all_layouts(sum(target))
    first, rank = layout_tables(sum(target))
    here = layouts.index(target)
    changed = ((first != first[here]) | (rank != rank[here])).sum(axis=1)
    best: dict[Layout, int] = {}
    for i in np.flatnonzero(allowed.any(axis=1)):
        if even and i != here and len(set(layouts[i])) > 1:
            continue
        kind = tuple(sorted(layouts[i]))
        if kind not in best or changed[i] < changed[best[kind]]:
            best[kind] = int(i)
    if even:
        ways = {
            i: [_gentlest(allowed[i], bool((rank[i] > rank[here]).any()), i == here)] for i in best.values()
        }
    else:
        ways = {i: np.flatnonzero(allowed[i]).tolist() for i in best.values()}
    return np.array([i * NUM_MODES + mode for i in sorted(ways) for mode in ways[i]], np.int64)


def _gentlest(allowed: NDArray[np.bool_], merges: bool, stays: bool) -> int:
    """The way to a layout that makes the fewest wait, of those that are possible.

    Args:
        allowed: (modes,), which are.
        merges: Whether engines become wider.
        stays: Whether it is the layout that there is.
    """
    order = STAYING if stays else MERGING if merges else SPLITTING
    return next(int(mode) for mode in order if allowed[mode])


def stay_action(target: Layout) -> int:
    """The action that keeps a layout."""
    return all_layouts(sum(target)).index(target) * NUM_MODES + int(SwitchMode.SEQUENTIAL)


def nearest_action(action: object, target: Layout, mask: NDArray[np.bool_]) -> int | None:
    """Number of the switch that a command means, in another mode where its own is not offered; None: there is none.

    What is deployed anew is switched to; what is not offered, or says nothing of the layout, keeps it.

    Args:
        action: A command, or None.
        target: The layout that staying means.
        mask: (actions,), which are possible.
    """
    if isinstance(action, Redeploy):
        action = SetLayout(action.layout, SwitchMode.SEQUENTIAL)
    if isinstance(action, SetLayout):
        for mode in (action.mode, SwitchMode.SEQUENTIAL, SwitchMode.HARD):
            index = encode_action(SetLayout(action.layout, mode))
            if mask[index]:
                return index
        return stay_action(target)
    return stay_action(target) if action is None else None


def encode_state(
    engines: NDArray[np.float32], cluster: NDArray[np.float32], target: Layout
) -> NDArray[np.float32]:
    """(state_size,), the observation pooled over base engines and classes, and how wide engines are meant to be."""
    num_base = sum(target)
    _, rank = layout_tables(num_base)
    out = np.empty(state_size(num_base), np.float32)
    _pool(engines, cluster, rank[all_layouts(num_base).index(target)], _LOAD, _FLAGS, out)
    return out


def encode_actions(
    engines: NDArray[np.float32], target: Layout, actions: NDArray[np.int64]
) -> NDArray[np.float32]:
    """(len(actions), action_size), what each action would do."""
    num_base = sum(target)
    first, rank = layout_tables(num_base)
    out = np.empty((len(actions), action_size(num_base)), np.float32)
    _describe(engines, first, rank, all_layouts(num_base).index(target), actions, _MOVED, out)
    return out


@njit(cache=True)
def _pool(
    engines: NDArray[np.float32],
    cluster: NDArray[np.float32],
    rank: NDArray[np.int64],
    load: tuple[int, ...],
    flags: tuple[int, ...],
    out: NDArray[np.float32],
) -> None:
    num_base = len(engines)
    out[:] = 0.0
    k = 0
    for column in load:
        highest = np.float32(0.0)
        for base in range(num_base):
            value = engines[base, column]
            out[k] += value / num_base
            highest = max(highest, value)
        out[k + 1] = highest
        k += 2
    for column in flags:
        for base in range(num_base):
            out[k] += engines[base, column] / num_base
        k += 1
    for base in range(num_base):
        out[k + rank[base]] += 1.0 / num_base
    begin = len(out) - _CLUSTER - _CLASS
    out[begin : begin + _CLUSTER] = cluster[:_CLUSTER]
    begin += _CLUSTER
    for column in range(_CLASS):  # the highest of all classes
        out[begin + column] = cluster[_CLUSTER + column :: _CLASS].max()


@njit(cache=True)
def _describe(
    engines: NDArray[np.float32],
    first: NDArray[np.int64],
    rank: NDArray[np.int64],
    here: int,
    actions: NDArray[np.int64],
    moved: tuple[int, ...],
    out: NDArray[np.float32],
) -> None:
    num_base = len(engines)
    share = np.float32(1.0 / num_base)
    out[:] = 0.0
    ranks = 0
    while 1 << ranks <= num_base:
        ranks += 1
    for a in range(len(actions)):
        layout, mode = actions[a] // 3, actions[a] % 3
        row = out[a]
        changes = False
        for base in range(num_base):
            row[rank[layout, base]] += share
            same = rank[layout, base] == rank[here, base] and first[layout, base] == first[here, base]
            if same:
                continue
            changes = True
            row[ranks] += share
            merged = rank[layout, base] > rank[here, base]
            row[ranks + (1 if merged else 2)] += share
            k = ranks + 3 + (0 if merged else len(moved))
            for column in moved:
                row[k] += engines[base, column] * share
                k += 1
        if changes:
            row[len(row) - 4 + mode] = 1.0
        elif mode == 2:
            row[len(row) - 1] = 1.0
