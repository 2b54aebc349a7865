"""Counters and random generators of a training that is to be continued, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch


def write_training_state(
    file: Path, rng: np.random.Generator, generator: torch.Generator, **counters: Any
) -> None:
    """Writes counters, and the states of both random generators."""
    state = {**counters, "rng": rng.bit_generator.state, "torch": generator.get_state().tolist()}
    file.write_text(json.dumps(state), encoding="utf-8")


def read_training_state(file: Path, rng: np.random.Generator, generator: torch.Generator) -> dict[str, Any]:
    """Sets both random generators to what was written, and returns the counters."""
    state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rng.bit_generator.state = state.pop("rng")
    generator.set_state(torch.tensor(state.pop("torch"), dtype=torch.uint8))
    return state
