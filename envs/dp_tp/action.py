"""The DP/TP action: a layout and how to get there, as one integer, and which of them are possible now."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.dp_tp.state import busy_regions, can_hurry
from serving_gym.envs.interface.commands import SetLayout, SwitchMode
from serving_gym.envs.interface.layout import Group, Layout, all_layouts, changed_regions, groups_of
from serving_gym.envs.interface.state import ClusterState

NUM_MODES = len(SwitchMode)


def num_actions(num_base: int) -> int:
    """Layouts times ways to get there: 78 for 8 base engines."""
    return len(all_layouts(num_base)) * NUM_MODES


@lru_cache(maxsize=4096)
def decode_action(action: int, num_base: int) -> SetLayout:
    """The command of an action: action = layout index x 3 + mode."""
    layout, mode = divmod(int(action), NUM_MODES)
    return SetLayout(all_layouts(num_base)[layout], SwitchMode(mode))


def encode_action(command: SetLayout) -> int:
    """The action of a command."""
    layouts = all_layouts(sum(command.layout))
    return layouts.index(command.layout) * NUM_MODES + int(command.mode)


def action_mask(state: ClusterState, num_base: int, can_switch: bool = True) -> NDArray[np.bool_]:
    """Which actions are possible.

    Staying with the target layout is always possible, and is the sequential action of that layout. A region that is
    being reconfigured can only be hurried: hard on the present target, while stragglers drain. Soft differs from
    sequential only where a region of several engines is merged, and is offered only there. Engines that hold sharded
    weights cannot switch live at all (`can_switch`).

    Returns:
        (num_actions,) bool.
    """
    return _mask(state.target_layout, busy_regions(state), can_hurry(state), num_base, can_switch).copy()


def settled_mask(layout: Layout, num_base: int, can_switch: bool = True) -> NDArray[np.bool_]:
    """`action_mask` where nothing is being reconfigured.

    Returns:
        (num_actions,) bool.
    """
    return _mask(layout, (), False, num_base, can_switch).copy()


@lru_cache(maxsize=65536)
def _mask(
    target: Layout, busy: tuple[Group, ...], hurry: bool, num_base: int, can_switch: bool
) -> NDArray[np.bool_]:
    layouts = all_layouts(num_base)
    current = groups_of(target)
    mask = np.zeros((len(layouts), NUM_MODES), bool)
    for i, layout in enumerate(layouts):
        wanted = groups_of(layout)
        regions = changed_regions(current, wanted)
        if not regions:
            mask[i] = (True, False, hurry)
        elif can_switch and not any(region.overlaps(other) for region in regions for other in busy):
            mask[i] = (True, any(region in wanted for region in regions), True)
    return mask.ravel()
