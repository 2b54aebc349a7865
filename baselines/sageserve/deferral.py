"""When a plan is carried out (section 6.4): at once, by utilisation, by utilisation and the gap to the forecast.

Each function says by how much the number of instances of an endpoint changes now. Readings:

* The deferred strategies change by one at a time, as reactive scaling does: "we keep increasing the instance count as
  long as this threshold is breached".
* Beyond the planned count LT-UA looks at traffic alone: "we switch from a memory-based strategy to a traffic-based
  strategy".
"""

from __future__ import annotations

from serving_gym.baselines.sageserve.autoscaling_config import SageServeScalingConfig


def immediate(present: int, planned: int) -> int:
    """LT-I: all of the change, as soon as it is known.

    Args:
        present: Instances that there are.
        planned: Instances that there should be.
    """
    return planned - present


def by_utilization(present: int, planned: int, utilization: float, config: SageServeScalingConfig) -> int:
    """LT-U: towards the plan, one by one, as utilisation leaves its range; never beyond.

    Args:
        present: Instances that there are.
        planned: Instances that there should be.
        utilization: Effective memory utilisation of the endpoint.
        config: Thresholds.
    """
    if utilization > config.out_above_ratio and present < planned:
        return 1
    if utilization < config.in_below_ratio and present > planned:
        return -1
    return 0


def by_utilization_and_gap(
    present: int,
    planned: int,
    utilization: float,
    observed_tps: float,
    predicted_tps: float,
    left_s: float,
    config: SageServeScalingConfig,
) -> int:
    """LT-UA: as LT-U; where the plan is reached and the hour nearly over, on by what the forecast missed.

    Args:
        present: Instances that there are.
        planned: Instances that there should be.
        utilization: Effective memory utilisation of the endpoint.
        observed_tps: Prompt tokens/s that come now.
        predicted_tps: What was predicted for now.
        left_s: Seconds until the next plan.
        config: Thresholds.
    """
    change = by_utilization(present, planned, utilization, config)
    if change or left_s > config.last_s:
        return change
    if present >= planned and observed_tps >= config.over_factor * predicted_tps and observed_tps > 0:
        return 1
    if present <= planned and observed_tps <= config.under_factor * predicted_tps:
        return -1
    return 0
