"""Weights and KV on their way to replicas: transfers that share network links max-min fairly, in integers.

A replica has one network link, whose two directions are apart. Rates are whole bytes per second, and what is left of a
transfer is counted in 1e-12 bytes, which is what one byte per second carries in a picosecond: sums are exact, so that
looking at a transfer, or copying it, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from serving_gym.envs.simulator.kernel.state import NEVER, PS_PER_S

STORAGE = -1  # the source of a transfer that comes from storage, over no network link
WEIGHTS = -1  # the cargo of a transfer to a starting replica; of any other, the request whose KV it is


@dataclass
class Flow:
    """A transfer to a replica.

    Args:
        target: Place it goes to.
        source: Place it comes from, or STORAGE.
        remaining: What is still to come, 1e-12 bytes.
        updated_ps: When `remaining` was true.
        rate: Bytes per second since then.
        cargo: Row of the workload whose KV it is, or WEIGHTS.
    """

    target: int
    source: int
    remaining: int
    updated_ps: int
    rate: int = 0
    cargo: int = WEIGHTS

    @property
    def due_ps(self) -> int:
        """When the last byte arrives at the present rate, or NEVER."""
        return self.updated_ps - (-self.remaining // self.rate) if self.rate else NEVER


@dataclass
class Links:
    """All transfers of a fleet.

    Args:
        link_bytes_per_s: Capacity of a replica's link, each way, bytes/s.
        storage_bytes_per_s: Rate of a transfer from storage, bytes/s.
        flows: Transfers under way, in the order in which they began.
    """

    link_bytes_per_s: int
    storage_bytes_per_s: int
    flows: list[Flow] = field(default_factory=list)

    def fork(self) -> Links:
        """A copy."""
        return replace(self, flows=[replace(flow) for flow in self.flows])

    def begin(self, now_ps: int, target: int, source: int, size_bytes: int, cargo: int = WEIGHTS) -> None:
        """Begins a transfer of `size_bytes` to a place."""
        self.flows.append(Flow(target, source, size_bytes * PS_PER_S, now_ps, cargo=cargo))
        self.rebalance(now_ps)

    def end(self, now_ps: int, target: int, cargo: int = WEIGHTS) -> None:
        """Ends a transfer to a place, complete or not, if there is one."""
        self.flows = [flow for flow in self.flows if (flow.target, flow.cargo) != (target, cargo)]
        self.rebalance(now_ps)

    def move(self, now_ps: int, target: int, source: int) -> None:
        """Lets the transfer of weights to a place go on from another source with the bytes that are left."""
        self._to(target, WEIGHTS).source = source
        self.rebalance(now_ps)

    def due_ps(self, target: int, cargo: int = WEIGHTS) -> int:
        """When a transfer to a place is complete at the present rates."""
        return self._to(target, cargo).due_ps

    def targets_of(self, source: int) -> list[int]:
        """Places that a place sends weights to."""
        return [flow.target for flow in self.flows if flow.source == source and flow.cargo == WEIGHTS]

    def rebalance(self, now_ps: int) -> None:
        """Counts what has arrived until now and shares the links anew."""
        for flow in self.flows:
            flow.remaining = max(flow.remaining - flow.rate * (now_ps - flow.updated_ps), 0)
            flow.updated_ps = now_ps
            flow.rate = self.storage_bytes_per_s
        shared = [flow for flow in self.flows if flow.source != STORAGE]
        rates = max_min_rates([(flow.source, flow.target) for flow in shared], self.link_bytes_per_s)
        for flow, rate in zip(shared, rates, strict=True):
            flow.rate = rate

    def _to(self, target: int, cargo: int) -> Flow:
        return next(flow for flow in self.flows if (flow.target, flow.cargo) == (target, cargo))


def max_min_rates(pairs: Sequence[tuple[int, int]], capacity: int) -> list[int]:
    """Max-min fair rates of transfers over links of equal capacity, by filling the fullest link first.

    Args:
        pairs: Source and target of each transfer; it takes the link out of the one and the link into the other.
        capacity: Of each link in each direction, bytes/s.

    Returns:
        Whole bytes per second; together no more than the capacity on any link.
    """
    links = [(("out", source), ("in", target)) for source, target in pairs]
    left = {link: capacity for both in links for link in both}
    rates, unset = [0] * len(pairs), set(range(len(pairs)))
    while unset:
        users = {link: [i for i in sorted(unset) if link in links[i]] for link in left}
        share, fullest = min((left[link] // len(of), link) for link, of in users.items() if of)
        for i in users[fullest]:
            rates[i] = share
            unset.remove(i)
            for link in links[i]:
                left[link] -= share
    return rates
