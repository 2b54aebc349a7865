"""Three regions and two models that compete for machines: sections 5, 6.1, 6.4 and 7.2.1.

From the paper: three regions, rerouting at 70 % of effective memory, redeployment within 10 min (section 7.1), spot
instances of other models where a model's own run out (section 6.4). Ours: the two large models; the load of each by the
rule of `scaling_study.py`, its regions' shares those of `sageserve_day`; machines: see `choices.py`; each endpoint
starts with as many instances and spot instances as the machines of the region hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from serving_gym.baselines.registry import make_policy
from serving_gym.envs.autoscaling.env import AutoscalingEnv
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec
from serving_gym.envs.interface.metrics import RequestRecords
from serving_gym.envs.interface.scaling import MachineSpec, Operation, QueueSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.envs.workload.tiers import IW_F, IW_N, NIW, TIERS
from serving_gym.runners.reporting.progress import say
from serving_gym.runners.reproduction.claims import Claim, above, at_most, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.measures import over, percentile
from serving_gym.runners.reproduction.sageserve.scaling_study import (
    FEWEST,
    GPUS,
    LT_U,
    LT_UA,
    MOST,
    PRIORITIES,
    REACTIVE,
    REGIONS,
    ScalingStudy,
    Setting,
    kept_h,
    slos_of,
)
from serving_gym.runners.reproduction.sageserve.study import make_claim

MODELS = ("llama-2-70b", "bloom-176b")
SHARES = {"east": 0.5, "central": 0.3, "west": 0.2}
ROUND_TRIP_S = 0.1  # section 2.1: some 50 ms between regions
POLICIES = (REACTIVE, LT_U, LT_UA)


@dataclass(frozen=True, eq=False)
class RegionsOutcome:
    """What a policy made of it.

    Attributes:
        instance_h: Instance-hours of all endpoints.
        day_h: Those until the last arrival.
        fast_s: P95 of the TTFT of IW-F.
        normal_s: P95 of the TTFT of IW-N.
        rerouted: Share of the interactive requests that another region served.
        redeployed: Machines of the other model that were asked for.
        refused: Changes that could not be carried out in full.
    """

    instance_h: float
    day_h: float
    fast_s: float
    normal_s: float
    rerouted: float
    redeployed: int
    refused: int

    def __str__(self) -> str:
        return (
            f"{self.instance_h:.1f} instance-hours ({self.day_h:.1f} until the last arrival), P95 TTFT of IW-F "
            f"{self.fast_s:.2f} s and of IW-N {self.normal_s:.2f} s, {self.rerouted:.1%} served in another region, "
            f"{self.redeployed} machines of the other model asked for, {self.refused} changes refused in part"
        )


@dataclass
class RegionsStudy(ScalingStudy):
    """Runs policies on three regions and two models."""

    _found: dict[str, RegionsOutcome] = field(default_factory=dict)

    def regions_outcome(self, policy: str) -> RegionsOutcome:
        """A policy, first seed."""
        if policy not in self._found:
            self.bar.set_postfix_str(f"three regions, {policy}", refresh=False)
            self._found[policy] = found = self._run_regions(policy)
            self.bar.update(1)
            say(self.bar, f"three regions, {policy}: {found}")
        return self._found[policy]

    def _run_regions(self, policy: str) -> RegionsOutcome:
        from serving_gym.runners.rollouts.rollout import run_episode

        env = self._regions_env()
        name, params = self.policy(policy)
        if name == "sageserve":
            params = {**params, "epsilon": self.choices.epsilon}
        episode = run_episode(env, make_policy(name, **params), self.config.first_seed, policy)
        records, closing = episode.records, env.core.closing
        assert closing is not None
        changes = [change for decision in episode.decisions for change in decision["action"] or ()]
        return RegionsOutcome(
            kept_h(env.core.instance_hours),
            kept_h(closing.instance_hours),
            percentile(records.ttft_s[records.class_id == TIERS.index(IW_F)], 95),
            percentile(records.ttft_s[records.class_id == TIERS.index(IW_N)], 95),
            rerouted(env, records),
            sum(change["count"] for change in changes if change["operation"] == Operation.REDEPLOY.name),
            env.core.num_refused,
        )

    def _regions_env(self) -> AutoscalingEnv:
        settings = {model: Setting(model=model) for model in MODELS}
        theta = {model: self.capacity_tps(setting) for model, setting in settings.items()}
        seed = self.config.first_seed
        loads = {
            model: REGIONS * self.requests_per_week(setting, theta[model]) / self.noise_ratio(setting, seed)
            for model, setting in settings.items()
        }
        begin_h, length_h = self.span_h
        week = sum(loads.values())
        if self.config.requests is not None:
            length_h = min(length_h, 168 * self.config.requests / week)
        params: dict[str, Any] = {
            "requests_per_week": week,
            "iw_to_niw": Setting().iw_to_niw,
            "priorities": PRIORITIES[self.choices.priorities],
            "start_h": begin_h,
            "models": {model: {"share": load} for model, load in loads.items()},
            "regions": {region: {"share": share} for region, share in SHARES.items()},
        }
        count = self.choices.machines // (2 * len(MODELS))
        groups = tuple(
            GroupSpec(self._replica(setting), count, MOST, region)
            for setting in settings.values()
            for region in SHARES
        )
        return AutoscalingEnv(
            cluster=FleetConfig(groups=groups, order="priority", default_round_trip_s=ROUND_TRIP_S),
            workload=WorkloadSpec(name="week", params=params, split=self.config.split),
            queue=QueueSpec(release=self.choices.release),
            machines=MachineSpec(per_region={f"{GPUS}xH100": self.choices.machines}, spot=count),
            slos=slos_of(Setting()),
            split=self.config.split,
            decision_interval_s=self.choices.decision_s,
            episode_s=3600 * length_h,
            min_instances=FEWEST,
            recent_s=300.0,
            drain_limit_s=7200.0,
            capacity_tps=theta,
        )


def rerouted(env: AutoscalingEnv, records: RequestRecords) -> float:
    """Share of the interactive requests with an engine that another region than their own served."""
    stream, layout = env.core.stream, env.core.simulator.layout
    origin = np.concatenate([stream.piece(number).region_id for number in range(stream.num_pieces)])
    names = np.array(stream.regions)[origin[: len(records)]]
    rows = (records.engine >= 0) & (records.class_id != TIERS.index(NIW))
    places = np.array(layout.regions)[layout.region_of[layout.endpoint_of[records.engine[rows]]]]
    return float((places != names[rows]).mean()) if rows.any() else 0.0


def num_episodes(config: ReproduceConfig) -> int:
    """Episodes that `claims` runs."""
    return len(POLICIES)


def claims(study: RegionsStudy) -> list[Claim]:
    """Section 7.2.1, Figure 12a, and what rerouting and redeployment do."""
    outcomes = {policy: study.regions_outcome(policy) for policy in POLICIES}
    reactive = outcomes[REACTIVE]
    beyond = "Measured: " + "; ".join(f"{policy} {outcome}" for policy, outcome in outcomes.items()) + "."
    not_stated = shown("the paper does not say")
    found = []
    for policy, outcome in outcomes.items():
        if policy != REACTIVE:
            found += [
                make_claim(
                    "7.2.1, Figure 12a", f"three regions, two models, {policy}: instance-hours saved against Reactive",
                    None, 1.0 - over(outcome.instance_h, reactive.instance_h), "share", above(0.0),
                    note="The paper says so of every region, and gives no number.", beyond=beyond,
                ),
                make_claim(
                    "7.2.2", f"three regions, two models: P95 TTFT of IW-F of {policy} over Reactive's", None,
                    over(outcome.fast_s, reactive.fast_s), "x", at_most(1.0, least=0.0),
                    note="The paper says that LT-U and LT-UA do no harm, and gives no number.", beyond=beyond,
                ),
            ]  # fmt: skip
        for label, value, unit in (
            ("interactive requests served in another region", outcome.rerouted, "share"),
            ("machines of the other model asked for", float(outcome.redeployed), "machines"),
        ):
            found.append(
                make_claim(
                    "6.1, 6.4", f"three regions, two models, {policy}: {label}", None, value, unit, not_stated
                )
            )
    return found
