"""The policies of a portfolio."""

from __future__ import annotations

from serving_gym.agents.learners.api.start import Start
from serving_gym.agents.learners.portfolio.config import PortfolioConfig
from serving_gym.agents.learners.teacher import make_teacher
from serving_gym.baselines.common.static import DeployOncePolicy
from serving_gym.baselines.policy import Policy

KEY = "agent.policies"


def make_policies(config: PortfolioConfig) -> list[Start]:
    """Builds the policies.

    Raises:
        ValueError: there are not two; there is no such policy, it looks at the future, or it acts at the start alone.
    """
    if len(config.policies) < 2:
        raise ValueError(
            f"{KEY} must name at least two policies, as in {KEY}=[jsq,llm_d], got {len(config.policies)}"
        )
    return [Start(_lasting(make_teacher(policy, KEY)), KEY) for policy in config.policies]


def _lasting(policy: Policy) -> Policy:
    """A policy that can be followed from any time on."""
    if isinstance(policy, DeployOncePolicy):
        raise ValueError(
            f"{KEY} must act at any time, {policy.name!r} deploys once at the start; to keep a layout, name "
            "{name: load_threshold, params: {layouts: [4x2]}}"
        )
    return policy
