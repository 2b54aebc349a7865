"""SageServe's evaluation (Jaiswal et al., 2025, section 7) beside ours.

    planning.py section 5: how long the optimiser takes
    scaling.py  sections 4 and 7.2: instance-hours, latency and start-ups of the autoscalers
    tiers.py    section 7.2.6: four schedulers and two interactive tiers

The paper's traces are not public and its text leaves open much of the setting; `study.py` and `scaling_study.py` say
what was chosen, when and why.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reproduction.parts import Evaluation, total
from serving_gym.runners.reproduction.sageserve import planning, scaling, tiers
from serving_gym.runners.reproduction.sageserve.scaling_study import ScalingStudy
from serving_gym.runners.reproduction.sageserve.study import Study


def evaluation(config: ReproduceConfig, bar: Any) -> Evaluation:
    """Every headline number of the paper, as far as it goes; `quick` makes a part of the peak day alone of scaling."""
    study = ScalingStudy(config, bar)
    steps = {
        "planning": planning.num_steps(config),
        **scaling.num_episodes(config),
        "tiers": tiers.num_episodes(config),
    }
    return Evaluation(
        {
            "planning": partial(planning.claims, config, bar),
            "tiers": lambda: tiers.claims(Study(config, bar)),
            **{name: partial(part, study) for name, part in scaling.PARTS.items()},
        },
        partial(total, steps),
        quick=("planning", "peak", "tiers"),
    )
