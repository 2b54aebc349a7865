"""What routers remember of the prompts that they sent where: their guess at what engines' prefix caches hold.

A prompt is its block ids (`RoutedRequest.hash_ids`). Two indices, as two families of routers keep them: a radix tree
over ids that all places share and that is pruned now and then, and a least-recently-used list of ids for each place.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

_MOST_BITS = 4096  # sets of places whose bits are kept


class Node:
    """An edge of the tree with the node it leads to."""

    __slots__ = ("children", "holders", "ids", "parent", "used")

    def __init__(
        self,
        ids: NDArray[np.int32],
        parent: Node | None,
        holders: NDArray[np.bool_],
        used: NDArray[np.int64],
    ) -> None:
        self.ids = ids
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.holders = holders  # (P,) which places have had a prompt that goes through here
        self.used = used  # (P,) tick of the last prompt that ended here; 0 where it went on

    def is_leaf_of(self, place: int) -> bool:
        """Whether the place's prompts go no further."""
        return bool(self.holders[place]) and not any(c.holders[place] for c in self.children.values())


class PrefixTree:
    """A radix tree of prompts whose nodes know which places had them.

    As vllm-router's (0.1.17, `tree.rs`): a prompt that ends in the midst of an edge, or leaves it there, splits it; a
    place's node is as old as its last prompt that ended there, and a node that prompts only passed is older than all;
    pruning drops a place's oldest leaves, whole edges, until what is left fits.

    Args:
        num_places: P.
    """

    def __init__(self, num_places: int) -> None:
        self._num_places = num_places
        self._root = self._node(np.zeros(0, np.int32), None)
        self._tick = 0
        self.sizes = np.zeros(num_places, np.int64)  # (P,) ids held for each place
        self.parted: Node | None = None  # the lower half of the edge that the last prompt split

    def match(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """Length of the longest prefix of a prompt that each place has had, (P,) ids."""
        matched = np.zeros(self._num_places, np.int64)
        alive = np.ones(self._num_places, bool)
        node, at = self._root, 0
        while at < len(ids):
            child = node.children.get(int(ids[at]))
            if child is None:
                break
            alive &= child.holders
            shared = _shared(child.ids, ids[at:])
            matched += shared * alive
            if shared < len(child.ids):
                break
            node, at = child, at + shared
        return matched

    def insert(self, ids: NDArray[np.int32], place: int) -> Node:
        """Remembers that a prompt was sent to a place; returns the node where it ends."""
        node, at, self.parted = self._root, 0, None
        while at < len(ids):
            child = node.children.get(int(ids[at]))
            if child is None:
                child = node.children[int(ids[at])] = self._node(ids[at:].copy(), node)
            else:
                shared = _shared(child.ids, ids[at:])
                if shared < len(child.ids):
                    self.parted = child
                    child = self._split(child, shared)
            if not child.holders[place]:
                child.holders[place] = True
                self.sizes[place] += len(child.ids)
            node, at = child, at + len(child.ids)
        self._tick += 1
        node.used[place] = self._tick
        return node

    def prune(self, capacity: int) -> None:
        """Drops the oldest leaves of every place that holds more than `capacity` ids."""
        over = np.flatnonzero(self.sizes > capacity).tolist()
        nodes = list(self._nodes())
        order = count(len(nodes))  # of leaves that are equally old, the one that became one later goes later
        leaves = [(int(n.used[p]), i, p, n) for i, n in enumerate(nodes) for p in over if n.is_leaf_of(p)]
        heapq.heapify(leaves)
        while leaves:
            _, _, place, node = heapq.heappop(leaves)
            if self.sizes[place] <= capacity:
                continue
            parent = self._drop(node, place)
            if parent is not None and parent.is_leaf_of(place):
                heapq.heappush(leaves, (int(parent.used[place]), next(order), place, parent))

    def _drop(self, node: Node, place: int) -> Node | None:
        """Forgets a place's leaf. Returns the node above it, None at the root."""
        node.holders[place] = False
        node.used[place] = 0
        self.sizes[place] -= len(node.ids)
        parent = node.parent
        if parent is not None and not node.children and not node.holders.any():
            del parent.children[int(node.ids[0])]
        return None if parent is self._root else parent

    def _split(self, node: Node, at: int) -> Node:
        """Parts an edge in two. Returns the upper part, which takes over who had it and when."""
        assert node.parent is not None
        upper = Node(node.ids[:at], node.parent, node.holders.copy(), node.used.copy())
        node.parent.children[int(upper.ids[0])] = upper
        node.ids, node.parent = node.ids[at:], upper
        upper.children[int(node.ids[0])] = node
        return upper

    def _node(self, ids: NDArray[np.int32], parent: Node | None) -> Node:
        return Node(ids, parent, np.zeros(self._num_places, bool), np.zeros(self._num_places, np.int64))

    def _nodes(self) -> Iterator[Node]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node


def _shared(edge: NDArray[np.int32], ids: NDArray[np.int32]) -> int:
    """How many ids two sequences have in common from their beginning."""
    length = min(len(edge), len(ids))
    differs = edge[:length] != ids[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


class BlockIndex:
    """The ids that each place used last.

    As llm-d's approximate prefix index (llm-d-router, `approximateprefix/indexer.go`): an LRU list for each place,
    which every id of a prompt enters in turn.

    Args:
        capacities: (P,) ids that each place holds at most.
    """

    def __init__(self, capacities: NDArray[np.int64]) -> None:
        self._capacities: list[int] = capacities.tolist()
        self._lists: list[OrderedDict[int, None]] = [OrderedDict() for _ in self._capacities]
        self._holders: dict[int, int] = {}  # id -> places that hold it, one a bit
        self._bits: dict[int, NDArray[np.int64]] = {}  # the same, (P,) 0 or 1

    def match(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """How many ids of a prompt each place holds, (P,); of those before the first that nobody holds.

        An id counts even where the place lacks one before it, as in llm-d.
        """
        runs: dict[int, int] = {}  # places that hold a block -> blocks
        for block in ids:
            holders = self._holders.get(block, 0)
            if not holders:
                break
            runs[holders] = runs.get(holders, 0) + 1
        counts = np.zeros(len(self._capacities), np.int64)
        for holders, blocks in runs.items():
            counts += blocks * self._as_bits(holders)
        return counts

    def insert(self, ids: Sequence[int], place: int) -> None:
        """Remembers that a prompt was sent to a place."""
        blocks, holders, bit = self._lists[place], self._holders, 1 << place
        for block in ids:
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = None
                holders[block] = holders.get(block, 0) | bit
        while len(blocks) > self._capacities[place]:
            block, _ = blocks.popitem(last=False)
            holders[block] ^= bit
            if not holders[block]:
                del holders[block]

    def _as_bits(self, holders: int) -> NDArray[np.int64]:
        bits = self._bits.get(holders)
        if bits is None:
            if len(self._bits) >= _MOST_BITS:
                self._bits.clear()
            bits = np.array([holders >> place & 1 for place in range(len(self._capacities))], np.int64)
            self._bits[holders] = bits
        return bits
