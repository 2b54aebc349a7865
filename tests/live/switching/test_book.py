"""Layouts, switches and when they may take place: no vLLM needed."""

from __future__ import annotations

import pytest

from serving_gym.envs.interface import layout
from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.live.switching.plugin.book import Mode, RefusedError, SwitchBook
from serving_gym.envs.live.switching.plugin.groups import (
    Group,
    all_groups,
    changed_regions,
    degrees,
    groups_of,
    layout_of,
)

LEFT, RIGHT, BOTH = Group(0, 1), Group(1, 1), Group(0, 2)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_groups_are_those_of_the_library(world: int) -> None:
    assert [tuple(group) for group in all_groups(world)] == [
        tuple(group) for group in layout.all_groups(world)
    ]
    assert degrees(world) == tuple(sorted({group.length for group in all_groups(world)}))
    layouts = layout.all_layouts(world)
    for one in layouts:
        ours, theirs = groups_of(one, world), layout.groups_of(one)
        assert [tuple(group) for group in ours] == [tuple(group) for group in theirs]
        assert layout_of(ours) == one
        for other in layouts[::3]:
            found = changed_regions(ours, groups_of(other, world))
            assert [tuple(g) for g in found] == [
                tuple(g) for g in layout.changed_regions(theirs, layout.groups_of(other))
            ]


def test_modes_have_the_numbers_of_the_library() -> None:
    assert {mode.name: int(mode) for mode in Mode} == {mode.name: int(mode) for mode in SwitchMode}


def test_a_sequential_merge_waits_for_every_straggler() -> None:
    book = SwitchBook(2, (1, 1))
    (switch,) = book.ask((2,), Mode.SEQUENTIAL, 10.0, {LEFT: ["a"], RIGHT: ["b", "c"]})
    assert book.target == (BOTH,)
    assert book.layout == (1, 1)
    assert not book.admits(LEFT)
    assert not book.admits(BOTH)
    assert book.may_start(LEFT)
    book.over("a")
    book.over("b")
    assert book.ready(()) == []
    book.over("c")
    assert switch.due
    assert not book.may_start(LEFT)  # or the two ranks would never stand at the same time
    assert book.ready([RIGHT]) == []
    assert book.ready(()) == [switch]
    book.wait_for_entry(switch, 12.0)
    assert book.layout == (2,)
    assert book.admits(BOTH)
    assert book.may_start(BOTH)
    book.confirm(switch.number, 0, 0.5, 12.001)
    assert book.open == [switch]
    book.confirm(switch.number, 1, 0.7, 12.003)
    assert book.open == []
    report = book.done[-1].report()
    assert report["drain_s"] == pytest.approx(2.0)
    assert report["cut_over_s"] == pytest.approx(0.003)
    assert report["enter_ms"] == {"0": 0.5, "1": 0.7}


def test_in_a_soft_merge_the_member_that_is_done_admits() -> None:
    book = SwitchBook(2, (1, 1))
    (switch,) = book.ask((2,), Mode.SOFT, 0.0, {LEFT: ["a"], RIGHT: ["b"]})
    assert not book.admits(RIGHT)
    book.over("b")
    assert book.admits(RIGHT)
    assert not book.admits(LEFT)
    assert book.may_start(RIGHT)
    book.over("a")
    assert switch.due


def test_soft_is_sequential_where_a_group_is_split() -> None:
    book = SwitchBook(2, (2,))
    (switch,) = book.ask((1, 1), Mode.SOFT, 0.0, {BOTH: ["a"]})
    assert switch.mode == Mode.SEQUENTIAL
    assert not book.admits(BOTH)


def test_a_hard_switch_waits_for_the_iteration_alone() -> None:
    book = SwitchBook(2, (2,))
    (switch,) = book.ask((1, 1), Mode.HARD, 0.0, {BOTH: ["a"]})
    assert book.ready([BOTH]) == []
    assert book.ready(()) == [switch]


def test_a_switch_in_flight_is_hurried_and_not_redirected() -> None:
    book = SwitchBook(2, (1, 1))
    (switch,) = book.ask((2,), Mode.SEQUENTIAL, 0.0, {LEFT: ["a"]})
    with pytest.raises(RefusedError, match="ranks 0 to 1 are being reconfigured"):
        book.ask((1, 1), Mode.HARD, 1.0, {})
    assert book.ask((2,), Mode.SOFT, 1.0, {}) == []
    assert not switch.due
    assert book.ask((2,), Mode.HARD, 1.0, {}) == []
    assert switch.due


def test_regions_switch_independently() -> None:
    book = SwitchBook(4, (1, 1, 1, 1))
    (first,) = book.ask((2, 1, 1), Mode.SEQUENTIAL, 0.0, {Group(0, 1): ["a"]})
    (second,) = book.ask((2, 2), Mode.SEQUENTIAL, 0.0, {})
    assert book.ready(()) == [second]
    book.wait_for_entry(second, 1.0)
    assert book.layout == (1, 1, 2)
    assert book.target == (Group(0, 2), Group(2, 2))
    with pytest.raises(RefusedError):
        book.ask((4,), Mode.HARD, 1.0, {})
    book.over("a")
    assert book.ready(()) == [first]


@pytest.mark.parametrize("wrong", [(3,), (1,), (2, 2), (0, 2), (-1, 3)])
def test_what_is_no_layout_is_refused(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="layout"):
        SwitchBook(2, (2,)).ask(wrong, Mode.HARD, 0.0, {})
    with pytest.raises(ValueError, match="layout"):
        SwitchBook(4, (1, 2, 1))  # not aligned
