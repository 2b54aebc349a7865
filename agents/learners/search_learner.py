"""Searches over parameters: ARS over a network's, CMA-ES over a network's or over a heuristic's constants.

One round is one population. Its candidates play the same episodes, so that they differ by what they do alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import cma
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from serving_gym.agents.checkpoint import find_checkpoint, read_config
from serving_gym.agents.config import ARSConfig, CMAESConfig, SearchConfig, searched_constants
from serving_gym.agents.environments.adapter import Adapter, adapter_of
from serving_gym.agents.environments.spaces import ActionSpace, read_spaces
from serving_gym.agents.learners.learner import Budget, Learner, Task, build_agent_config
from serving_gym.agents.learners.returns import Stage, shares
from serving_gym.agents.learners.teacher import make_teacher
from serving_gym.agents.networks.networks import DecisionNetwork
from serving_gym.agents.policies.network_policy import NetworkPolicy, scores_of
from serving_gym.baselines.policy import Policy
from serving_gym.baselines.ranges import from_unit, to_unit
from serving_gym.baselines.registry import make_policy
from serving_gym.envs.base.vector_env import MAX_SEED

FloatArray = NDArray[np.float64]
PARAMETERS, STATE, PICKLED = "parameters.json", "search.json", "search.pkl"
_STREAM = 0x5EA2C


class Candidates(Protocol):
    """Candidates of a search: parameters, their bounds and policies."""

    start: FloatArray  # where the search begins

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Bounds of every parameter."""
        ...

    def policy(self, parameters: FloatArray, name: str) -> Policy:
        """The policy of a parameter vector."""
        ...


class NetworkCandidates:
    """Parameters of a network, flattened.

    Args:
        config: Settings of the agent.
        adapter: Of the environment.
        observation: Observation space of the environment.
        action: Action space.
    """

    bounds = None

    def __init__(
        self, config: SearchConfig, adapter: Adapter, observation: spaces.Dict, action: ActionSpace
    ) -> None:
        self.adapter, self.observation, self.action = adapter, observation, action
        self.network: DecisionNetwork = adapter.search_network(observation, action, config.network)
        self.network.begin()
        self.start = parameters_to_vector(self.network.parameters()).detach().double().numpy()

    def policy(self, parameters: FloatArray, name: str) -> NetworkPolicy:
        """Greedy in the network."""
        with torch.no_grad():
            vector_to_parameters(torch.as_tensor(parameters).float(), self.network.parameters())
        return NetworkPolicy(
            scores_of(self.network),
            self.adapter,
            name,
            self.observation,
            self.action,
            any_length=self.network.any_length,
        )


class HeuristicCandidates:
    """Constants of a heuristic, each scaled to its range.

    Args:
        heuristic: Name and parameters, from which the search begins.

    Raises:
        ValueError: it declares no constants, or leaves one out.
    """

    bounds = (0.0, 1.0)

    def __init__(self, heuristic: Mapping[str, Any]) -> None:
        self.name, self.params = heuristic["name"], dict(heuristic.get("params", {}))
        self.tunables = searched_constants(heuristic)
        places = [to_unit(range_, float(self.params[key])) for key, range_ in self.tunables.items()]
        self.start = np.array(places)

    def policy(self, parameters: FloatArray, name: str) -> Policy:
        """The heuristic with these constants."""
        constants = {
            key: from_unit(range_, float(place))
            for (key, range_), place in zip(self.tunables.items(), parameters, strict=True)
        }
        policy = make_policy(self.name, **{**self.params, **constants})
        policy.name = name
        return policy


class ARSSearch:
    """Augmented random search (Mania et al. 2018, algorithm 1, V1-t).

    With nu the size of the steps and alpha the step size, a round tries M + nu d and M - nu d for each of N directions
    d, keeps the b directions with the highest max(r+, r-), and moves M by alpha / (b sigma_R) times the sum of
    (r+ - r-) d, sigma_R the spread of the 2 b returns. sb3-contrib has it as well, but plays every candidate on other
    episodes, whose arrivals then decide which of them looks best.

    Args:
        config: Settings.
        start: Parameters.
        rng: Draws directions.
    """

    def __init__(self, config: ARSConfig, start: FloatArray, rng: np.random.Generator) -> None:
        self.config, self.mean, self.rng = config, start, rng
        self._directions = np.zeros((0, len(start)))

    def ask(self) -> list[FloatArray]:
        """Candidates of a round, forwards first."""
        self._directions = self.rng.standard_normal((self.config.directions, len(self.mean)))
        steps = self.config.sigma * self._directions
        return [*(self.mean + steps), *(self.mean - steps)]

    def tell(self, candidates: list[FloatArray], returns: FloatArray) -> None:
        """Updates the mean from the candidates' returns."""
        forwards, backwards = np.split(returns, 2)
        best = np.argsort(-np.maximum(forwards, backwards), kind="stable")[: self.config.kept_directions]
        spread = float(np.concatenate([forwards[best], backwards[best]]).std())
        if spread > 0:
            step = (forwards[best] - backwards[best]) @ self._directions[best]
            self.mean = self.mean + self.config.learning_rate / (len(best) * spread) * step


class CMASearch:
    """CMA-ES, by `cma`.

    Args:
        config: Settings.
        start: Parameters.
        bounds: Of every parameter.
        rng: Draws candidates.
    """

    def __init__(
        self,
        config: CMAESConfig,
        start: FloatArray,
        bounds: tuple[float, float] | None,
        rng: np.random.Generator,
    ) -> None:
        self.rng, self.size = rng, len(start)
        idle = max(
            0, 2 - self.size
        )  # CMA-ES wants two dimensions; the second one of a single constant is idle
        options: dict[str, Any] = {
            "seed": math.nan,  # leave NumPy's global generator alone
            "randn": self._normal,
            "verbose": -9,
            "CMA_diagonal": config.diagonal,
        }
        if config.population is not None:
            options["popsize"] = config.population
        if bounds is not None:
            options["bounds"] = list(bounds)
        self._strategy = cma.CMAEvolutionStrategy([*start, *([0.5] * idle)], config.sigma, options)

    def _normal(self, *shape: int) -> FloatArray:
        return self.rng.standard_normal(shape)

    @property
    def mean(self) -> FloatArray:
        """Present mean of the search, inside the bounds."""
        strategy = self._strategy
        return np.asarray(strategy.boundary_handler.repair(strategy.mean))[: self.size]

    def ask(self) -> list[FloatArray]:
        """Candidates of a round."""
        self._asked = self._strategy.ask()
        return [np.asarray(candidate)[: self.size] for candidate in self._asked]

    def tell(self, candidates: list[FloatArray], returns: FloatArray) -> None:
        """Updates the search from the candidates' returns."""
        self._strategy.tell(self._asked, (-returns).tolist())


class SearchLearner(Learner):
    """Learns parameters from returns of whole episodes.

    Args:
        config: Settings.
        task: The training task.

    Raises:
        ValueError: a heuristic without constants; a checkpoint to begin with that is of something else.
    """

    def __init__(self, config: SearchConfig, task: Task) -> None:
        self.config, self.task = config, task
        torch.manual_seed(task.seed)
        self.rng = np.random.default_rng([task.seed, _STREAM])
        self._budget = Budget(config.total_steps)
        self.stage = Stage(task, config.episodes, lambda steps: self._budget.count(steps))
        self.candidates = _candidates(
            config, task.env, self.stage.scalar.observation_space, self.stage.scalar.action_space
        )
        reference = config.reference
        self.reference = None if reference is None else make_teacher(reference, "agent.reference")
        if config.start is not None:
            self.candidates.start = _parameters_of(config.start["path"], task.env, len(self.candidates.start))
        self._told: list[list[float]] = []  # returns of each round's candidates
        self.search: ARSSearch | CMASearch
        if isinstance(config, ARSConfig):
            self.search = ARSSearch(config, self.candidates.start, self.rng)
        else:
            assert isinstance(config, CMAESConfig)
            self.search = CMASearch(config, self.candidates.start, self.candidates.bounds, self.rng)

    def improve(self, budget: Budget) -> dict[str, float]:
        """One population."""
        self._budget = budget
        seeds, tried = self._ask()
        policies = (self.candidates.policy(each, self.config.name) for each in tried)
        returns = np.array([self.stage.returns(policy, seeds) for policy in policies])
        self._tell(tried, self._counted(returns, seeds).mean(axis=1))
        means = returns.mean(axis=1)
        return {"mean_return": float(means.mean()), "best_return": float(means.max())}

    def _ask(self) -> tuple[list[int], list[FloatArray]]:
        """Seeds and candidates of a round."""
        seeds: list[int] = self.rng.integers(MAX_SEED, size=self.config.episodes).tolist()
        return seeds, self.search.ask()

    def _tell(self, tried: list[FloatArray], returns: FloatArray) -> None:
        self.search.tell(tried, returns)
        self._told.append(returns.tolist())

    def _counted(self, returns: FloatArray, seeds: list[int]) -> FloatArray:
        """Returns, (candidates, episodes), plain, or divided by those of the reference or of the initial parameters."""
        if self.reference is not None:
            measure = self.reference
        elif self.config.relative:
            measure = self.candidates.policy(self.candidates.start, self.config.name)
        else:
            return returns
        return shares(returns, self.stage.returns(measure, seeds), self.config.clip)

    def policy(self) -> Policy:
        """The policy of the search's present mean."""
        return self.candidates.policy(self.search.mean, self.config.name)

    def save_policy(self, folder: Path) -> None:
        """Writes the parameters."""
        text = json.dumps({"parameters": self.search.mean.tolist()})
        (folder / PARAMETERS).write_text(text, encoding="utf-8")

    def save_training(self, folder: Path) -> None:
        """Writes the returns of every round, from which the search is repeated, and the mean that it comes to."""
        text = json.dumps({"returns": self._told, "mean": self.search.mean.tolist()})
        (folder / STATE).write_text(text, encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """Repeats the search with the returns that were written.

        Raises:
            ValueError: they are of an earlier version, which pickled them, or lead to another mean than they did.
        """
        if not (folder / STATE).is_file() and (folder / PICKLED).is_file():
            raise ValueError(
                f"{folder / PICKLED} is a pickle of an earlier version, which is not read; begin the training anew"
            )
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        for returns in state["returns"]:
            _, tried = self._ask()
            self._tell(tried, np.array(returns))
        if self.search.mean.tolist() != state["mean"]:
            raise ValueError(
                f"{folder / STATE} was written by another version of this package or of cma; begin the training anew"
            )


def _candidates(config: SearchConfig, env: str, observation: Any, action: Any) -> Candidates:
    """What a configuration searches."""
    heuristic = getattr(config, "heuristic", None)
    if heuristic is not None:
        return HeuristicCandidates(heuristic)
    return NetworkCandidates(config, adapter_of(env), observation, action)


def _parameters_of(checkpoint: str, env: str, number: int) -> FloatArray:
    """The initial parameters from a checkpoint.

    Args:
        checkpoint: `zoo/NAME`, its folder, or that of the run which wrote it.
        env: The environment.
        number: Parameters that are searched.

    Raises:
        ValueError: they are none of such a search.
    """
    folder = find_checkpoint(checkpoint)
    said = read_config(folder)
    if not (folder / PARAMETERS).is_file() or said["agent"].get("heuristic") is not None:
        raise ValueError(
            f"agent.start must be a network's parameters that agent=ars or cma_es found; {checkpoint!r} is of "
            f"agent={said['agent']['name']}"
        )
    if said["env"]["name"] != env:
        raise ValueError(f"agent.start must be of env={env}, {checkpoint!r} is of env={said['env']['name']}")
    found = _read(folder)
    if len(found) != number:
        raise ValueError(f"agent.start must have {number} parameters, {checkpoint!r} has {len(found)}")
    return found


def _read(folder: Path) -> FloatArray:
    """Parameters of a checkpoint."""
    return np.array(json.loads((folder / PARAMETERS).read_text(encoding="utf-8"))["parameters"], np.float64)


def load(folder: Path, config: Mapping[str, Any], name: str) -> Policy:
    """The policy of a checkpoint; see `agents.learners.learner.AgentEntry`.

    Raises:
        ValueError: it has another number of parameters than such a policy.
    """
    settings = build_agent_config(config["agent"])
    candidates = _candidates(settings, config["env"]["name"], *read_spaces(folder))
    parameters = _read(folder)
    if len(parameters) != len(candidates.start):
        raise ValueError(
            f"{name} has {len(parameters)} parameters, its network {len(candidates.start)}: it was trained by "
            "another version"
        )
    return candidates.policy(parameters, name)
