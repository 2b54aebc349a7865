"""Runs any autoscaling policy as an autoscaling policy of Ray Serve.

    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    AutoscalingConfig(
        min_replicas=1,
        max_replicas=4,
        policy=AutoscalingPolicy(
            policy_function="runners.serving.ray_autoscaling:PolicyAutoscaler",
            policy_kwargs={"words": ["policy=hpa_waiting", "cluster=fleet_autoscaled"]},
        ),
    )

`words` are those of `runners.evaluate`: the policy and its setting, of one endpoint. A replica of the deployment is an
instance. Ray calls several times a second; the policy decides at its own period or every `env.decision_interval_s`, and
its last decision holds in between, within the deployment's own limits. Ray chooses the replica to remove. Ray reports
the number of requests in flight and waiting. Replicas may report more (`record_autoscaling_stats`), under the names in
`runners.serving.scaling_view`; without these, KV usage is estimated from the batch, and forecasting policies have no
traffic history.

Tested with Ray 2.60; the interface is Ray's alpha.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from serving_gym.baselines.policy import period_of
from serving_gym.envs.autoscaling.env import AutoscalingEnv
from serving_gym.envs.autoscaling.observation import StateEncoder
from serving_gym.envs.autoscaling.state import AutoscalingState
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import EvaluateConfig
from serving_gym.runners.serving.scaling_view import (
    Deployment,
    Meter,
    Metrics,
    ScalingView,
    change_of,
)

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

__all__ = ["Meter", "PolicyAutoscaler"]


class PolicyAutoscaler:
    """Ray Serve autoscaling policy that calls a policy of this project; Ray makes one for each deployment.

    Args:
        words: Overrides as of `runners.evaluate`.

    Raises:
        ValueError: an override is unknown or impossible, or the setting has more than one endpoint.
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        config = composed("evaluate", EvaluateConfig, ["env=autoscaling", *words])
        env: Any = config.environment.make().unwrapped
        assert isinstance(env, AutoscalingEnv)
        told = env.policy_spec
        self.config = env.config
        self._view = ScalingView(env.config, told, 0.0)
        self._encoder = StateEncoder(env.config, self._view.spec, told.fleet)
        self.policy = load_policy(config.policy)
        period_s = period_of(self.policy)
        self._period_s = self.config.decision_interval_s if period_s is None else period_s
        self.policy.reset(told.asked_every(period_s), 0)
        self._begun, self._target, self._decided_s = False, 0, -np.inf

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Target number of replicas, and Ray's policy state, which is unused."""
        wall_s = time.time() if ctx.current_time is None else ctx.current_time
        if not self._begun:
            self._begun, self._view.begun_s, self._target = True, wall_s, ctx.target_num_replicas
        now_s, metrics = max(wall_s - self._view.begun_s, 0.0), ctx.aggregated_metrics or {}
        self._view.note(now_s, _deployment(ctx, metrics))
        due = now_s - self._decided_s >= self._period_s
        if due and now_s >= self.config.history_bin_s:
            self._decided_s = now_s
            state = self.state(ctx, now_s, metrics)
            changes = self.policy.act(self._encoder.encode(state, 1.0), state)
            self._target = ctx.target_num_replicas + change_of(changes, self._view.spec.max_change)
        lowest, highest = ctx.capacity_adjusted_min_replicas, ctx.capacity_adjusted_max_replicas
        self._target = min(max(self._target, lowest), highest)
        return self._target, {}

    def state(self, ctx: AutoscalingContext, now_s: float, metrics: Metrics) -> AutoscalingState:
        """State that the policy may read."""
        return self._view.state(now_s, _deployment(ctx, metrics))


def _deployment(ctx: AutoscalingContext, metrics: Metrics) -> Deployment:
    """What Ray tells; its replicas are new when they first appear."""
    return Deployment(
        replicas=tuple(ctx.running_replicas),
        wanted=ctx.target_num_replicas,
        most=ctx.capacity_adjusted_max_replicas,
        metrics=metrics,
        num_held=round(ctx.total_queued_requests or 0),
        num_running=ctx.total_running_requests,
        num_requests=ctx.total_num_requests,
    )
