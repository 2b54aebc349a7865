"""Hand-made cluster states."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.layout import Group, all_groups, groups_of
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.interface.state import (
    ENGINE_STATE_DTYPE,
    TOTALS,
    ClusterState,
    EngineStatus,
    Transition,
    WaitingRequest,
)

CAPACITY_TOKENS = 100_000  # of a base engine


def make_state(
    layout: Sequence[int] = (1,) * 8,
    *,
    target: Sequence[int] | None = None,
    now_s: float = 100.0,
    rows: Mapping[Group, Mapping[str, int]] | None = None,
    transitions: Sequence[Transition] = (),
    num_pooled: int = 0,
    pooled_tokens: int = 0,
    totals: Mapping[int, Mapping[str, float]] | None = None,
    num_classes: int = 3,
    waiting: Sequence[WaitingRequest] = (),
) -> ClusterState:
    """A state in which the groups of a layout are active and empty, save for what `rows` says of them."""
    num_base = sum(layout)
    engines = np.zeros(len(all_groups(num_base)), ENGINE_STATE_DTYPE)
    for row, group in zip(engines, all_groups(num_base), strict=True):
        row["first_gpu"], row["width"] = group.first, group.length
        if group in groups_of(tuple(layout)):
            row["status"] = EngineStatus.ACTIVE
            row["kv_capacity_tokens"] = CAPACITY_TOKENS * group.length
            row["kv_capacity_blocks"] = CAPACITY_TOKENS // 16
        for name, value in (rows or {}).get(group, {}).items():
            row[name] = value
    counted = np.zeros((num_classes, len(TOTALS)))
    for class_id, columns in (totals or {}).items():
        for name, value in columns.items():
            counted[class_id, TOTALS.index(name)] = value
    return ClusterState(
        now_s=now_s,
        engines=engines,
        layout=tuple(layout),
        target_layout=tuple(target or layout),
        transitions=tuple(transitions),
        num_pooled=num_pooled,
        pooled_tokens=pooled_tokens,
        totals=counted,
        waiting=tuple(waiting),
    )


@pytest.fixture(name="make_state")
def _make_state() -> Callable[..., ClusterState]:
    return make_state


@pytest.fixture
def spec() -> PolicySpec:
    """Eight base engines of one GPU."""
    classes = ("priority", "normal", "long")
    return PolicySpec(ClusterSpec(), (SLO(1.0, 0.05),) * len(classes), classes, 1.0)
