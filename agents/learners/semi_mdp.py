"""Discounting by elapsed time, for decisions at unequal intervals.

A decision that took dt seconds discounts what follows by gamma^(dt / T), where gamma is the discount over T seconds,
the environment's decision interval. The trace of generalised advantage estimation (Schulman et al. 2016, equation 16)
decays by elapsed time as well, lambda^(dt / T): both look as far ahead in seconds whatever the number of decisions in
between. Where every decision takes T, this is Stable-Baselines3's own computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import DictReplayBufferSamples

from serving_gym.agents.learners.shared_arrivals import Clock, centred

if TYPE_CHECKING:
    import torch

    _Mixed = DictRolloutBuffer
else:
    _Mixed = object

FloatArray = NDArray[np.float32]
LOWEST_SPREAD = 0.1  # of centred advantages, as a share of the spread before


def discounted_advantages(
    rewards: FloatArray,
    values: FloatArray,
    episode_starts: FloatArray,
    last_values: FloatArray,
    dones: NDArray[np.bool_],
    discounts: FloatArray,
    decays: FloatArray,
) -> FloatArray:
    """Generalised advantages with a discount of its own for each step.

    Args:
        rewards: (num_steps, num_envs).
        values: (num_steps, num_envs), of the states decided in.
        episode_starts: (num_steps, num_envs), 1 where a step is the first of its episode.
        last_values: (num_envs,), of the states after the last step.
        dones: (num_envs,), whether the last step ended an episode.
        discounts: (num_steps, num_envs), on what follows a step.
        decays: (num_steps, num_envs), on the advantages that follow, besides the discount.
    """
    advantages = np.zeros_like(rewards)
    running = np.zeros_like(last_values)
    following, goes_on = last_values, 1.0 - dones.astype(np.float32)
    for step in reversed(range(len(rewards))):
        surprise = rewards[step] + discounts[step] * following * goes_on - values[step]
        running = surprise + discounts[step] * decays[step] * goes_on * running
        advantages[step] = running
        following, goes_on = values[step], 1.0 - episode_starts[step]
    return advantages


class _ElapsedTime(_Mixed):
    """What the rollout buffers add to those they extend: the time that each step took, in decision intervals.

    Args:
        group_size: Environments side by side that live through the same episodes; see
            `agents.learners.shared_arrivals`.
        advantage_floor: Divides advantages, together with the size of the state's value; None: they stay.
    """

    intervals: FloatArray  # (buffer_size, n_envs)

    def __init__(
        self, *args: Any, group_size: int = 1, advantage_floor: float | None = None, **kwargs: Any
    ) -> None:
        self.group_size, self.advantage_floor = group_size, advantage_floor
        super().__init__(*args, **kwargs)
        self._clock = Clock(self.n_envs)

    def reset(self) -> None:
        """Empties the buffer."""
        self.intervals = np.ones((self.buffer_size, self.n_envs), np.float32)
        super().reset()

    def set_intervals(self, intervals: NDArray[np.floating[Any]]) -> None:
        """Notes what the step that is about to be added took: (num_envs,), in decision intervals."""
        self.intervals[self.pos] = intervals

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """Advantages and the returns that the value network learns."""
        self.advantages = discounted_advantages(
            self.rewards,
            self.values,
            self.episode_starts,
            last_values.clone().cpu().numpy().flatten(),
            dones,
            np.power(np.float32(self.gamma), self.intervals),
            np.power(np.float32(self.gae_lambda), self.intervals),
        )
        self.returns = self.advantages + self.values
        self.advantages = self._comparable(self.advantages)

    def _comparable(self, advantages: FloatArray) -> FloatArray:
        """Standardised advantages, without the part that is due to the arrivals.

        Where all members of every group do the same, nothing is left but rounding errors; these must not be blown up
        to unit spread, so the spread before the common part is taken away sets a lowest divisor.
        """
        if self.advantage_floor is not None:
            advantages = advantages / (self.advantage_floor + np.abs(self.values))
        lowest = LOWEST_SPREAD * float(advantages.std())
        if self.group_size > 1:
            advantages = centred(advantages, self._clock.advance(self.episode_starts), self.group_size)
        advantages = advantages - advantages.mean()
        return np.asarray(advantages / max(float(advantages.std()), lowest, 1e-8), np.float32)


class SemiMDPRolloutBuffer(_ElapsedTime, DictRolloutBuffer):
    """Rollouts of PPO, discounted by elapsed time."""


class SemiMDPMaskableRolloutBuffer(_ElapsedTime, MaskableDictRolloutBuffer):
    """Rollouts of MaskablePPO, discounted by elapsed time."""


class SemiMDPRecurrentRolloutBuffer(_ElapsedTime, RecurrentDictRolloutBuffer):
    """Rollouts of RecurrentPPO, discounted by elapsed time."""


class SemiMDPRecurrentPPO(RecurrentPPO):
    """RecurrentPPO, which takes no class of a buffer, with the one above.

    Args:
        rollout_buffer_kwargs: Of the buffer.
    """

    def __init__(self, *args: Any, rollout_buffer_kwargs: dict[str, Any], **kwargs: Any) -> None:
        self._buffer_arguments = rollout_buffer_kwargs
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()
        buffer: Any = self.rollout_buffer
        self.rollout_buffer = SemiMDPRecurrentRolloutBuffer(
            buffer.buffer_size,
            buffer.observation_space,
            buffer.action_space,
            buffer.hidden_state_shape,
            buffer.device,
            gamma=buffer.gamma,
            gae_lambda=buffer.gae_lambda,
            n_envs=buffer.n_envs,
            **self._buffer_arguments,
        )


class SemiMDPReplayBuffer(DictReplayBuffer):
    """Replay buffer of DQN and SAC, which also stores the duration of each step.

    Args:
        discount: Over one decision interval.
        interval_s: The decision interval, seconds.
    """

    def __init__(self, *args: Any, discount: float, interval_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.discount, self.interval_s = discount, interval_s
        self.intervals: FloatArray = np.ones((self.buffer_size, self.n_envs), np.float32)

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Adds a step; its infos come last."""
        infos = kwargs["infos"] if "infos" in kwargs else args[-1]
        self.intervals[self.pos] = [info["dt"] / self.interval_s for info in infos]
        super().add(*args, **kwargs)

    def _get_samples(  # type: ignore[override]  # as in the class it extends
        self, batch_inds: NDArray[np.int64], env: Any = None
    ) -> DictReplayBufferSamples:
        places = np.random.randint(0, self.n_envs, size=len(batch_inds))  # noqa: NPY002 (the generator SB3 seeds)
        chosen = (batch_inds, places)
        ended = self.dones[chosen] * (1.0 - self.timeouts[chosen])
        return DictReplayBufferSamples(
            observations={key: self.to_torch(value[chosen]) for key, value in self.observations.items()},
            actions=self.to_torch(self.actions[chosen]),
            next_observations={
                key: self.to_torch(value[chosen]) for key, value in self.next_observations.items()
            },
            dones=self.to_torch(ended.reshape(-1, 1)),
            rewards=self.to_torch(self.rewards[chosen].reshape(-1, 1)),
            discounts=self.to_torch(
                np.power(np.float32(self.discount), self.intervals[chosen]).reshape(-1, 1)
            ),
        )


class ElapsedTimeCallback(BaseCallback):
    """Tells the rollout buffer how long each step took; it is called between the step and its being stored.

    Args:
        interval_s: The decision interval, over which the agent's gamma discounts, seconds.
    """

    def __init__(self, interval_s: float) -> None:
        super().__init__()
        self.interval_s = interval_s

    def _on_step(self) -> bool:
        elapsed_s = np.array([info["dt"] for info in self.locals["infos"]])
        self.model.rollout_buffer.set_intervals(elapsed_s / self.interval_s)  # type: ignore[attr-defined]
        return True
