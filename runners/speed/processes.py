"""Speed of a process from its start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from serving_gym.runners.configuration.schema import BenchConfig
from serving_gym.runners.speed.measurement import Measurement

_IMPORTS = "import gymnasium, envs; gymnasium.spec('Serving/DPTP-v1')"


def imports(config: BenchConfig) -> Iterator[Measurement]:
    """Importing the environments."""
    yield Measurement("import.seconds", "s", {}, lambda: _process(["-c", _IMPORTS]))


def first_answer(config: BenchConfig) -> Iterator[Measurement]:
    """From typing a command to its table, with the compiled kernel in Numba's cache."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            words = ["workload=azure_conv_fitted", "workload.num_requests=100", f"out={folder}/run"]
            return _process(["-m", "runners.simulate", *words])

    yield Measurement("first_answer.seconds", "s", {"command": "simulate"}, run)


def _process(arguments: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return time.perf_counter() - begun
