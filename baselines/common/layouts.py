"""Layouts as users write them, and as policies put them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from serving_gym.baselines.common.signals import requests_in_system
from serving_gym.calibration.lookup import check_choice, nearest
from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.interface.layout import (
    Group,
    Layout,
    all_groups,
    all_layouts,
    changed_regions,
    format_layout,
    groups_of,
)
from serving_gym.envs.interface.state import ClusterState


def parse_layout(text: str | int | Sequence[int]) -> Layout:
    """Reads `8`, `4x2` (four groups of two) or `4+2+1+1`; the inverse of `envs.interface.layout.format_layout`.

    Raises:
        ValueError: it is not written so, or its groups are not aligned powers of two.
    """
    if isinstance(text, str):
        try:
            lengths = tuple(length for part in text.split("+") for length in _repeated(part))
        except ValueError:
            raise ValueError(f"layout must be written like 8, 4x2 or 4+2+1+1, got {text!r}") from None
    else:
        lengths = (text,) if isinstance(text, int) else tuple(text)
    if not lengths or not all(isinstance(length, int) and length > 0 for length in lengths):
        raise ValueError(f"layout must be written like 8, 4x2 or 4+2+1+1, got {text!r}")
    total = sum(lengths)
    if total & (total - 1):
        raise ValueError(f"layout {text!r} covers {total} base engines; their number must be a power of two")
    groups_of(lengths)
    return lengths


def _repeated(part: str) -> Layout:
    count, times, length = part.strip().rpartition("x")
    return (int(length),) * (int(count) if times else 1)


def check_layout(layout: Layout, num_base: int) -> None:
    """Raises ValueError where a layout does not cover the node."""
    if sum(layout) != num_base:
        allowed = [format_layout(other) for other in all_layouts(num_base)]
        raise ValueError(
            f"layout {format_layout(layout)} covers {sum(layout)} base engines, the node has {num_base}"
            f"{nearest(format_layout(layout), allowed)}"
        )


def uniform_layout(num_base: int, length: int) -> Layout:
    """The layout whose groups are all of one length."""
    return (length,) * (num_base // length)


def power_of_two_lengths(num_base: int) -> tuple[int, ...]:
    """Lengths of the groups of a node, the longest first."""
    return tuple(sorted({group.length for group in all_groups(num_base)}, reverse=True))


def parse_mode(name: str, what: str) -> SwitchMode:
    """A switch mode by name.

    Raises:
        ValueError: there is no such mode; the message says that `what` was wrong.
    """
    known = [mode.name.lower() for mode in SwitchMode]
    check_choice(what, name, known)
    return SwitchMode[name.upper()]


def compose(groups: Iterable[Group]) -> Layout:
    """The layout that the outermost of some groups make. Aligned groups are nested or disjoint, so there is one."""
    given = set(groups)
    outermost = [group for group in given if not any(o != group and o.contains(group) for o in given)]
    return tuple(group.length for group in sorted(outermost))


def free_regions(state: ClusterState, wanted: Layout) -> tuple[Group, ...]:
    """Regions that must change to get to `wanted` and that no transition in flight keeps from changing."""
    regions = changed_regions(groups_of(state.target_layout), groups_of(wanted))
    return tuple(
        r for r in regions if not any(r.overlaps(transition.region) for transition in state.transitions)
    )


def with_regions(state: ClusterState, wanted: Layout, regions: Iterable[Group]) -> Layout:
    """The layout that the node is heading for, with `regions` as they are in `wanted`."""
    regions = tuple(regions)
    kept = [g for g in groups_of(state.target_layout) if not any(region.contains(g) for region in regions)]
    new = [group for group in groups_of(wanted) if any(region.contains(group) for region in regions)]
    return tuple(group.length for group in sorted(kept + new))


def rolling_step(state: ClusterState, wanted: Layout) -> Layout:
    """The layout to head for now on the way to another: groups are merged one by one, and the others serve meanwhile.

    The next group to be merged is the one with the fewest requests, once nothing else is being reconfigured. Groups are
    split at once. Where there is no request to serve, all is changed at once.

    Args:
        state: The cluster.
        wanted: The layout to reach.
    """
    regions = free_regions(state, wanted)
    if requests_in_system(state) > 0:
        merges = [region for region in regions if region in groups_of(wanted)]
        if len(merges) > 1 and not state.transitions:
            load = requests_by_base(state, sum(wanted))
            merges.sort(key=lambda region: (sum(load[member] for member in region.members), region.first))
        later = merges if state.transitions else merges[1:]
        regions = tuple(region for region in regions if region not in later)
    return with_regions(state, wanted, regions)


def requests_by_base(state: ClusterState, num_base: int) -> list[float]:
    """Requests that would be disturbed if a base engine were taken away, by base engine: running, paused, waiting."""
    load = [0.0] * num_base
    counts = (state.engines["num_running"] + state.engines["num_waiting"]).tolist()
    for requests, group in zip(counts, all_groups(num_base), strict=True):
        for member in group.members if requests else ():
            load[member] += requests / group.length
    return load
