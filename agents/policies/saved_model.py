"""Policy of a model trained and saved with Stable-Baselines3 or sb3-contrib.

`model.save("model.zip")` of PPO, A2C, DQN, SAC, TQC, MaskablePPO, RecurrentPPO and the like, trained on
`gymnasium.make(ID)`. Only its policy network is read. Such a file holds pickled Python objects: load only what you
trust.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.save_util import load_from_zip_file

from serving_gym.agents.environments.adapter import Adapter, adapter_of
from serving_gym.envs.autoscaling.state import AutoscalingSpec
from serving_gym.envs.deployment.state import DeploymentSetting
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.sharing import SharingSetting

_POLICY = "policy"
_NO_RATE = 0.0  # nothing is trained here

# Environments that tell a policy a setting of their own.
_SETTINGS = {"deployment": DeploymentSetting, "sharing": SharingSetting, "autoscaling": AutoscalingSpec}


class SavedModelPolicy:
    """Greedy in a saved model; with the action mask where its algorithm takes one, with its memory where it has one.

    Args:
        model: The model's policy network.
        name: What the policy is called in results.
    """

    clairvoyant = False

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name
        self._masked = "action_masks" in inspect.signature(model.predict).parameters
        self._adapter: Adapter | None = None
        self._memory: Any = None
        self._begins = True

    def check_spaces(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        """Checks that the environment has the model's spaces.

        Args:
            observation: What the environment shows.
            action: What it takes.

        Raises:
            ValueError: names the first space that differs.
        """
        for what, own, other in (
            ("observation", self.model.observation_space, observation),
            ("action", self.model.action_space, action),
        ):
            if not _alike(own, other):
                raise ValueError(
                    f"{self.name!r} was trained with the {what} space {_shown(own)}; "
                    f"the environment has {_shown(other)}"
                )

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Resets the memory."""
        self._spec, self._memory, self._begins = spec, None, True
        self._adapter = adapter_of(_env_of(spec)) if self._masked else None

    def act(self, observation: Mapping[str, NDArray[np.float32]], state: Any) -> Any:
        """The most likely or most valuable action.

        Raises:
            ValueError: the observation is not one that the model was trained with.
        """
        if self._begins:
            self._check_observation(observation)
        extra: dict[str, Any] = {}
        if self._adapter is not None:
            mask = self._adapter.mask(observation, state, self._spec)
            extra = {} if mask is None else {"action_masks": mask}
        begins = np.array([self._begins])
        action, self._memory = self.model.predict(
            observation, self._memory, begins, deterministic=True, **extra
        )
        self._begins = False
        return int(action) if isinstance(self.model.action_space, spaces.Discrete) else np.asarray(action)

    def _check_observation(self, observation: Any) -> None:
        own = self.model.observation_space
        if not isinstance(own, spaces.Dict):
            raise ValueError(f"{self.name!r} was trained with {_shown(own)}, environments here show a Dict")
        for part, space in own.items():
            if part not in observation or np.shape(observation[part]) != space.shape:
                seen = {name: np.shape(value) for name, value in observation.items()}
                raise ValueError(
                    f"{self.name!r} was trained with {_shown(own)}, the environment shows {seen}"
                )


def load_saved_model(path: Path) -> SavedModelPolicy:
    """The policy in a file that `model.save()` wrote.

    Raises:
        ValueError: it is none.
    """
    try:
        data, params, _ = load_from_zip_file(path, device="cpu")
        assert data is not None
        settings = dict(data.get("policy_kwargs") or {})
        settings.pop("device", None)
        if "use_sde" in inspect.signature(data["policy_class"]).parameters:
            settings.setdefault("use_sde", data.get("use_sde", False))
        model = data["policy_class"](
            data["observation_space"], data["action_space"], lambda _: _NO_RATE, **settings
        )
        model.load_state_dict(params[_POLICY])
    except Exception as error:  # of zipfile, pickle, torch or the model's own classes
        raise ValueError(
            f"{str(path)!r} cannot be read as a saved model of Stable-Baselines3: {type(error).__name__}: {error}"
        ) from error
    model.set_training_mode(False)
    model.lr_schedule = None  # nothing is trained here, and a function of this one cannot be pickled
    return SavedModelPolicy(model, str(path))


def _env_of(spec: PolicySpec) -> str:
    """Name of the environment that a setting is of."""
    for env, kind in _SETTINGS.items():
        if isinstance(spec.setting, kind):
            return env
    return "dp_tp" if spec.engines is None else "routing"


def _alike(own: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Whether two spaces have the same parts in the same shapes; bounds may differ."""
    if isinstance(own, spaces.Dict) and isinstance(other, spaces.Dict):
        return own.keys() == other.keys() and all(_alike(own[key], other[key]) for key in own)
    if isinstance(own, spaces.Box) and isinstance(other, spaces.Box):
        return own.shape == other.shape
    return type(own) is type(other) and own == other


def _shown(space: spaces.Space[Any]) -> str:
    """Short description of a space."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {_shown(part)}' for key, part in space.items())})"
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    return str(space)
