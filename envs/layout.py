"""Layouts of a node: how its base engines are merged into aligned groups.

A node carries `num_base` base engines of equal width. A *group* is an aligned run of them, of power-of-two length; it
serves as one tensor-parallel engine. A *layout* is a partition of the node into groups, written as the tuple of group
lengths from left to right: (8,) is one engine over everything, (1, 1, 1, 1, 1, 1, 1, 1) eight independent ones. There
are 26 layouts of 8 base engines, 5 of 4 and 2 of 2 (f(2n) = f(n)^2 + 1).

Groups are the only ones for which Flying Serving pre-builds communicators (section 4.3.2): contiguous and aligned.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

Layout = tuple[int, ...]


class Group(NamedTuple):
    """An aligned run of base engines."""

    first: int  # leftmost base engine
    length: int  # base engines, a power of two

    @property
    def members(self) -> range:
        """Base engines of the group."""
        return range(self.first, self.first + self.length)

    def overlaps(self, other: Group) -> bool:
        """Whether the two groups share a base engine."""
        return self.first < other.first + other.length and other.first < self.first + self.length

    def contains(self, other: Group) -> bool:
        """Whether `other` lies inside this group."""
        return self.first <= other.first and other.first + other.length <= self.first + self.length


@lru_cache(maxsize=None)
def all_groups(num_base: int) -> tuple[Group, ...]:
    """Every aligned group of a node, narrow ones first: 15 for 8 base engines.

    Raises:
        ValueError: `num_base` is not a power of two.
    """
    if num_base < 1 or num_base & (num_base - 1):
        raise ValueError(f"num_base must be a power of two, got {num_base}")
    lengths = [1 << k for k in range(num_base.bit_length())]
    return tuple(Group(first, length) for length in lengths for first in range(0, num_base, length))


@lru_cache(maxsize=None)
def all_layouts(num_base: int) -> tuple[Layout, ...]:
    """Every layout of a node, from all merged to all apart."""
    all_groups(num_base)
    if num_base == 1:
        return ((1,),)
    halves = all_layouts(num_base // 2)
    return ((num_base,),) + tuple(left + right for left in halves for right in halves)


@lru_cache(maxsize=None)
def groups_of(layout: Layout) -> tuple[Group, ...]:
    """The groups of a layout, left to right.

    Raises:
        ValueError: a group is not an aligned power of two, or the lengths do not add up to a power of two.
    """
    known = set(all_groups(sum(layout)))
    groups, first = [], 0
    for length in layout:
        group = Group(first, length)
        if group not in known:
            raise ValueError(
                f"layout {layout} has a group of {length} at base engine {first}; "
                "groups are aligned and of power-of-two length"
            )
        groups.append(group)
        first += length
    return tuple(groups)


@lru_cache(maxsize=4096)
def changed_regions(current: tuple[Group, ...], target: tuple[Group, ...]) -> tuple[Group, ...]:
    """The smallest aligned runs that must change to get from one partition to the other.

    Each is either one current group (to be split) or one target group (to be merged), so regions can switch
    independently of each other.
    """
    differing = set(current) ^ set(target)
    outermost = [g for g in differing if not any(o != g and o.contains(g) for o in differing)]
    return tuple(sorted(outermost))


def format_layout(layout: Layout) -> str:
    """`8`, `4+2+1+1`, or `8x1`: how a layout is written in logs and configs."""
    if len(set(layout)) == 1 and len(layout) > 1:
        return f"{len(layout)}x{layout[0]}"
    return "+".join(str(length) for length in layout)
