"""Aligned groups of ranks and layouts of them, as `envs.interface.layout` has, which servers may lack."""

from __future__ import annotations

from typing import NamedTuple

Layout = tuple[int, ...]


class Group(NamedTuple):
    """An aligned run of ranks that serves as one engine."""

    first: int
    length: int  # ranks, a power of two: the degree of tensor parallelism

    @property
    def ranks(self) -> range:
        """Members."""
        return range(self.first, self.first + self.length)

    def overlaps(self, other: Group) -> bool:
        """Whether the two share a rank."""
        return self.first < other.first + other.length and other.first < self.first + self.length

    def contains(self, other: Group) -> bool:
        """Whether `other` lies inside this group."""
        return self.first <= other.first and other.first + other.length <= self.first + self.length


def degrees(world: int) -> tuple[int, ...]:
    """Degrees of tensor parallelism of a world of ranks: 1, 2, 4, ... up to all of them."""
    return tuple(1 << k for k in range(world.bit_length()))


def aligned(world: int, degree: int) -> tuple[Group, ...]:
    """The groups of one degree, left to right."""
    return tuple(Group(first, degree) for first in range(0, world, degree))


def all_groups(world: int) -> tuple[Group, ...]:
    """Every aligned group, narrow ones first."""
    return tuple(group for degree in degrees(world) for group in aligned(world, degree))


def groups_of(layout: Layout, world: int) -> tuple[Group, ...]:
    """The groups of a layout, left to right.

    Raises:
        ValueError: it does not add up to the ranks, or has a group that is not aligned or not a power of two.
    """
    if sum(layout) != world:
        raise ValueError(f"layout {layout} does not add up to {world} ranks")
    groups, first = [], 0
    for length in layout:
        if length < 1 or length & (length - 1) or first % length:
            raise ValueError(f"layout {layout}: groups are aligned and of power-of-two length")
        groups.append(Group(first, length))
        first += length
    return tuple(groups)


def layout_of(groups: tuple[Group, ...]) -> Layout:
    """The layout that groups make up."""
    return tuple(group.length for group in sorted(groups))


def changed_regions(current: tuple[Group, ...], target: tuple[Group, ...]) -> tuple[Group, ...]:
    """The smallest aligned runs that must change to get from one partition to the other.

    Each is either one current group (to be split) or one target group (to be merged).
    """
    differing = set(current) ^ set(target)
    outermost = [g for g in differing if not any(o != g and o.contains(g) for o in differing)]
    return tuple(sorted(outermost))
