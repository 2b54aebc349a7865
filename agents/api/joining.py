"""Several trainings of `agent=api` as one policy: their networks decide together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.adapter import adapter_of
from agents.api.config import APIConfig
from agents.api.learner import read_network, write_network
from agents.checkpoint import find_checkpoint, plain, read_config, replacing, write_description
from agents.learner import build_agent_config
from agents.score_network import Committee, TrainableNetwork
from agents.spaces import read_spaces

# Of the first checkpoint: where it was trained.
_SETTING = ("env", "workload", "cluster", "objective", "backend")
_ALIKE = ("even", "memory_s", "hidden", "start")  # what makes networks answer the same question


def join(checkpoints: Sequence[str], out: Path) -> int:
    """Writes a checkpoint whose networks are those of others, which decide by the mean of their scores.

    Trainings that share nothing err in different places, more so than the networks of one
    (`agents.api.config.APIConfig.committee`). Who is surer weighs more, and so does a training of more networks. All
    settings are those of the first, in dp_tp also how long they wait after a split (`agent.dwell_s`).

    Args:
        checkpoints: As `agents.checkpoint.load_policy` takes them; at least two.
        out: Folder of the new one.

    Returns:
        How many networks decide.

    Raises:
        ValueError: one is of another agent or environment, was started from a policy, sees or does something else, is
            there twice, or is where the new one is to be.
    """
    if len(checkpoints) < 2:
        raise ValueError(f"checkpoints must be two or more, got {list(checkpoints)}")
    folders = [find_checkpoint(each) for each in checkpoints]
    for i, folder in enumerate(folders):
        if folder.resolve() in [other.resolve() for other in folders[:i]]:
            raise ValueError(f"checkpoints must differ, {checkpoints[i]!r} is there twice")
        if folder.resolve() == out.resolve():
            raise ValueError(f"{checkpoints[i]!r} is where the new checkpoint is to be; choose another out")
    configs = [read_config(folder) for folder in folders]
    agents = [_agent(name, config) for name, config in zip(checkpoints, configs, strict=True)]
    observation, action = read_spaces(folders[0])
    adapter = adapter_of(configs[0]["env"]["name"])
    first, members = _sees(configs[0], agents[0], folders[0]), list[TrainableNetwork]()
    for name, folder, config, agent in zip(checkpoints, folders, configs, agents, strict=True):
        _check_alike(checkpoints[0], first, name, _sees(config, agent, folder))
        network = read_network(adapter, observation, agent, folder)
        assert isinstance(network, TrainableNetwork | Committee)
        members += network.networks if isinstance(network, Committee) else (network,)
    settings = {name: value for name, value in configs[0].items() if name in _SETTING}
    settings["agent"] = plain(replace(agents[0], committee=len(members)))
    figures = {"joined": ", ".join(checkpoints), "networks": len(members)}
    with replacing(out) as fresh:
        write_network(Committee(members), fresh)
        write_description(fresh, settings, observation, action, figures)
    return len(members)


def _agent(name: str, config: dict[str, Any]) -> APIConfig:
    """Settings of an agent whose networks can be joined to others."""
    agent, env = build_agent_config(config["agent"]), config["env"]["name"]
    if not isinstance(agent, APIConfig):
        raise ValueError(f"{name!r} is of agent={agent.name}; those of agent=api alone can be joined")
    if env in ("routing", "sharing"):
        raise ValueError(f"{name!r} is of env={env}, where one network alone decides")
    if agent.start is not None:
        raise ValueError(f"{name!r} was started from a policy, beside which one network alone decides")
    return agent


def _sees(config: dict[str, Any], agent: APIConfig, folder: Path) -> dict[str, Any]:
    """What a network answers to, and what its answers mean."""
    observation, action = read_spaces(folder)
    return {
        "env": config["env"]["name"],
        "observation": {name: box.shape for name, box in observation.items()},
        "action": str(action),
        "objective": config.get("objective"),
        "env.scales": config["env"].get("scales"),
        "env.decision_interval_s": config["env"].get("decision_interval_s"),
        **{f"agent.{name}": plain(getattr(agent, name)) for name in _ALIKE},
    }


def _check_alike(first: str, expected: dict[str, Any], name: str, found: dict[str, Any]) -> None:
    for key, value in expected.items():
        if found[key] != value:
            raise ValueError(
                f"{name!r} cannot be joined to {first!r}: its {key} is {found[key]}, that of the other {value}"
            )
