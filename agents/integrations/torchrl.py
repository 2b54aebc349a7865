"""TorchRL: environments with their action masks, a masked distribution of levers, and policies of what was trained.

For TorchRL 0.14: `GymWrapper` keeps the mask of the observation, `ActionMask` applies it to the action spec, so that
random actions are possible ones, and `MaskedCategorical` to what a network says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Distribution, constraints
from torchrl.envs import ActionMask, Compose, DTypeCastTransform, GymWrapper, InitTracker, TransformedEnv
from torchrl.modules import MaskedCategorical, ProbabilisticActor

from serving_gym.agents.environments.spaces import ActionSpace, entries
from serving_gym.agents.integrations.masked import (
    ACTION_MASK,
    OBSERVATIONS,
    MaskedPolicy,
    action_of,
    make_masked,
)

_LOGITS = "logits"


class MaskedLevers(Distribution):
    """One masked choice a lever, independent of each other: what a `MultiDiscrete` action is drawn from.

    Args:
        logits: (..., entries), of all levers one after another.
        mask: (..., entries), which are possible.
        sizes: Entries of each lever.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(self, logits: torch.Tensor, mask: torch.Tensor, sizes: tuple[int, ...]) -> None:
        widths = list(sizes)
        parts = zip(torch.split(logits, widths, -1), torch.split(mask.bool(), widths, -1), strict=True)
        self._levers = [MaskedCategorical(logits=scores, mask=possible) for scores, possible in parts]
        super().__init__(logits.shape[:-1], torch.Size([len(sizes)]), validate_args=False)

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        """Draws, (..., levers)."""
        return torch.stack([lever.sample(torch.Size(sample_shape)) for lever in self._levers], -1)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """Log-probability of the levers together, (...)."""
        return sum(lever.log_prob(part) for lever, part in zip(self._levers, value.unbind(-1), strict=True))

    def entropy(self) -> torch.Tensor:
        """Entropy of the levers together, (...)."""
        return sum(lever.entropy() for lever in self._levers)

    @property
    def mode(self) -> torch.Tensor:
        """The most likely entry of each lever, (..., levers)."""
        return torch.stack([lever.mode for lever in self._levers], -1)

    deterministic_sample = mode


def torchrl_env(env: str, **words: Any) -> TransformedEnv:
    """An environment with keys `observations` and `action_mask`, whose random actions are possible ones.

    Args:
        env: Its name ("routing").
        words: What `gymnasium.make` takes.

    Raises:
        ValueError: A name, a word or a value is unknown or not allowed.
    """
    wrapped = GymWrapper(make_masked(env, **words), categorical_action_encoding=True)
    as_bool = DTypeCastTransform(torch.int8, torch.bool, in_keys=[ACTION_MASK])
    return TransformedEnv(wrapped, Compose(as_bool, ActionMask(), InitTracker()))


def masked_actor(env: TransformedEnv, network: nn.Module) -> ProbabilisticActor:
    """An actor for TorchRL's losses and collectors.

    Args:
        env: Of `torchrl_env`.
        network: Gives a logit for each entry of the action: (..., width) to (..., entries).
    """
    sizes = entries(_action_space(env))
    one = len(sizes) == 1 and _action_space(env).shape == ()
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=[OBSERVATIONS], out_keys=[_LOGITS]),
        in_keys={"logits": _LOGITS, "mask": ACTION_MASK},
        spec=env.action_spec,
        distribution_class=MaskedCategorical if one else MaskedLevers,
        distribution_kwargs={} if one else {"sizes": sizes},
        return_log_prob=True,
    )


def torchrl_policy(
    name: str, env: TransformedEnv, actor: ProbabilisticActor, draw_seed: int | None = None
) -> MaskedPolicy:
    """What was trained, as a policy.

    Args:
        name: What it is called in results.
        env: Of `torchrl_env`.
        actor: Of `masked_actor`.
        draw_seed: Seed of actions that are drawn as in training; None: the most likely action.
    """
    action = _action_space(env)
    rng = None if draw_seed is None else np.random.default_rng(draw_seed)

    def choose(observation: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        with torch.no_grad():
            logits = actor[0](TensorDict({OBSERVATIONS: torch.as_tensor(observation)}))[_LOGITS]
        return action_of(logits.numpy(), mask, action, rng)

    return MaskedPolicy(name, _gym_env(env), choose)


def _gym_env(env: TransformedEnv) -> Any:
    """The Gymnasium environment inside."""
    return env.base_env._env


def _action_space(env: TransformedEnv) -> ActionSpace:
    space: ActionSpace = _gym_env(env).action_space
    return space
