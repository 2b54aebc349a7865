"""SageServe's evaluation (Jaiswal et al., 2025, section 7) beside ours.

    planning.py section 5: how long the optimiser takes
    scaling.py  sections 4 and 7.2: instance-hours, latency and start-ups of the autoscalers
    tiers.py    section 7.2.6: four schedulers and two interactive tiers

The paper's traces are not public and its text leaves open much of the setting; `study.py` and `scaling_study.py` say
what was chosen, when and why.
"""

from __future__ import annotations

from runners.progress import progress_bar
from runners.reproduction.claims import Claim
from runners.reproduction.sageserve import planning, scaling, tiers
from runners.reproduction.sageserve.scaling_study import ScalingStudy
from runners.reproduction.sageserve.study import Study
from runners.schema import ReproduceConfig


def reproduce(config: ReproduceConfig) -> list[Claim]:
    """Every headline number of the paper, as far as it goes, beside ours."""
    total = planning.num_steps(config) + scaling.num_steps(config) + tiers.num_episodes(config)
    with progress_bar(total, "reproduce sageserve", "episode") as bar:
        found = planning.claims(config, bar) + scaling.claims(ScalingStudy(config, bar))
        return found + tiers.claims(Study(config, bar))
