"""SageServe's evaluation (Jaiswal et al., 2025, section 7) beside ours.

    planning.py section 5: how long the optimiser takes
    tiers.py    section 7.2.6: four schedulers and two interactive tiers

The paper's traces are not public and its text leaves open much of the setting; `study.py` says what was chosen and why,
before any outcome was looked at.
"""

from __future__ import annotations

from runners.progress import progress_bar
from runners.reproduction.claims import Claim
from runners.reproduction.sageserve import planning, tiers
from runners.reproduction.sageserve.study import Study
from runners.schema import ReproduceConfig


def reproduce(config: ReproduceConfig) -> list[Claim]:
    """Every headline number of the paper, as far as it goes, beside ours."""
    total = planning.num_steps(config) + tiers.num_episodes(config)
    with progress_bar(total, "reproduce sageserve", "episode") as bar:
        return planning.claims(config, bar) + tiers.claims(Study(config, bar))
