"""A pool of KV blocks with prefix caching, in plain Python: what vLLM's `BlockPool` does, block by block.

Written from the semantics of vLLM's `BlockPool` and `FullAttentionManager`: a free list whose head is handed out next,
and a dictionary from a block's content to the blocks that hold it, oldest first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Block:
    """A KV block. Its content stands for the tokens in it and all before them; None until it is full."""

    number: int
    users: int = 0
    content: Hashable = None


@dataclass(eq=False)
class BlockPool:
    """The blocks of one engine, and what is cached in them."""

    size: int
    free: list[Block] = field(default_factory=list)
    cached: dict[Hashable, list[Block]] = field(default_factory=dict)
    evictions: int = 0

    def __post_init__(self) -> None:
        self.free = [Block(number) for number in range(self.size)]

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self.size - len(self.free)

    def take(self, count: int) -> list[Block]:
        """Hands out the first free blocks; what was cached in them is forgotten."""
        while len(self.free) < count:  # an engine may be given a larger pool
            self.free.append(Block(self.size))
            self.size += 1
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self._forget(block)
            block.users = 1
        return taken

    def share(self, blocks: Iterable[Block]) -> None:
        """Gives cached blocks one more user."""
        for block in blocks:
            if block.users == 0:
                self.free.remove(block)
            block.users += 1

    def give_back(self, blocks: list[Block]) -> None:
        """Takes back a request's blocks, the last of them first.

        Nobody can ever hit a block without content, so such go to the head of the free list; the others go to its end,
        which makes it a list by last use.
        """
        worthless: list[Block] = []
        worthy: list[Block] = []
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                (worthless if block.content is None else worthy).append(block)
        self.free = worthless + self.free + worthy

    def remember(self, block: Block, content: Hashable) -> None:
        """Caches a full block. Another may hold the same; that one is found first."""
        block.content = content
        self.cached.setdefault(content, []).append(block)

    def longest_hit(self, contents: Iterable[Hashable]) -> list[Block]:
        """Blocks that hold the longest cached prefix."""
        found = []
        for content in contents:
            if content not in self.cached:
                break
            found.append(self.cached[content][0])
        return found

    def _forget(self, block: Block) -> None:
        if block.content is None:
            return
        holders = self.cached[block.content]
        holders.remove(block)
        if not holders:
            del self.cached[block.content]
        block.content = None
        self.evictions += 1
