"""The policies of a portfolio."""

from __future__ import annotations

from agents.api.start import Start
from agents.portfolio.config import PortfolioConfig
from agents.teacher import make_teacher

KEY = "agent.policies"


def members_of(config: PortfolioConfig) -> list[Start]:
    """One of each.

    Raises:
        ValueError: there are not two; there is no such policy, or it looks at the future.
    """
    if len(config.policies) < 2:
        raise ValueError(
            f"{KEY} must name at least two policies, as in {KEY}=[jsq,llm_d], got {len(config.policies)}"
        )
    return [Start(make_teacher(policy, KEY), KEY) for policy in config.policies]
