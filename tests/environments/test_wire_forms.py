"""States and decisions of every environment go out as JSON and come back; the published schemas say so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch

from serving_gym.agents.checkpoint import ZOO
from serving_gym.envs.base.lazy_observation import LazyObservation
from serving_gym.runners.serving.drift import outside, training_ranges
from serving_gym.runners.serving.exchange import plain_answer
from serving_gym.runners.serving.host import Answer
from serving_gym.runners.serving.meters import Meters
from serving_gym.runners.serving.served import SERVED, served_environment
from serving_gym.runners.serving.wire import schema_of
from tests.defaults import make_env

SCHEMAS = Path(__file__).parents[2] / "runners" / "serving" / "schema" / "v1"
STEPS = {"sharing": 60}
MORE = {"deployment": {"profiling": "closed_form"}}
# Features that a served state does not tell: docs/serving.md.
UNTOLD = {"autoscaling": {"clock": [4]}, "deployment": {"cluster": [10], "replicas": [8]}}


@pytest.mark.parametrize("name", list(SERVED))
def test_the_published_schema_is_what_the_classes_say(name):
    published = json.loads((SCHEMAS / f"{name}.json").read_text())
    said = "python -m runners.serve env=ENV schema=true writes it"
    assert published == schema_of(name), f"runners/serving/schema/v1/{name}.json is stale; {said}"
    jsonschema.Draft202012Validator.check_schema(published)


@pytest.mark.parametrize("name", list(SERVED))
def test_states_and_decisions_come_back(name):
    schema = schema_of(name)
    env, own = (make_env(name, **MORE.get(name, {})).unwrapped for _ in range(2))
    served = served_environment(name, own)
    valid = {
        part: jsonschema.Draft202012Validator({**schema, "$ref": f"#/$defs/{part}"})
        for part in ("state", "action", "answer", "decide")
    }
    shown, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(STEPS.get(name, 8)):
        plain = json.loads(json.dumps(served.wire.write_state(env.state)))
        valid["state"].validate(plain)
        valid["decide"].validate({"state": plain, "chosen": None})
        state = served.wire.read_state(plain)
        assert json.loads(json.dumps(served.wire.write_state(state))) == plain
        action = (
            env.action_space.sample(env.action_masks().astype(np.int8)) if name != "autoscaling" else None
        )
        if name == "autoscaling":
            action = env.action_space.sample()
        check_observation(name, served.observe(state), shown)
        decision = served.decision(action, state)
        said = json.loads(json.dumps(served.wire.write_action(decision)))
        valid["action"].validate(said)
        back = served.wire.read_action(said)
        assert json.loads(json.dumps(served.wire.write_action(back))) == said
        valid["answer"].validate(plain_answer(Answer(said, True, 1.0, "", decision)))
        shown, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            shown, _ = env.reset(seed=1)
            served.reset()


def check_observation(name, told, simulated):
    """What the state tells is what the simulator shows, save for what no state tells."""
    for part, values in simulated.items():
        known = np.ones(values.shape[-1], bool)
        known[UNTOLD.get(name, {}).get(part, [])] = False
        np.testing.assert_allclose(told[part][..., known], values[..., known], atol=1e-5, err_msg=part)


GARBAGE = (
    None,
    True,
    -1,
    99,
    1.5,
    1e300,
    2**70,
    -(2**70),
    "x",
    "AAAA",
    "é" * 99,
    [],
    {},
    [[]],
    [None],
    [1e999],
    b"x",
)


def replaced(plain, path, value):
    """A plain value with another one at a path."""
    if not path:
        return value
    copy = plain.copy()
    copy[path[0]] = replaced(plain[path[0]], path[1:], value)
    return copy


def paths(plain, path=()):
    """Paths of all values; of lists and columns, those of the first entry."""
    yield path
    items = (
        plain.items() if isinstance(plain, dict) else enumerate(plain[:1]) if isinstance(plain, list) else ()
    )
    for key, value in items:
        yield from paths(value, (*path, key))


@pytest.mark.parametrize("name", list(SERVED))
def test_what_is_no_state_is_said_in_one_sentence(name):
    """Every value of a state replaced by every kind of garbage: a state or a ValueError, nothing else."""
    env = make_env(name, **MORE.get(name, {})).unwrapped
    served = served_environment(name, env)
    env.reset(seed=0)
    plain = served.wire.write_state(env.state)
    said = []
    for path in paths(plain):
        for value in GARBAGE:
            try:
                served.wire.read_state(replaced(plain, path, value))
            except ValueError as error:
                said.append(str(error))
    assert len(said) > 100
    assert all("\n" not in sentence and len(sentence) < 2000 for sentence in said)


def test_drift_from_what_training_saw(tmp_path):
    """Values beyond the range that a checkpoint stores are counted, feature by feature; without a range nothing is."""
    shutil.copytree(ZOO / "routing", tmp_path / "agent")
    assert training_ranges({"name": "checkpoint", "path": str(tmp_path / "agent")}) is None
    weights = torch.load(tmp_path / "agent" / "weights.pt", weights_only=True)
    weights |= {"low_cluster": torch.zeros(3), "high_cluster": torch.tensor([1.0, 2.0, 3.0])}
    torch.save(weights, tmp_path / "agent" / "weights.pt")
    ranges = training_ranges({"name": "checkpoint", "path": str(tmp_path / "agent")})
    assert list(ranges) == ["cluster"]
    seen = LazyObservation(lambda: {"cluster": np.array([-0.5, 1.0, 3.5], np.float32)})
    assert outside(seen, ranges) is None  # the policy has not looked
    assert seen["cluster"] is not None
    assert outside(seen, ranges) == {"cluster.0": 1, "cluster.2": 1}
    meters = Meters("routing", "agent", "live")
    meters.seen(outside(seen, ranges), ranges)
    value = meters.registry.get_sample_value
    names = [value("serving_gym_observation_outside_total", {"feature": f"cluster.{i}"}) for i in range(3)]
    assert names == [1.0, 0.0, 1.0]
    assert value("serving_gym_observations_checked_total") == 1.0
    blind = Meters("routing", "agent", "live")
    blind.seen(outside(seen, None), None)
    assert blind.registry.get_sample_value("serving_gym_observations_checked_total") is None


def test_changes_by_the_state_are_the_simulators():
    """A vector of the action space comes to the same changes by the typed state as by the simulator."""
    env = make_env("autoscaling").unwrapped
    served = served_environment("autoscaling", env)
    env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(30):
        vector = rng.integers(0, env.action_space.nvec)
        expected = env.core.fork()
        changes = []
        for change in expected.levers.changes(expected.simulator, vector, []):
            changes.append(change)
            expected.simulator.change(change)
        assert list(served.decision(vector, env.state)) == changes
        env.step(vector)
