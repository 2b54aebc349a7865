"""PreServe's evaluation (arXiv 2504.03702, section 5) beside ours.

    forecasting.py section 5.2.1, table 1: errors of the workload predictor
    scaling.py     section 5.3, figure 8: six scalers
    routing.py     section 5.4, figure 10: six routers around the end of light load
    timelines.py   section 3.2.2, figure 4: four instances second by second
    overhead.py    section 5.5, figure 11: what a decision costs

What the paper does not state is ours: `choices.py` lists it, each with its alternatives. The rates at which our engines
are as loaded as the paper's follow one rule, fixed before any policy was run there (`study.Study.light_rps`).
LoongServe (figure 9) is missing: no engine of the simulator changes a request's parallelism while it runs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.parts import Evaluation, total
from serving_gym.runners.reproduction.preserve import forecasting, overhead, routing, scaling, timelines
from serving_gym.runners.reproduction.preserve.study import NUM_SEARCHES, Study


def evaluation(config: ReproduceConfig, bar: Any) -> Evaluation:
    """Every headline number of these sections; the last part's load follows from the one before."""
    study = Study(config, bar)
    steps = {
        "forecasting": forecasting.num_steps(config),
        "scaling": scaling.num_steps(config),
        "routing": routing.num_episodes(config),
        "timelines": timelines.num_episodes() + NUM_SEARCHES + 1,
        "overhead": overhead.num_fleets(config),
    }
    return Evaluation(
        {
            "forecasting": partial(forecasting.claims, config, bar),
            "scaling": lambda: scaling.claims(scaling.Scalers(config, bar)),
            "routing": partial(routing.claims, study),
            "timelines": partial(timelines.claims, study),
            "overhead": partial(overhead.claims, study),
        },
        partial(total, steps),
    )
