"""Several trainings of `agent=api` or `agent=portfolio` as one policy: their networks decide together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from agents.adapter import adapter_of
from agents.api.config import APIConfig, PolicyIterationConfig
from agents.api.counterfactuals import Improvable
from agents.api.learner import read_network, write_network
from agents.checkpoint import find_checkpoint, plain, read_config, replacing, write_description
from agents.learner import build_agent_config
from agents.place_adapter import PlaceAdapter
from agents.portfolio.config import PortfolioConfig
from agents.portfolio.learner import Choosing
from agents.score_network import Committee, TrainableNetwork
from agents.set_mean import mean_network
from agents.set_network import SetNetwork
from agents.spaces import read_spaces

# Of the first checkpoint: where it was trained.
_SETTING = ("env", "workload", "cluster", "objective", "backend")
# What makes networks answer the same question; those that score places do whatever these are.
_ALIKE = ("even", "memory_s", "hidden", "start")
_ALIKE_IN_PORTFOLIOS = ("policies", "every", "memory", "hidden")


def join(checkpoints: Sequence[str], out: Path, weights: Sequence[float] = ()) -> int:
    """Writes a checkpoint whose networks are those of others, which decide by the mean of their scores.

    Trainings that share nothing err in different places, more so than the networks of one
    (`agents.api.config.APIConfig.committee`). Who is surer weighs more, and so does a training of more networks. In
    routing and sharing they become one network, as wide as all of them (`agents.set_mean`), and count as one if they
    are joined again. All settings are those of the first, in dp_tp also how long they wait after a split
    (`agent.dwell_s`), in routing the guard (`agent.guard`).

    Args:
        checkpoints: As `agents.checkpoint.load_policy` takes them; at least two.
        out: Folder of the new one.
        weights: What the scores of each checkpoint's networks weigh, of any sum; none: as much as those of any other.
            In a state that is unlike those of its training a network is for the start, or the first of a portfolio's
            policies, with a score of 1, and one that found no departure worth while always is.

    Returns:
        How many networks decide.

    Raises:
        ValueError: one is of another agent or environment, started from or chooses among other policies (but for
            routing and sharing), sees or does something else, is there twice, or is where the new one is to be; there
            are weights that are not positive, too few or too many.
    """
    if len(checkpoints) < 2:
        raise ValueError(f"checkpoints must be two or more, got {list(checkpoints)}")
    if weights and (len(weights) != len(checkpoints) or not all(0.0 < each < math.inf for each in weights)):
        raise ValueError(
            f"weights must be none, or a positive number for each of the {len(checkpoints)} checkpoints, "
            f"got {list(weights)}"
        )
    folders = [find_checkpoint(each) for each in checkpoints]
    for i, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:i]]:
            raise ValueError(f"checkpoints must differ, {checkpoints[i]!r} is there twice")
        if folder.resolve() == out.resolve():
            raise ValueError(f"{checkpoints[i]!r} is where the new checkpoint is to be; choose another out")
    configs = [read_config(folder) for folder in folders]
    agents = [_agent(name, config) for name, config in zip(checkpoints, configs, strict=True)]
    observation, action = read_spaces(folders[0])
    adapter = _adapter(configs[0], agents[0])
    first, networks = _sees(configs[0], agents[0], folders[0]), list[nn.Module]()
    for name, folder, config, agent in zip(checkpoints, folders, configs, agents, strict=True):
        _check_alike(checkpoints[0], first, name, _sees(config, agent, folder))
        networks.append(read_network(adapter, observation, agent, folder))
    together, number = _together(networks, weights or [1.0] * len(networks))
    settings = {name: value for name, value in configs[0].items() if name in _SETTING}
    if isinstance(together, SetNetwork):
        settings["agent"] = plain(replace(agents[0], hidden=together.row.in_features))
    elif isinstance(agents[0], APIConfig):
        settings["agent"] = plain(replace(agents[0], committee=number))
    else:
        settings["agent"] = plain(agents[0])
    figures = {"joined": ", ".join(checkpoints), "networks": number}
    if weights:
        figures["weights"] = ", ".join(f"{each:g}" for each in weights)
    with replacing(out) as fresh:
        write_network(together, fresh)
        write_description(fresh, settings, observation, action, figures)
    return number


def _together(networks: Sequence[nn.Module], weights: Sequence[float]) -> tuple[SetNetwork | Committee, int]:
    """What decides by the mean of their scores, and how many networks that are."""
    sets = [each for each in networks if isinstance(each, SetNetwork)]
    if sets:
        return mean_network(sets, weights), len(sets)
    members, shares = list[TrainableNetwork](), list[float]()
    for each, weight in zip(networks, weights, strict=True):
        assert isinstance(each, TrainableNetwork | Committee)
        group = each.networks if isinstance(each, Committee) else (each,)
        members += group
        shares += [weight] * len(group)
    for member, share in zip(members, shares, strict=True):
        member.weigh(share * len(members) / sum(shares))
    return Committee(members), len(members)


def _agent(name: str, config: dict[str, Any]) -> PolicyIterationConfig:
    """Settings of an agent whose networks can be joined to others."""
    agent = build_agent_config(config["agent"])
    if not isinstance(agent, APIConfig | PortfolioConfig):
        raise ValueError(
            f"{name!r} is of agent={agent.name}; those of agent=api and agent=portfolio alone can be joined"
        )
    return agent


def _adapter(config: dict[str, Any], agent: PolicyIterationConfig) -> Improvable:
    adapter = adapter_of(config["env"]["name"])
    return Choosing(adapter) if isinstance(agent, PortfolioConfig) else adapter


def _sees(config: dict[str, Any], agent: PolicyIterationConfig, folder: Path) -> dict[str, Any]:
    """What a network answers to, and what its answers mean."""
    observation, action = read_spaces(folder)
    alike: tuple[str, ...] = _ALIKE
    if isinstance(agent, PortfolioConfig):
        alike = _ALIKE_IN_PORTFOLIOS
    elif isinstance(_adapter(config, agent), PlaceAdapter):
        alike = ()
    return {
        "env": config["env"]["name"],
        "agent": agent.name,
        "observation": {name: box.shape for name, box in observation.items()},
        "action": str(action),
        "objective": config.get("objective"),
        "env.scales": config["env"].get("scales"),
        "env.decision_interval_s": config["env"].get("decision_interval_s"),
        **{f"agent.{name}": plain(getattr(agent, name)) for name in alike},
    }


def _check_alike(first: str, expected: dict[str, Any], name: str, found: dict[str, Any]) -> None:
    for key, value in expected.items():
        if found[key] != value:
            raise ValueError(
                f"{name!r} cannot be joined to {first!r}: its {key} is {found[key]}, that of the other {value}"
            )
