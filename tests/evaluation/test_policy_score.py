"""Scores of policies given as programs."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

import serving_gym
from serving_gym.baselines.files import load_file
from serving_gym.runners.rollouts.rollout import run_episode
from serving_gym.runners.scoring.blocks import blocks_of
from tests.paths import ROOT

QUICK = {"blocks": 1, "workload.num_requests": 60}
EXAMPLE = ROOT / "examples/evolve_policy"
PROGRAM = """
from serving_gym.baselines.common.routers.jsq import JSQPolicy

class Mine:
    name = "mine"
    clairvoyant = {clairvoyant}

    def reset(self, spec, seed):
        self.router = JSQPolicy()
        self.router.reset(spec, seed)

    def act(self, observation, state):
        {body}
        return self.router.act(observation, state)
"""


@pytest.fixture
def program(tmp_path):
    """A function that writes a program which does something before it acts."""

    def write(body="pass", name="mine.py", clairvoyant=False, text=None) -> Path:
        path = tmp_path / name
        path.write_text(text or PROGRAM.format(body=body, clairvoyant=clairvoyant))
        return path

    return write


def test_a_score_is_the_mean_return_of_the_blocks(program):
    result = serving_gym.policy_score(program("print('hello')"), blocks=2, **{"workload.num_requests": 60})
    assert "error" not in result.artifacts
    blocks = blocks_of("routing_overload", 2, 0, "validation", False, ["workload.num_requests=60"])
    episodes = [run_episode(block.env, serving_gym.load_policy("jsq"), block.seed) for block in blocks]
    returns = [episode.metrics["return"] for episode in episodes]
    assert result.artifacts["returns"] == returns
    assert result.score == sum(returns) / 2
    assert result.artifacts["decisions"] == sum(len(episode.decisions) for episode in episodes)
    mean = sum(episode.metrics["slo_attainment/critical"] for episode in episodes) / 2
    assert result.artifacts["metrics"]["slo_attainment/critical"] == pytest.approx(mean)
    assert "hello" in result.artifacts["output"]


def test_a_rewritten_file_is_read_anew(program):
    """Also within a second, and as long as before: bytecode would not tell."""
    keep = serving_gym.policy_score(program("x = 0"), **QUICK)
    hold = serving_gym.policy_score(program("1 / 0"), **QUICK)
    assert keep.score > -math.inf
    assert hold.score == -math.inf
    assert serving_gym.policy_score(program("x = 0"), **QUICK).score == keep.score


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('no idea')", "no idea"),
        ("return 99", "action must be an integer from 0 to 6"),
        ("while True: pass", "a decision took longer than decision_s=0.2 s"),
        ("import os; os._exit(3)", r"the program ended its process (exit code 3)"),
        ("import sys; sys.exit(1)", "SystemExit"),
        ("import signal; signal.setitimer(0, 0)\n        while True: pass", "took longer than limit_s=3 s"),
    ],
)
def test_what_a_program_does_wrong_is_its_score(program, body, said):
    result = serving_gym.policy_score(program(body), decision_s=0.2, limit_s=3.0, **QUICK)
    assert result.score == -math.inf
    assert said in result.artifacts["error"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "line 1"),
        ("import no_such_module", "no_such_module"),
        ("x = 1", "must have one class with reset and act, it has none"),
        (PROGRAM.format(body="pass", clairvoyant=True), "must not be clairvoyant"),
        (PROGRAM.format(body="pass", clairvoyant=False).replace("seed", "seeds, more"), "must take reset"),
    ],
)
def test_what_is_no_policy_has_no_score(program, text, said):
    result = serving_gym.policy_score(program(text=text), **QUICK)
    assert result.score == -math.inf
    assert said in result.artifacts["error"]
    assert "traceback" in result.artifacts


def test_a_file_that_does_not_exist_has_no_score():
    result = serving_gym.policy_score("nowhere.py", **QUICK)
    assert "no file 'nowhere.py'" in result.artifacts["error"]


def test_a_class_among_several_is_named(program):
    text = PROGRAM.format(body="pass", clairvoyant=False)
    path = program(text=text + text.replace("Mine", "Other"))
    assert "it has Mine, Other" in serving_gym.policy_score(path, **QUICK).artifacts["error"]
    assert serving_gym.policy_score(f"{path}:Other", **QUICK).score > -math.inf


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"task": "routing_overlod"}, "did you mean 'routing_overload'"),
        ({"split": "test"}, "unknown split 'test'"),
        ({"blocks": 0}, "blocks must be positive and finite, got 0"),
        ({"decision_s": math.inf}, "decision_s must be positive"),
        ({"workload.num_request": 5}, "num_request"),
    ],
)
def test_mistakes_of_the_caller_are_told(program, arguments, said):
    with pytest.raises(Exception, match=said):
        serving_gym.policy_score(program(), **arguments)


def test_a_mutation_changes_the_function_and_still_parses():
    evolve = load_file(EXAMPLE / "evolve.py")
    source = (EXAMPLE / "admission.py").read_text()
    rng = random.Random(0)
    children = [evolve.mutate(source, rng) for _ in range(40)]
    assert len(set(children)) > 20
    for child in children:
        compile(child, "child.py", "exec")
        assert "class Admission" in child


@pytest.mark.full
def test_the_example_never_gets_worse(tmp_path):
    evolve, tiny = load_file(EXAMPLE / "evolve.py"), {"blocks": 1, "workload.num_requests": 200}
    source = (EXAMPLE / "admission.py").read_text()
    best = evolve.evolve(source, 2, 2, 2, 0, tmp_path, **tiny)
    scores = [each.score for each in best]
    assert scores == sorted(scores)
    assert (tmp_path / "best.py").read_text() == best[-1].source
    assert serving_gym.policy_score(tmp_path / "best.py", **tiny).score == scores[-1]
