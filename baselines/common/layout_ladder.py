"""Layouts from light to heavy load, and the switches between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving_gym.baselines.common.hysteresis import HysteresisLadder
from serving_gym.baselines.common.layouts import (
    check_layout,
    free_regions,
    parse_layout,
    parse_mode,
    power_of_two_lengths,
    rolling_step,
    uniform_layout,
    with_regions,
)
from serving_gym.baselines.policy import Action, Constants, Tunable, tunable, tunable_choice
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_within
from serving_gym.envs.interface.commands import Redeploy, SetLayout, SwitchMode
from serving_gym.envs.interface.layout import Layout, changed_regions, groups_of
from serving_gym.envs.interface.state import ClusterState


@dataclass(frozen=True)
class LadderConfig(Constants):
    """What policies that climb a ladder of layouts have in common; all ours.

    Attributes:
        layouts: From light to heavy load, as written in configs; empty: every uniform layout, the widest first.
        threshold_growth_ratio: Each further threshold is so many times the one before.
        hysteresis_ratio: A layout is returned to below this share of the threshold it was left at, 0 to 1.
        dwell_s: Least time between two changes, seconds.
        rolling: Whether engines are merged one group after another, so that the others serve meanwhile, and not all
            groups at once.
    """

    layouts: Sequence[str | int] = ()
    threshold_growth_ratio: float = tunable(2.0, 1.0, 8.0, log=True)
    hysteresis_ratio: float = tunable(0.5, 0.1, 0.95)
    dwell_s: float = tunable(10.0, 1.0, 60.0, log=True)
    rolling: bool = tunable_choice(False, True)

    def __post_init__(self) -> None:
        check_at_least(self, 1, "threshold_growth_ratio")
        check_within(self, "[0, 1)", "hysteresis_ratio")
        check_not_negative(self, "dwell_s")
        for layout in self.layouts:
            parse_layout(layout)


def words(*values: str) -> Tunable:
    """Words that a tuner may choose among."""
    return Tunable(0.0, float(len(values)), False, values)


MERGE_MODES = words("soft", "hard", "sequential")
SPLIT_MODES = words("hard", "sequential")


def parse_split_mode(name: str) -> SwitchMode:
    """The mode of switches that merge nothing, by name.

    Raises:
        ValueError: there is no such mode; nothing can be done speculatively in DP while a group is being split.
    """
    if name == SwitchMode.SOFT.name.lower():
        raise ValueError(f"split_mode must be one of sequential, hard, got {name!r}")
    return parse_mode(name, "split_mode")


class LayoutLadder:
    """Deploys at time zero, then follows the load; regions that are being reconfigured are left alone.

    Args:
        config: Layouts, and how thresholds follow from the first.
        num_base: Base engines of the node.
        first: Load at which the first layout is left for the second.
        merge_mode: How requests are treated that run where engines are merged.
        split_mode: And where none is merged.
    """

    def __init__(
        self,
        config: LadderConfig,
        num_base: int,
        first: float,
        merge_mode: SwitchMode,
        split_mode: SwitchMode,
    ) -> None:
        self.layouts = _layouts_of(config.layouts, num_base)
        self.merge_mode, self.split_mode, self.rolling = merge_mode, split_mode, config.rolling
        up = tuple(first * config.threshold_growth_ratio**i for i in range(len(self.layouts) - 1))
        down = tuple(threshold * config.hysteresis_ratio for threshold in up)
        self._rungs = HysteresisLadder(up, down, config.dwell_s)
        self._fresh = True

    def act(self, state: ClusterState, load: float) -> Action:
        """What is to be done under a load."""
        wanted = self.layouts[self._rungs.step(state.now_s, load)]
        fresh, self._fresh = self._fresh, False
        if fresh and state.now_s == 0.0:
            return Redeploy(wanted, weights="whole")
        layout = (
            rolling_step(state, wanted)
            if self.rolling
            else with_regions(state, wanted, free_regions(state, wanted))
        )
        changed = changed_regions(groups_of(state.target_layout), groups_of(layout))
        if not changed:
            return None
        merges = any(region in groups_of(layout) for region in changed)
        return SetLayout(layout, self.merge_mode if merges else self.split_mode)


def _layouts_of(names: Sequence[str | int], num_base: int) -> tuple[Layout, ...]:
    layouts = tuple(parse_layout(name) for name in names)
    for layout in layouts:
        check_layout(layout, num_base)
    return layouts or tuple(uniform_layout(num_base, length) for length in power_of_two_lengths(num_base))
