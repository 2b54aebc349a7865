"""Links: what is sent arrives, nothing goes faster than its link, and shares are max-min fair."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving_gym.envs.simulator.fleet.links import STORAGE, Links, max_min_rates
from serving_gym.envs.simulator.kernel.state import PS_PER_S

CAPACITY, STORAGE_RATE = 25_000_000_000, 3_310_000_000
pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(4, 9)), max_size=8)


def loads(flows: list[tuple[int, int]], rates: list[int]) -> dict[tuple[str, int], int]:
    """Bytes a second on every link."""
    used: dict[tuple[str, int], int] = {}
    for (source, target), rate in zip(flows, rates, strict=True):
        for link in (("out", source), ("in", target)):
            used[link] = used.get(link, 0) + rate
    return used


@given(pairs, st.integers(1, 10**11))
def test_no_link_is_above_its_capacity_and_none_could_carry_more(flows, capacity):
    rates = max_min_rates(flows, capacity)
    used = loads(flows, rates)
    assert all(total <= capacity for total in used.values())
    for (source, target), rate in zip(flows, rates, strict=True):
        highest = {
            ("out", source): max(r for (s, _), r in zip(flows, rates, strict=True) if s == source),
            ("in", target): max(r for (_, t), r in zip(flows, rates, strict=True) if t == target),
        }
        assert any(
            used[link] > capacity - len(flows) and rate >= most - len(flows) for link, most in highest.items()
        ), "each transfer has a link that is full, up to rounding, and on which no other has more"


class Ledger:
    """Counts what links carry, apart from their own books."""

    def __init__(self) -> None:
        self.links = Links(CAPACITY, STORAGE_RATE)
        self.now = 0
        self.rates: dict[int, int] = {}
        self.carried: dict[int, int] = {}
        self.sizes: dict[int, int] = {}

    def advance(self, until: int) -> None:
        """Lets time pass; transfers that are complete end."""
        while (first := min(self.links.flows, key=lambda flow: flow.due_ps, default=None)) is not None:
            if first.due_ps > until:
                break
            self._pass(first.due_ps)
            excess = self.carried[first.target] - self.sizes[first.target] * PS_PER_S
            assert 0 <= excess < CAPACITY, "complete, to the picosecond"
            self.links.end(self.now, first.target)
            self._note()
        self._pass(until)

    def act(self, target: int, source: int, size: int) -> None:
        """Begins a transfer, or moves the one there is."""
        if target in self.rates:
            self.links.move(self.now, target, source)
        else:
            self.carried[target], self.sizes[target] = 0, size
            self.links.begin(self.now, target, source, size)
        self._note()

    def _pass(self, until: int) -> None:
        for target, rate in self.rates.items():
            self.carried[target] += rate * (until - self.now)
        self.now = until

    def _note(self) -> None:
        self.rates = {flow.target: flow.rate for flow in self.links.flows}


events = st.tuples(
    st.integers(0, 3 * PS_PER_S), st.integers(4, 9), st.integers(STORAGE, 3), st.integers(1, 10**11)
)


@given(st.lists(events, min_size=1, max_size=12))
def test_bytes_delivered_are_the_size(schedule):
    """Whatever begins, moves and ends meanwhile: rate x time, summed over a transfer, is its size."""
    ledger = Ledger()
    for gap, target, source, size in schedule:
        ledger.advance(ledger.now + gap)
        ledger.act(target, source, size)
    while ledger.links.flows:
        ledger.advance(min(flow.due_ps for flow in ledger.links.flows))
    for target, size in ledger.sizes.items():
        assert 0 <= ledger.carried[target] - size * PS_PER_S < CAPACITY, "to the picosecond"


def test_two_transfers_share_their_source_and_one_from_storage_does_not():
    links = Links(CAPACITY, STORAGE_RATE)
    for target, source in ((1, 0), (2, 0), (3, STORAGE)):
        links.begin(0, target, source, 50_000_000_000)
    assert [flow.rate for flow in links.flows] == [CAPACITY // 2, CAPACITY // 2, STORAGE_RATE]
    assert links.due_ps(1) == 4 * PS_PER_S
    links.end(PS_PER_S, 2)
    assert links.due_ps(1) == PS_PER_S + int(37.5 / 25 * PS_PER_S)
    links.move(2 * PS_PER_S, 1, STORAGE)
    assert np.isclose(links.due_ps(1) / PS_PER_S, 2 + 12.5 / 3.31)


def test_a_copy_and_frequent_looks_change_nothing():
    links = Links(CAPACITY, STORAGE_RATE)
    links.begin(0, 1, 0, 7_777_777_777)
    links.begin(12345, 2, 0, 3_333_333_333)
    copy = links.fork()
    for now in range(20_000, 10**9, 10**8 + 7):
        copy.rebalance(now)
    assert [flow.due_ps for flow in copy.flows] == [flow.due_ps for flow in links.flows]
