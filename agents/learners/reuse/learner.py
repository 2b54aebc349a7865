"""Learning when models are asked for again, from traffic alone.

Whom to evict from a cache has an answer that needs the future (Belady 1966). To learn how far off each next request is
and act on it is learned relaxed Belady (Song et al., NSDI 2020, "Learning relaxed Belady for content distribution
network caching"); here a network learns how likely each model is to be asked for in each span of time to come, and an
index is made of that (`agents.learners.reuse.network`). Who asks does not depend on who is kept, so that what
was learned holds for any nodes, and whatever fills their memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from serving_gym.agents.environments.spaces import read_spaces
from serving_gym.agents.learners.learner import Budget, Learner, Task, build_agent_config
from serving_gym.agents.learners.reuse.config import ReuseConfig
from serving_gym.agents.learners.reuse.moments import SCALE_S, Moments, draw_moments, joined
from serving_gym.agents.learners.reuse.network import ReuseNetwork, loss_of, targets
from serving_gym.agents.learners.reuse.policy import ReusePolicy
from serving_gym.agents.learners.training_state import read_training_state, write_training_state
from serving_gym.baselines.policy import Policy
from serving_gym.envs.base.vector_env import MAX_SEED
from serving_gym.envs.sharing.config import SharingConfig
from serving_gym.envs.sharing.episode import SharingEpisode
from serving_gym.envs.sharing.spaces import make_spaces

WEIGHTS, OPTIMIZER, DATA, STATE = "weights.pt", "optimizer.pt", "data.npz", "training.json"
_STREAM = 0x2EC5E
_LEAST_RATE = 0.05  # of the learning rate, in the end


class ReuseLearner(Learner):
    """Draws moments from training episodes and learns what followed them.

    Args:
        config: Its settings.
        task: The training task.

    Raises:
        ValueError: the environment has no instances that make room for others, or a workload names no models.
    """

    def __init__(self, config: ReuseConfig, task: Task) -> None:
        if task.env != "sharing":
            raise ValueError(
                f"agent=reuse learns which instances to keep, which env=sharing alone asks, got env={task.env}"
            )
        self.config = config
        places = [SharingEpisode(SharingConfig(**arguments)) for arguments in task.places]
        for place in places:
            check_replacing(place.config)
        self.sources = [place.source for place in places]
        observation, _ = make_spaces(places[0])
        assert isinstance(observation, spaces.Dict)
        self.observation = observation
        self.rng = np.random.default_rng([task.seed, _STREAM])
        self.generator = torch.Generator().manual_seed(task.seed)
        torch.manual_seed(task.seed)
        self.network = ReuseNetwork(config.width)
        self.optimizer = torch.optim.Adam(self.network.parameters(), config.learning_rate)
        self.moments: Moments | None = None  # those kept
        self._turn = 0

    def improve(self, budget: Budget) -> dict[str, float]:
        """Draws the moments of a few episodes, of one workload after another, and learns from all that are kept."""
        fresh = [self._draw() for _ in range(self.config.episodes)]
        kept = [] if self.moments is None else [self.moments]
        self.moments = joined([*kept, *fresh], self.config.most_moments)
        number = sum(map(len, fresh))
        budget.count(number)
        rate = self.config.learning_rate * max(_LEAST_RATE, 1.0 - budget.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return {"loss": self._learn(max(1, number * self.config.passes // self.config.batch_size))}

    def _draw(self) -> Moments:
        """The moments of one episode."""
        source = self.sources[self._turn % len(self.sources)]
        self._turn += 1
        seed = int(self.rng.integers(MAX_SEED))
        return draw_moments(source, seed, self.config.moments, self.rng)

    def _learn(self, steps: int) -> float:
        """So many steps; returns their mean loss."""
        total, moments = 0.0, self.moments
        assert moments is not None
        for _ in range(steps):
            rows = torch.randint(len(moments), (self.config.batch_size,), generator=self.generator)
            batch = moments.rows(rows.numpy())
            loss = loss_of(self.network(torch.from_numpy(batch.seen)), *targets(batch))
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            total += float(loss.detach())
        return total / steps

    def policy(self) -> ReusePolicy:
        """The policy as it is now."""
        return ReusePolicy(self.network.export(), self.config.name, self.observation, self.config.fill)

    def save_policy(self, folder: Path) -> None:
        """Writes the weights."""
        torch.save(self.network.state_dict(), folder / WEIGHTS)

    def save_training(self, folder: Path) -> None:
        """Writes the optimizer, the moments that are kept and the random generators."""
        torch.save(self.optimizer.state_dict(), folder / OPTIMIZER)
        if self.moments is not None:
            np.savez(folder / DATA, **vars(self.moments))
        write_training_state(folder / STATE, self.rng, self.generator, turn=self._turn)

    def restore(self, folder: Path) -> None:
        """Goes on from there."""
        self.network.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
        self.optimizer.load_state_dict(torch.load(folder / OPTIMIZER, weights_only=True))
        if (folder / DATA).is_file():
            with np.load(folder / DATA) as data:
                self.moments = Moments(**data)
        self._turn = read_training_state(folder / STATE, self.rng, self.generator)["turn"]


def check_replacing(config: SharingConfig) -> None:
    """Refuses a setting in which nobody is asked who goes, or in which time shows otherwise than is learned here.

    Raises:
        ValueError: says what to set.
    """
    if not config.manager.replace_idle:
        raise ValueError(
            "agent=reuse learns who goes for a newcomer, which nobody is asked with env.manager.replace_idle=false; "
            "set it to true, as experiment=sharing_warm does"
        )
    if config.scales.latency_s != SCALE_S:
        raise ValueError(
            f"agent=reuse reads times with env.scales.latency_s={SCALE_S}, got {config.scales.latency_s}"
        )


def load(folder: Path, config: Mapping[str, Any], name: str) -> Policy:
    """The policy of a checkpoint; see `agents.learners.learner.AgentEntry`."""
    settings = build_agent_config(config["agent"])
    network = ReuseNetwork(settings.width)
    network.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
    observation, _ = read_spaces(folder)
    return ReusePolicy(network.export(), name, observation, settings.fill)
