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


@lru_cache(maxsize=64)
def all_groups(num_base: int, longest: int | None = None) -> tuple[Group, ...]:
    """Every aligned group of a node, narrow ones first: 15 for 8 base engines.

    Args:
        num_base: Base engines.
        longest: Longest group; None: the whole node.

    Raises:
        ValueError: `longest` is not a power of two that divides `num_base`.
    """
    longest = num_base if longest is None else longest
    if longest < 1 or longest & (longest - 1) or num_base < 1 or num_base % longest:
        raise ValueError(f"the longest group must be a power of two that divides {num_base}, got {longest}")
    lengths = [1 << k for k in range(longest.bit_length())]
    return tuple(Group(first, length) for length in lengths for first in range(0, num_base, length))


@lru_cache(maxsize=64)
def all_layouts(num_base: int) -> tuple[Layout, ...]:
    """Every layout of a node, from all merged to all separate."""
    all_groups(num_base)
    if num_base == 1:
        return ((1,),)
    halves = all_layouts(num_base // 2)
    return ((num_base,), *(left + right for left in halves for right in halves))


@lru_cache(maxsize=4096)
def groups_of(layout: Layout) -> tuple[Group, ...]:
    """The groups of a layout, left to right.

    Raises:
        ValueError: a group is not aligned or not a power of two.
    """
    groups, first = [], 0
    for length in layout:
        group = Group(first, length)
        if length < 1 or length & (length - 1) or first % length:
            raise ValueError(
                f"layout {layout} has a group of {length} at base engine {first}; "
                "groups are aligned and of power-of-two length"
            )
        groups.append(group)
        first += length
    return tuple(groups)


@lru_cache(maxsize=4096)
def layout_of(groups: tuple[Group, ...]) -> Layout:
    """The layout of groups given left to right."""
    return tuple(group.length for group in groups)


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
