"""A served autoscaling policy without its process: what the listeners use of `PolicyService`."""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from serving_gym.baselines.policy import period_of
from serving_gym.envs.autoscaling.observation import StateEncoder
from serving_gym.envs.autoscaling.state import AutoscalingSpec
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import EvaluateConfig
from serving_gym.runners.serving.scaling_settings import ScalingSettings

WORDS = (
    "cluster=fleet_autoscaled",
    "env.history_bin_s=5",
    "env.history_s=7200",
    "env.recent_s=20",
    "env.recent_bin_s=5",
    "env.decision_interval_s=10",
)


@cache
def _setting(words: tuple[str, ...]) -> tuple[EvaluateConfig, Any]:
    """Configuration and environment, which nobody changes."""
    config = composed("evaluate", EvaluateConfig, ["env=autoscaling", *WORDS, *words])
    return config, config.environment.make().unwrapped


class StandIn:
    """A service."""

    def __init__(self, *words: str, mode: str = "live", **scaling: Any) -> None:
        config, self.env = _setting(words)
        spec = self.env.policy_spec
        policy = load_policy(config.policy, "autoscaling")
        policy.reset(spec.asked_every(period_of(policy)), 0)
        self._encoder = StateEncoder(self.env.config, spec.setting_of(AutoscalingSpec), spec.fleet)
        self.host = SimpleNamespace(policy=policy)
        self.config = SimpleNamespace(
            scaling=ScalingSettings(**scaling),
            backend=config.backend,
            policy=config.policy,
            allow_remote=False,
            mode=mode,
            seed=0,
            fallback=None,
            token=None,
            max_connections=100,
            read_s=5.0,
        )
        self.registry = CollectorRegistry()
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.log = logging.getLogger("tests.serving")
        self.states: list[Any] = []

    def count(self, name: str, number: int = 1, **labels: str) -> None:
        """Counts."""
        self.counts[(name, *labels.values())] += number

    async def decide(self, state: Any, chosen: Any = None) -> Any:
        """The policy's decision."""
        self.states.append(state)
        try:
            decision = self.host.policy.act(self._encoder.encode(state, 1.0), state)
            applies = self.config.mode == "live"
            return SimpleNamespace(decision=decision, applies=applies, error="", by="policy")
        except Exception as error:  # noqa: BLE001 -- as the host
            said = f"{type(error).__name__}: {error}"
            return SimpleNamespace(decision=(), applies=True, error=said, by="fallback")

    async def reset(self, seed: int) -> None:
        """Begins anew."""
        self.host.policy.reset(self.env.policy_spec, seed)
