"""What an environment says of the numbers of its observation is what its encoder writes."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module

import numpy as np
import pytest

from serving_gym.envs.base.features import HIGHEST, Part
from serving_gym.envs.registration import make_env
from tests.environments.cases import CASES, NAMES, possible

# Where each encoder lists its numbers, part by part; those repeated behind them last.
LISTS = {
    "autoscaling": ("envs.autoscaling.observation", {"endpoints": "ENDPOINT_FEATURES", "clock": "CLOCK_FEATURES"}),
    "deployment": (
        "envs.deployment.observation",
        {"replicas": "REPLICA_FEATURES", "types": "TYPE_FEATURES", "cluster": "CLUSTER_FEATURES"},
    ),
    "dp_tp": ("envs.dp_tp.observation", {"engines": "ENGINE_FEATURES", "cluster": "CLUSTER_FEATURES"}),
    "routing": (
        "envs.simulator.kernel.features",
        {
            "places": "PLACE_FEATURES",
            "request": "REQUEST_FEATURES",
            "cluster": "CLUSTER_FEATURES",
            "admission": "ADMISSION_FEATURES",
        },
    ),
    "sharing": (
        "envs.simulator.sharing.features",
        {"places": "PLACE_FEATURES", "request": "REQUEST_FEATURES", "cluster": "CLUSTER_FEATURES"},
    ),
}  # fmt: skip
VARIANTS = [*((name, {}) for name in NAMES), ("routing", {"admission": True})]


def make(name: str, more: dict):
    return make_env(name, **CASES[name], **more)


@pytest.mark.parametrize("name", NAMES)
def test_names_and_scales_are_those_of_the_encoder(name: str) -> None:
    module, lists = LISTS[name]
    env = make(name, {})
    parts = {part.name: part for part in env.parts}
    for part, attribute in lists.items():
        assert parts[part].names() == getattr(import_module(f"serving_gym.{module}"), attribute)
    scales = {entry.name for entry in fields(env.config.scales)}
    used = {item.scale for part in env.parts for item in (*part.features, *part.repeated)}
    assert {scale for scale in used if isinstance(scale, str)} <= scales


@pytest.mark.parametrize(("name", "more"), VARIANTS, ids=lambda value: str(value))
def test_an_episode_stays_within_the_ranges(name: str, more: dict) -> None:
    env = make(name, more)
    space = env.observation_space
    shown = [part for part in env.parts if not part.when or more]
    assert {part.name for part in shown} == set(space.spaces)
    rng = np.random.default_rng(0)
    observation, info = env.reset(seed=0)
    moved: dict[str, np.ndarray] = {}
    for _ in range(60):
        for part in shown:
            check(part, np.asarray(observation[part.name]))
            moved[part.name] = np.maximum(moved.get(part.name, 0.0), observation[part.name])
        action = possible(env.action_space, info["action_mask"], rng)
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    assert all(values.any() for values in moved.values())


def check(part: Part, values: np.ndarray) -> None:
    """Every column lies in its range; flags are 0 or 1."""
    repeats, rest = 0, values.shape[-1] - len(part.features)
    if part.repeated:
        repeats, rest = divmod(rest, len(part.repeated))
    assert rest == 0, part.name
    assert values.ndim == (2 if part.rows else 1), part.name
    columns = (*part.features, *part.repeated * repeats)
    for feature, column in zip(columns, np.moveaxis(values, -1, 0), strict=True):
        assert 0 <= column.min() <= column.max() <= min(feature.high, HIGHEST), f"{part.name}.{feature.name}"
        if feature.binary:
            assert set(np.unique(column)) <= {0.0, 1.0}, f"{part.name}.{feature.name}"


def test_a_count_is_shown_with_its_scale() -> None:
    """By the routing observation and the state that it shows."""
    env = make("routing", {})
    observation, _ = env.reset(seed=0)
    for _ in range(12):
        observation, *_ = env.step(0)
    parts = {part.name: part for part in env.parts}
    column = parts["places"].names().index("in_flight")
    feature = parts["places"].features[column]
    there = np.bincount(env.state.in_flight["place"], minlength=3)
    assert there[0] > 0
    scale = getattr(env.config.scales, str(feature.scale))
    np.testing.assert_allclose(observation["places"][:, column], np.log1p(there / scale), rtol=1e-5)
