"""KV Cache Adaptor (Flying Serving, section 4.2): one block pool for every degree of tensor parallelism.

A physical block holds

    M_block = B * D_local * P_size                                                                        (2)

bytes: tokens, hidden width on this device, bytes of an element. A group of p engines keeps D / p of each token on each
of them, so a block of the same bytes holds p times the tokens:

    B(p) = B_base * p                                                                                     (3)

and the scheduler asks for blocks with (the two formulas are missing from the text; reconstructed from (2) and (3))

    block_size = B_base * p     (4a)        hidden_dim = D / p                                            (4b)

Blocks and their ids never change. What a block means is recorded per request, so that requests of different degrees lie
side by side in one pool, and a paused request keeps its KV while its engine works in a group.

What we add (source: ours): the allocator behind the table, one free list an engine; a request of a group holds as many
blocks on every member. `rehome` is what soft preempt needs: KV written in DP is of no use in TP, so the request keeps
as many of its blocks as it can use, and computes their content anew.
"""

from __future__ import annotations

from dataclasses import dataclass


def block_bytes(block_size: int, local_dim: int, element_bytes: int) -> int:
    """Equation (2). `element_bytes` covers what a layer keeps of a token, K and V both."""
    return block_size * local_dim * element_bytes


@dataclass(frozen=True)
class KVParameters:
    """What the KV cache and attention kernels are told for a request."""

    block_size: int  # tokens a block holds, equation (4a)
    local_dim: int  # hidden width on one engine, equation (4b)


@dataclass
class RequestEntry:
    """A row of the logical table."""

    engines: tuple[int, ...]
    parameters: KVParameters
    blocks: dict[int, list[int]]  # engine -> its physical block ids, in token order
    num_tokens: int = 0  # tokens whose KV is valid

    @property
    def capacity_tokens(self) -> int:
        """Tokens that fit its blocks."""
        return len(self.blocks[self.engines[0]]) * self.parameters.block_size


class KVCacheAdaptor:
    """The shared table of requests over the block pools of a node.

    Args:
        num_engines: DP engines.
        blocks_per_engine: Physical blocks of an engine.
        base_block_size: Tokens a block holds in DP, B_base.
        hidden_dim: Hidden width of K plus V of a token, D.
        element_bytes: Bytes of an element.
    """

    def __init__(
        self,
        num_engines: int,
        blocks_per_engine: int,
        base_block_size: int,
        hidden_dim: int,
        element_bytes: int = 2,
    ) -> None:
        self.base_block_size = base_block_size
        self.hidden_dim = hidden_dim
        self.block_bytes = block_bytes(base_block_size, hidden_dim, element_bytes)
        self.requests: dict[int, RequestEntry] = {}
        self._element_bytes = element_bytes
        self._free = [list(range(blocks_per_engine - 1, -1, -1)) for _ in range(num_engines)]
        self._group: list[tuple[int, ...]] = [(engine,) for engine in range(num_engines)]

    # -- modes ---------------------------------------------------------------------------------------------------------

    def parameters(self, degree: int) -> KVParameters:
        """Equations (4a) and (4b).

        Raises:
            ValueError: the hidden width does not divide by the degree.
        """
        if degree < 1 or self.hidden_dim % degree:
            raise ValueError(f"degree must divide hidden_dim={self.hidden_dim}, got {degree}")
        parameters = KVParameters(self.base_block_size * degree, self.hidden_dim // degree)
        assert (
            block_bytes(parameters.block_size, parameters.local_dim, self._element_bytes) == self.block_bytes
        )
        return parameters

    def bind(self, engines: tuple[int, ...]) -> None:
        """Lets engines work as one group from now on. No request, block or free list is touched."""
        self.parameters(len(engines))
        for engine in engines:
            self._group[engine] = engines

    def release(self, engines: tuple[int, ...]) -> None:
        """Lets engines work on their own again."""
        for engine in engines:
            self._group[engine] = (engine,)

    def group_of(self, engine: int) -> tuple[int, ...]:
        """Engines that work together with this one."""
        return self._group[engine]

    # -- requests ------------------------------------------------------------------------------------------------------

    def free_blocks(self, engines: tuple[int, ...]) -> int:
        """Blocks that a request of these engines could still take: those of the fullest member."""
        return min(len(self._free[engine]) for engine in engines)

    def allocate(self, request: int, engine: int, num_tokens: int) -> bool:
        """Gives a new request the blocks for its tokens on the group that `engine` works in. False if there are none.

        Raises:
            ValueError: the request has blocks already.
        """
        if request in self.requests:
            raise ValueError(f"request {request} has blocks already")
        engines = self._group[engine]
        entry = RequestEntry(engines, self.parameters(len(engines)), {member: [] for member in engines})
        if not self._grow(entry, num_tokens):
            return False
        self.requests[request] = entry
        return True

    def append(self, request: int, num_tokens: int = 1) -> bool:
        """Makes room for further tokens of a request. False, and nothing changed, if there are no blocks."""
        return self._grow(self.requests[request], num_tokens)

    def free(self, request: int) -> None:
        """Returns a request's blocks."""
        entry = self.requests.pop(request)
        for engine in entry.engines:
            self._free[engine].extend(reversed(entry.blocks[engine]))

    def rehome(self, request: int, engine: int, num_tokens: int) -> bool:
        """Moves a request to the group that `engine` works in; its KV is to be computed again.

        Blocks it has on members of that group stay its own as far as it needs them. False, and nothing changed, if the
        group lacks blocks.
        """
        old, engines = self.requests[request], self._group[engine]
        entry = RequestEntry(engines, self.parameters(len(engines)), {})
        needed = -(-num_tokens // entry.parameters.block_size)
        if any(needed > len(self._free[member]) + len(old.blocks.get(member, ())) for member in engines):
            return False
        entry.blocks = {member: old.blocks.get(member, [])[:needed] for member in engines}
        for member, blocks in old.blocks.items():
            self._free[member].extend(reversed(blocks[needed:] if member in engines else blocks))
        enough = self._grow(entry, num_tokens)
        assert enough
        self.requests[request] = entry
        return True

    def locate(self, request: int, engine: int, token: int) -> tuple[int, int]:
        """(physical block, offset) of a token of a request on an engine.

        Raises:
            ValueError: the token has no KV.
        """
        entry = self.requests[request]
        if not 0 <= token < entry.num_tokens:
            raise ValueError(f"request {request} has {entry.num_tokens} tokens, got token {token}")
        index, offset = divmod(token, entry.parameters.block_size)
        return entry.blocks[engine][index], offset

    def _grow(self, entry: RequestEntry, num_tokens: int) -> bool:
        total = entry.num_tokens + num_tokens
        needed = -(-total // entry.parameters.block_size)
        missing = {engine: needed - len(entry.blocks[engine]) for engine in entry.engines}
        if any(count > len(self._free[engine]) for engine, count in missing.items()):
            return False
        for engine, count in missing.items():
            entry.blocks[engine].extend(self._free[engine].pop() for _ in range(count))
        entry.num_tokens = total
        return True
