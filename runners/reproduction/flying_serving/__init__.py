"""Flying Serving's evaluation (arXiv 2602.22593, section 6) beside ours.

    bursts.py          section 6.2 and the two speedups of the abstract
    priority.py        section 6.3, Table 1
    switching.py       section 6.4, Table 2
    long_context.py    section 6.5

What the paper does not state, or its text has lost, is in `choices.py`. Rates under load follow its `burst_load`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.flying_serving import bursts, long_context, priority, switching
from serving_gym.runners.reproduction.flying_serving.study import Study
from serving_gym.runners.reproduction.parts import Evaluation, total


def evaluation(config: ReproduceConfig, bar: Any) -> Evaluation:
    """Every headline number of the paper; rates follow from capacities, which the first part that asks measures."""
    study = Study(config, bar)
    episodes = {
        "bursts": bursts.num_episodes(config),
        "priority": priority.num_episodes(config),
        "long_context": long_context.num_episodes(config),
    }
    return Evaluation(
        {
            "bursts": partial(bursts.claims, study),
            "priority": partial(priority.claims, study),
            "switching": switching.claims,
            "long_context": partial(long_context.claims, study),
        },
        partial(total, episodes),
    )
