"""Joins several trainings of `agent=api` or `agent=portfolio` into one policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from serving_gym.agents.checkpoint import (
    LAST,
    find_checkpoint,
    plain,
    read_config,
    replacing,
    standing,
    write_description,
)
from serving_gym.agents.environments.adapter import adapter_of
from serving_gym.agents.environments.place_adapter import PlaceAdapter
from serving_gym.agents.environments.spaces import read_spaces
from serving_gym.agents.learners.api.config import APIConfig, PolicyIterationConfig
from serving_gym.agents.learners.api.counterfactuals import Improvable
from serving_gym.agents.learners.api.data import read_batches
from serving_gym.agents.learners.api.learner import DATA, read_network, write_network
from serving_gym.agents.learners.api.retraining import retrain
from serving_gym.agents.learners.learner import build_agent_config
from serving_gym.agents.learners.portfolio.config import PortfolioConfig
from serving_gym.agents.learners.portfolio.learner import Choosing
from serving_gym.agents.networks.score_network import Committee, TrainableNetwork
from serving_gym.agents.networks.set_mean import mean_network
from serving_gym.agents.networks.set_network import SetNetwork

# Of the first checkpoint: where it was trained.
_SETTING = ("env", "workload", "cluster", "objective", "backend")
# What makes networks answer the same question; those that score places do whatever these are.
_ALIKE = ("even", "memory_s", "hidden", "start")
_ALIKE_IN_PORTFOLIOS = ("policies", "every", "memory", "hidden")
_OF_ADVANTAGES = ("worst", "least_cost", "cost_power")  # what makes gains mean the same


def join(checkpoints: Sequence[str], out: Path, weights: Sequence[float] = (), command: str = "") -> int:
    """Writes a checkpoint that is an ensemble of other checkpoints' networks, by the mean of their scores.

    Trainings that share nothing err in different places, more so than the networks of one
    (`agents.learners.api.config.APIConfig.committee`). Who is surer weighs more, and so does a training of
    more networks. In
    routing and sharing they become one network, as wide as all of them (`agents.networks.set_mean`), and count
    as one if they
    are joined again. All settings are those of the first, in dp_tp also how long they wait after a split
    (`agent.dwell_s`), in routing the guard (`agent.guard`).

    Args:
        checkpoints: As `agents.checkpoint.load_policy` takes them; at least two.
        out: Folder of the new one.
        weights: What the scores of each checkpoint's networks weigh, of any sum; none: as much as those of any other.
            In a state that is unlike those of its training a network is for the start, or the first of a portfolio's
            policies, with a score of 1, and one that found no departure worth while always is.
        command: The command that joins them, for the card.

    Returns:
        How many networks decide.

    Raises:
        ValueError: one is of another agent or environment, started from or chooses among other policies (but for
            routing and sharing), sees or does something else, is there twice, or is where the new one is to be; there
            are weights that are not positive, too few or too many.
    """
    if weights and (len(weights) != len(checkpoints) or not all(0.0 < each < math.inf for each in weights)):
        raise ValueError(
            f"weights must be none, or a positive number for each of the {len(checkpoints)} checkpoints, "
            f"got {list(weights)}"
        )
    folders = [find_checkpoint(each) for each in checkpoints]
    configs, agents = _alike(checkpoints, folders, out)
    observation, action = read_spaces(folders[0])
    adapter = _adapter(configs[0], agents[0])
    networks = [
        read_network(adapter, observation, agent, folder)
        for agent, folder in zip(agents, folders, strict=True)
    ]
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
        write_description(fresh, settings, observation, action, figures, command=command)
    return number


def learn_together(
    checkpoints: Sequence[str], out: Path, networks: int, epochs: int, seed: int, command: str = ""
) -> int:
    """Writes a checkpoint with new networks, trained on the stored states of all trainings.

    Each training knows what its own policies came by, all of them more: where they are short, networks that learn from
    all their states are better than all their networks together. All settings are those of the first.

    Args:
        checkpoints: Folders of trainings that can be gone on with, or of their runs; at least two.
        out: Folder of the new one.
        networks: How many there are to be; they decide by the mean of their scores.
        epochs: Passes over the states.
        seed: Of weights and of the order of states.
        command: The command that is run, for the card.

    Returns:
        How many states they learn from.

    Raises:
        ValueError: as `join`; one has kept no states, started from a policy, or is of an agent or an environment that
            lets one network decide.
    """
    folders = [_training(each) for each in checkpoints]
    configs, agents = _alike(checkpoints, folders, out)
    config, adapter = agents[0], _adapter(configs[0], agents[0])
    if not isinstance(config, APIConfig) or config.start is not None or isinstance(adapter, PlaceAdapter):
        raise ValueError(
            "epochs is for agent=api without a start, in env=autoscaling, deployment and dp_tp, alone; leave it null"
        )
    for name in _OF_ADVANTAGES:
        for other, agent in zip(checkpoints, agents, strict=True):
            if getattr(agent, name) != getattr(config, name):
                raise ValueError(
                    f"{other!r} cannot be learned from beside {checkpoints[0]!r}: its agent.{name} is "
                    f"{getattr(agent, name)}, that of the other {getattr(config, name)}"
                )
    config = replace(config, committee=networks, epochs=epochs)
    observation, action = read_spaces(folders[0])
    batches = [batch for folder in folders for batch in read_batches(folder / DATA) if batch.states]
    if not batches:
        raise ValueError(f"{', '.join(map(repr, checkpoints))} have met no states yet; train for longer")
    together = retrain(batches, config, adapter, observation, networks, seed)
    number = sum(len(batch.states) for batch in batches)
    settings = {name: value for name, value in configs[0].items() if name in _SETTING} | {
        "agent": plain(config)
    }
    figures = {"states of": ", ".join(checkpoints), "states": number, "networks": networks, "seed": seed}
    with replacing(out) as fresh:
        write_network(together, fresh)
        write_description(fresh, settings, observation, action, figures, command=command)
    return number


def _training(name: str) -> Path:
    """Folder with a training's stored states."""
    for folder in (Path(name), standing(Path(name) / LAST)):
        if (folder / DATA).is_file():
            return folder
    raise ValueError(
        f"no states of a training in {name!r}: epochs is for runs of runners.train with agent=api; leave it null"
    )


def _alike(
    checkpoints: Sequence[str], folders: Sequence[Path], out: Path
) -> tuple[list[dict[str, Any]], list[PolicyIterationConfig]]:
    """Settings of checkpoints and of their agents: two or more different ones for the same decisions."""
    if len(checkpoints) < 2:
        raise ValueError(f"checkpoints must be two or more, got {list(checkpoints)}")
    for i, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:i]]:
            raise ValueError(f"checkpoints must differ, {checkpoints[i]!r} is there twice")
        if folder.resolve() == out.resolve():
            raise ValueError(f"{checkpoints[i]!r} is where the new checkpoint is to be; choose another out")
    configs = [read_config(folder) for folder in folders]
    agents = [_agent(name, config) for name, config in zip(checkpoints, configs, strict=True)]
    first = _sees(configs[0], agents[0], folders[0])
    for name, folder, config, agent in zip(checkpoints, folders, configs, agents, strict=True):
        _check_alike(checkpoints[0], first, name, _sees(config, agent, folder))
    return configs, agents


def _together(networks: Sequence[nn.Module], weights: Sequence[float]) -> tuple[SetNetwork | Committee, int]:
    """The ensemble by the mean of scores, and its number of networks."""
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
    """Inputs and outputs of a network."""
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
