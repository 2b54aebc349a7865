"""Closing table of a training, and one sentence on how the agent compares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serving_gym.baselines.policy import Policy

AGENT, TUNED, STATIC, PLAIN, RANDOM, CLAIRVOYANT = ROLES = (
    "agent", "tuned", "static", "plain", "random", "clairvoyant",
)  # fmt: skip
_TUNED_SUFFIX = "_tuned"


def roles_of(
    policies: Mapping[str, Policy], declared: Mapping[str, str], agents: Iterable[str] = ()
) -> dict[str, str]:
    """Role of each policy of a comparison, one of `ROLES`.

    Args:
        policies: By name.
        declared: Roles that the environment declares, by policy (`envs.registration.policy_roles`).
        agents: Names of trained agents.
    """
    agents = set(agents)
    return {name: _role_of(name, policy, declared, agents) for name, policy in policies.items()}


def _role_of(name: str, policy: Policy, declared: Mapping[str, str], agents: set[str]) -> str:
    if name in agents:
        return AGENT
    if policy.clairvoyant:
        return CLAIRVOYANT
    if name in declared:
        return declared[name]
    if name == RANDOM:
        return RANDOM
    if name.endswith(_TUNED_SUFFIX):
        return TUNED
    return STATIC if name.startswith("static") else PLAIN


def closing_rows(
    agent: str, comparison: Mapping[str, Any], roles: Mapping[str, str], metrics: Sequence[str]
) -> list[list[Any]]:
    """Rows of the closing table, the highest return first; the best policy of each role is marked.

    Args:
        agent: Name of the trained agent.
        comparison: As in `comparison.json`.
        roles: By policy.
        metrics: Metrics to show in addition to the return.
    """
    policies = comparison["policies"]
    order = sorted(policies, key=lambda name: -policies[name]["metrics"]["return"]["iqm"])
    best = {role: next(name for name in order if roles[name] == role) for role in set(roles.values())}
    several = {role for role in best if sum(each == role for each in roles.values()) > 1}
    rows = []
    for name in order:
        role, figures = roles[name], policies[name]["metrics"]
        shown = f"{role} (best)" if role in several and best[role] == name else role
        first = (figures["return"]["iqm"], *figures["return"]["ci95"])
        gain = None if name == agent else gain_text(comparison["relative_improvement"][f"{agent}>{name}"])
        better = comparison["probability_of_improvement"].get(f"{agent}>{name}")
        rows.append([name, shown, first, *(figures[metric]["iqm"] for metric in metrics), gain, better])
    return rows


def gain_text(gain: Mapping[str, Any]) -> str:
    """A relative gain and its 95 % interval in percent."""
    low, high = gain["ci95"]
    return f"{100.0 * gain['iqm']:+.1f} % [{100.0 * low:+.1f}, {100.0 * high:+.1f}]"


def verdict(agent: str, comparison: Mapping[str, Any], start: str | None = None) -> str:
    """How the agent compares, in one sentence; "" where there is nothing to compare with.

    It "beats" a policy, or is "behind" it, only if the 95 % interval of the paired gain excludes zero.

    Args:
        agent: Its name.
        comparison: As in `comparison.json`.
        start: Name of the initial policy if training has not improved on it; None: it has.
    """
    if start is not None:
        return f"Training has not improved on its start ({start}): the figures of {agent} are those of its start."
    gains = {
        name: comparison["relative_improvement"][f"{agent}>{name}"]
        for name in comparison["policies"]
        if name != agent
    }
    beaten = [f"{name} by {gain_text(gain)}" for name, gain in gains.items() if gain["ci95"][0] > 0]
    level = [f"{name} ({gain_text(gain)})" for name, gain in gains.items() if _holds_zero(gain)]
    behind = [f"{name} ({gain_text(gain)})" for name, gain in gains.items() if gain["ci95"][1] < 0]
    parts = [
        f"{verb} {', '.join(names)}"
        for verb, names in (("beats", beaten), ("is level with", level), ("is behind", behind))
        if names
    ]
    return f"{agent} {'; it '.join(parts)}." if parts else ""


def _holds_zero(gain: Mapping[str, Any]) -> bool:
    low, high = gain["ci95"]
    return not (low > 0 or high < 0)
