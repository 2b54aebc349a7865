"""SageServe's evaluation (Jaiswal et al., 2025, section 7) beside ours.

    planning.py section 5: how long the optimiser takes
    scaling.py  sections 4 and 7.2: instance-hours, latency and start-ups of the autoscalers
    tiers.py    section 7.2.6: four schedulers and two interactive tiers
    regions.py  sections 5, 6.1, 6.4 and 7.2.1: three regions and two models that compete for machines

The paper's traces are not public and its text leaves open much of the setting; `choices.py` says what was
chosen and why, `study.py` and `scaling_study.py` what the settings are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from serving_gym.runners.reproduction.choices import make_choices
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.parts import Evaluation, total
from serving_gym.runners.reproduction.sageserve import planning, regions, scaling, tiers
from serving_gym.runners.reproduction.sageserve.choices import SageServeChoices
from serving_gym.runners.reproduction.sageserve.regions import RegionsStudy
from serving_gym.runners.reproduction.sageserve.scaling_study import ScalingStudy
from serving_gym.runners.reproduction.sageserve.study import Study


def evaluation(config: ReproduceConfig, bar: Any) -> Evaluation:
    """Every headline number of the paper, as far as it goes; `quick` makes a part of the peak day alone of scaling."""
    choices = make_choices(SageServeChoices, config.choices)
    study = ScalingStudy(config, bar, choices)
    steps = {
        "planning": planning.num_steps(config),
        **scaling.num_episodes(config),
        "tiers": tiers.num_episodes(config),
        "regions": regions.num_episodes(config),
    }
    return Evaluation(
        {
            "planning": partial(planning.claims, config, bar, choices.epsilon),
            "tiers": lambda: tiers.claims(Study(config, bar, choices)),
            **{name: partial(part, study) for name, part in scaling.PARTS.items()},
            "regions": lambda: regions.claims(RegionsStudy(config, bar, choices)),
        },
        partial(total, steps),
        quick=("planning", "peak", "tiers"),
    )
