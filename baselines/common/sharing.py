"""What policies that place many models on shared nodes have in common."""

from __future__ import annotations

from typing import Any

from serving_gym.baselines.policy import Action, PolicySpec
from serving_gym.envs.interface.sharing import SharingSetting
from serving_gym.envs.sharing.state import SharingState


class SharingPolicy:
    """A policy of `Serving/Sharing-v1`."""

    name: str
    clairvoyant = False

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Takes note of nodes and models, and forgets everything else."""
        self.setting = spec.setting_of(SharingSetting)
        self.begin()

    def begin(self) -> None:
        """Prepares for an episode; the setting is known."""

    def act(self, observation: Any, state: SharingState) -> Action:
        """Decides."""
        raise NotImplementedError
