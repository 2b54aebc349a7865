"""Reinforcement-learning environments for the policies that serve large language models.

    import serving_gym

    env = serving_gym.make("routing", cluster="fleet_h100_x4", **{"workload.rate_scale": 4})
    policy = serving_gym.load_policy("jsq")
    result = serving_gym.compare(env="routing", policies=["jsq", "preserve", "./mine.py:MyPolicy"], seeds=3)

The folders beside this file are the packages of the repository: `serving_gym.envs` and the others.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

from serving_gym.envs.registration import register_envs

if TYPE_CHECKING:
    from serving_gym.api import compare, make, make_vec
    from serving_gym.envs.base.vector_reward import VectorReward
    from serving_gym.envs.registration import register
    from serving_gym.runners.configuration.policies import load_policy
    from serving_gym.runners.scoring.score import policy_score

__all__ = [
    "VectorReward",
    "__version__",
    "compare",
    "load_policy",
    "make",
    "make_vec",
    "policy_score",
    "register",
]

try:
    __version__ = metadata.version("serving-gym")
except metadata.PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0.0.0"

register_envs()

# Imported on first use: `import serving_gym` stays quick.
_LAZY = {
    "VectorReward": "serving_gym.envs.base.vector_reward",
    "compare": "serving_gym.api",
    "load_policy": "serving_gym.runners.configuration.policies",
    "make": "serving_gym.api",
    "make_vec": "serving_gym.api",
    "policy_score": "serving_gym.runners.scoring.score",
    "register": "serving_gym.envs.registration",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
