"""SageServe's evaluation (Jaiswal et al., 2025, section 7) beside ours.

    tiers.py    section 7.2.6: four schedulers and two interactive tiers

The paper's traces are not public and its text leaves open much of the setting; `study.py` says what was chosen and why,
before any outcome was looked at.
"""

from __future__ import annotations

from runners.progress import progress_bar
from runners.reproduction.claims import Claim
from runners.reproduction.sageserve import tiers
from runners.reproduction.sageserve.study import Study
from runners.schema import ReproduceConfig


def reproduce(config: ReproduceConfig) -> list[Claim]:
    """Every headline number of the paper, as far as it goes, beside ours."""
    with progress_bar(tiers.num_episodes(config), "reproduce sageserve", "episode") as bar:
        return tiers.claims(Study(config, bar))
