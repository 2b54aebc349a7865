"""States are sampled by several processes: more of them, with other random numbers; the parent stays as it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest

from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.agents.learners.api.counterfactuals import Batch
from serving_gym.agents.learners.api.gathering import Gatherers, available_processes
from serving_gym.agents.learners.learner import Budget
from tests.processes import children_of, is_running


@dataclass
class Dice:
    """A world whose states are random numbers."""

    rng: np.random.Generator
    fails: bool = False

    def play(self, budget: Budget, batch: Batch) -> None:
        if self.fails:
            raise KeyError("no such world")
        batch.add(self.rng.random(2).astype(np.float32), np.zeros((2, 1), np.float32), np.zeros(2), 0)
        budget.count(1)


def gathered(processes: int, fails: bool = False) -> tuple[Batch, Budget, Dice]:
    rng = np.random.default_rng(0)
    world, budget, batch = Dice(rng, fails), Budget(100), Batch()
    with Gatherers(world, rng, budget, 0.2, processes) as others:  # type: ignore[arg-type]
        others.collect(budget, batch)
    return batch, budget, world


def test_each_process_samples_its_own_states() -> None:
    batch, budget, _ = gathered(2)
    assert len(batch.states) == len(batch.returns) == 40
    assert budget.steps == 40
    assert len({state.tobytes() for state in batch.states}) == 40


def test_the_same_seed_samples_the_same_states() -> None:
    first, second = gathered(2)[0], gathered(2)[0]
    np.testing.assert_array_equal(first.states, second.states)


def test_one_process_leaves_the_random_numbers_alone() -> None:
    batch, _, world = gathered(0)
    assert not batch.states
    assert world.rng.random() == np.random.default_rng(0).random()


def test_a_process_that_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ended without a result"):
        gathered(1, fails=True)
    assert "no such world" in capfd.readouterr().err


def test_no_more_processes_than_cores() -> None:
    assert 1 <= available_processes(1000) <= 1000
    assert available_processes(1) == 1
    with pytest.raises(ValueError, match=r"agent\.processes must be at least 1, got 0"):
        APIConfig(processes=0)


ENDLESS = """
import time
import numpy as np
from serving_gym.agents.learners.api.gathering import Gatherers
from serving_gym.agents.learners.learner import Budget

class Endless:
    def play(self, budget, batch):
        time.sleep(0.05)

with Gatherers(Endless(), np.random.default_rng(0), Budget(100), 1.0, 2):
    print("begun", flush=True)
    time.sleep(600)
"""


def test_processes_end_with_a_trainer_that_is_killed() -> None:
    trainer = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    with trainer, trainer.stdout as output:
        assert output.readline() == b"begun\n"
        sampling = children_of(trainer.pid)
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait()
        until = time.monotonic() + 30.0
        while any(map(is_running, sampling)) and time.monotonic() < until:
            time.sleep(0.05)
        assert len(sampling) == 2
        assert not [pid for pid in sampling if is_running(pid)]
