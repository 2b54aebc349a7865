"""vLLM as OServe compares with it (section 6.1): one uniform layout for good, or the best one of every span.

All replicas are alike, and requests go to them evenly, in turn.

Readings. "Static" optimises its layout for the trace it is run on; here the trace that it knows is the training
episode, as no policy but a clairvoyant one knows what is to come. "Reload" follows the environment's own forecast, and
changes its layout where another one reaches more by `min_gain` (source: ours).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving_gym.baselines.common.deploying import DeployingPolicy, worth_it
from serving_gym.baselines.oserve.uniform import of_holding, uniform_layouts, vllm_reload, vllm_static
from serving_gym.baselines.policy import Action, Configured, Constants, PolicySpec, tunable
from serving_gym.calibration.fields import check_not_negative, check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.deployment.state import DeploymentSetting, DeploymentState
from serving_gym.envs.machines.cluster import ReplicaKind


@dataclass(frozen=True)
class VLLMStaticConfig(Constants):
    """Constants of the policy.

    Attributes:
        layout: TP and PP of the replicas, as [4, 1]; None: the best for the past, by capacity.
    """

    layout: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.layout is not None and (len(self.layout) != 2 or min(self.layout) < 1):
            raise ValueError(f"layout must be TP and PP, at least 1 each, got {list(self.layout)}")


class VLLMStaticPolicy(DeployingPolicy, Configured[VLLMStaticConfig]):
    """vLLM (static): one uniform layout for good."""

    name = "vllm_static"

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Works out the layout.

        Raises:
            ValueError: the layout asked for does not fit.
        """
        super().reset(spec, seed)
        setting, table = self.setting, of_holding(self.setting.table.of_role("mixed"), self.setting)
        if self.config.layout is None:
            self.kinds = vllm_static(setting.cluster, table, setting.past)
            return
        tp, pp = self.config.layout
        kind = ReplicaKind(tp, pp)
        known = [one for one in setting.table.kinds if one == kind]
        layouts = uniform_layouts(setting.cluster, known)
        if not layouts:
            raise ValueError(
                f"layout={list(self.config.layout)} does not fit; choose one of {_named(setting)}"
            )
        self.kinds = layouts[0]

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """The layout at the first decision, nothing afterwards."""
        return self.evenly(self.kinds, state) if state.switch is None else None


def _named(setting: DeploymentSetting) -> str:
    return ", ".join(f"[{kind.tp}, {kind.pp}]" for kind in setting.table.of_role("mixed").kinds)


@dataclass(frozen=True)
class VLLMReloadConfig(Constants):
    """Constants of the policy.

    Attributes:
        switch: "reload" (section 6.3's naive one) or "ad_hoc", which section 6.1 gives it.
        min_gain: Share by which a layout must reach more than the present one to replace it. Source: ours.
        period_s: Between two decisions, seconds; None: each span of the environment (section 3, one minute).
    """

    switch: str = "reload"
    min_gain: float = tunable(0.05, 0.0, 1.0)
    period_s: float | None = None

    def __post_init__(self) -> None:
        check_choice("switch", self.switch, ("ad_hoc", "reload"))
        check_not_negative(self, "min_gain", finite=True)
        check_positive(self, "period_s", finite=True)


class VLLMReloadPolicy(DeployingPolicy, Configured[VLLMReloadConfig]):
    """vLLM (reload): the best uniform layout of every span."""

    name = "vllm_reload"

    @property
    def period_s(self) -> float | None:
        """Time between decisions."""
        return self.config.period_s

    def act(self, observation: Any, state: DeploymentState) -> Action:
        """The layout for the next span, if it is better than the present one."""
        evaluator = self.setting.evaluator(state.forecast)
        if state.switch is not None or evaluator.demand.sum() <= 0:
            return None
        found, present = vllm_reload(evaluator), evaluator.plan(state.deployment.kinds)
        stays = len(present.kinds) == 1 and not worth_it(found, present, state, self.config.min_gain)
        return self.evenly(present.kinds if stays else found.kinds, state, self.config.switch)
