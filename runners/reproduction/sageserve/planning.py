"""Section 5: how long the optimiser takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_gym.runners.reproduction.claims import Claim, at_most
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.parts import num_seeds
from serving_gym.runners.reproduction.plan_time import SIZES, seconds
from serving_gym.runners.reproduction.sageserve.study import make_claim

SPARES = {None: "machines without limit", 0.1: "a tenth of the machines spare"}


def num_steps(config: ReproduceConfig) -> int:
    """Steps of the progress bar."""
    return len(SIZES) * len(_spares(config))


def _spares(config: ReproduceConfig) -> list[float | None]:
    return [None] if config.quick else list(SPARES)


def claims(config: ReproduceConfig, bar: Any, epsilon: float) -> list[Claim]:
    """Mean time of random problems of the paper's two sizes; `epsilon`: least share that a region serves itself."""
    found = []
    for size, paper_s in SIZES.items():
        for spare in _spares(config):
            bar.set_postfix_str(f"optimiser {size}", refresh=False)
            took = seconds(size, epsilon, spare, num_seeds(config))
            found.append(
                make_claim(
                    "5",
                    f"optimiser for {size[0]} models, {size[1]} regions, {size[2]} GPU types, {SPARES[spare]}",
                    paper_s,
                    float(np.mean(took)),
                    "s",
                    at_most(paper_s, 0.0, least=0.0),
                    note="Random problems (runners/reproduction/plan_time.py); wall time on one core of this machine.",
                )
            )
            bar.update(1)
    return found
