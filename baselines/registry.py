"""Every policy by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast, get_args, get_type_hints

from serving_gym.baselines.common.layouts import parse_layout
from serving_gym.baselines.outside import is_outside, make_outside, outside_policy, policy_entry_points
from serving_gym.baselines.policy import Policy, Tunable
from serving_gym.calibration.lookup import check_choice, load_attribute, nearest

STATIC_PREFIX = "static_"
ADMISSION = "baselines.admission."
WITH = "+"  # between an admission policy and the policy that places what it lets in
ROUTER = "router"  # parameter that holds the latter's parameters


@dataclass(frozen=True)
class PolicyEntry:
    """Where a policy is.

    Attributes:
        policy: "module:class" of the policy.
        config: "module:class" of the dataclass of its constants, which it takes as its only argument; None: it takes
            its parameters itself.
    """

    policy: str
    config: str | None = None


POLICIES = {
    "static_dp": PolicyEntry("baselines.common.static:StaticDPPolicy"),
    "static_tp": PolicyEntry("baselines.common.static:StaticTPPolicy"),
    "static": PolicyEntry("baselines.common.static:StaticLayoutPolicy"),
    "shift_parallelism": PolicyEntry("baselines.common.static:ShiftParallelismPolicy"),
    "random": PolicyEntry("baselines.common.random:RandomPolicy"),
    "load_threshold": PolicyEntry(
        "baselines.common.load_threshold:LoadThresholdPolicy",
        "baselines.common.load_threshold:LoadThresholdConfig",
    ),
    "prompt_threshold": PolicyEntry(
        "baselines.common.arrival_thresholds:PromptThresholdPolicy",
        "baselines.common.arrival_thresholds:PromptThresholdConfig",
    ),
    "rate_threshold": PolicyEntry(
        "baselines.common.arrival_thresholds:RateThresholdPolicy",
        "baselines.common.arrival_thresholds:RateThresholdConfig",
    ),
    "flying_serving": PolicyEntry(
        "baselines.flying_serving.policy:FlyingServingPolicy",
        "baselines.flying_serving.config:FlyingServingConfig",
    ),
    "round_robin": PolicyEntry("baselines.common.routers.round_robin:RoundRobinPolicy"),
    "least_request": PolicyEntry("baselines.common.routers.least_request:LeastRequestPolicy"),
    "power_of_two": PolicyEntry("baselines.common.routers.power_of_two:PowerOfTwoPolicy"),
    "jsq": PolicyEntry("baselines.common.routers.jsq:JSQPolicy"),
    "least_kv": PolicyEntry("baselines.common.routers.least_kv:LeastKVPolicy"),
    "minimum_use": PolicyEntry(
        "baselines.common.routers.minimum_use:MinimumUsePolicy",
        "baselines.common.routers.minimum_use:MinimumUseConfig",
    ),
    "vllm_data_parallel": PolicyEntry("baselines.common.routers.vllm_data_parallel:VLLMDataParallelPolicy"),
    "cache_aware": PolicyEntry(
        "baselines.common.routers.cache_aware:CacheAwarePolicy",
        "baselines.common.routers.cache_aware:CacheAwareConfig",
    ),
    "consistent_hash": PolicyEntry("baselines.common.routers.consistent_hash:ConsistentHashPolicy"),
    "rendezvous_hash": PolicyEntry("baselines.common.routers.rendezvous_hash:RendezvousHashPolicy"),
    "bucket": PolicyEntry(
        "baselines.common.routers.bucket:BucketPolicy",
        "baselines.common.routers.bucket:BucketConfig",
    ),
    "vtc_basic": PolicyEntry(
        "baselines.common.routers.vtc_basic:VTCBasicPolicy",
        "baselines.common.routers.vtc_basic:VTCBasicConfig",
    ),
    "llm_d": PolicyEntry(
        "baselines.common.routers.llm_d:LLMDPolicy",
        "baselines.common.routers.llm_d:LLMDConfig",
    ),
    "llm_d_legacy": PolicyEntry(
        "baselines.common.routers.llm_d_legacy:LLMDLegacyPolicy",
        "baselines.common.routers.llm_d_legacy:LLMDLegacyConfig",
    ),
    "predicted_latency": PolicyEntry(
        "baselines.common.routers.predicted_latency:PredictedLatencyPolicy",
        "baselines.common.routers.predicted_latency:PredictedLatencyConfig",
    ),
    "predicted_latency_profile": PolicyEntry(
        "baselines.common.routers.predicted_latency_profile:PredictedLatencyProfilePolicy",
        "baselines.common.routers.predicted_latency_profile:PredictedLatencyProfileConfig",
    ),
    "latency_observation": PolicyEntry(
        "baselines.common.routers.latency_observation:LatencyObservationPolicy",
        "baselines.common.routers.latency_observation:LatencyObservationConfig",
    ),
    # in agents, since it may start from a checkpoint
    "online": PolicyEntry(
        "agents.environments.routing.online.policy:OnlinePolicy",
        "agents.environments.routing.online.policy:OnlineConfig",
    ),
    "lmetric": PolicyEntry(
        "baselines.common.routers.lmetric:LMetricPolicy",
        "baselines.common.routers.lmetric:LMetricConfig",
    ),
    "loadaware": PolicyEntry(
        "baselines.common.routers.loadaware:LoadAwarePolicy",
        "baselines.common.routers.loadaware:LoadAwareConfig",
    ),
    "sticky_least_loaded": PolicyEntry(
        "baselines.common.routers.sticky_least_loaded:StickyLeastLoadedPolicy",
        "baselines.common.routers.sticky_least_loaded:StickyLeastLoadedConfig",
    ),
    "dynamo_kv": PolicyEntry(
        "baselines.common.routers.dynamo_kv:DynamoKVPolicy",
        "baselines.common.routers.dynamo_kv:DynamoKVConfig",
    ),
    "preble": PolicyEntry(
        "baselines.common.routers.preble:PreblePolicy", "baselines.common.routers.preble:PrebleConfig"
    ),
    "llumnix": PolicyEntry(
        "baselines.llumnix.policy:LlumnixPolicy", "baselines.llumnix.policy:LlumnixConfig"
    ),
    "magnus": PolicyEntry("baselines.magnus.policy:MagnusPolicy", "baselines.magnus.policy:MagnusConfig"),
    "linear_score": PolicyEntry(
        "baselines.common.routers.linear_score:LinearScorePolicy",
        "baselines.common.routers.linear_score:LinearScoreConfig",
    ),
    "preserve": PolicyEntry(
        "baselines.preserve.router:PreServePolicy", "baselines.preserve.router:PreServeConfig"
    ),
    "sia": PolicyEntry("baselines.sia.policy:SiaPolicy", "baselines.sia.policy:SiaConfig"),
    "first_fit": PolicyEntry(
        "baselines.common.first_fit:FirstFitPolicy", "baselines.common.first_fit:FirstFitConfig"
    ),
    "keep_warm": PolicyEntry(
        "baselines.common.keep_warm:KeepWarmPolicy", "baselines.common.keep_warm:KeepWarmConfig"
    ),
    "place_score": PolicyEntry(
        "baselines.common.place_score:PlaceScorePolicy", "baselines.common.place_score:PlaceScoreConfig"
    ),
    "stay": PolicyEntry("baselines.common.deploying:StayPolicy"),
    "oserve": PolicyEntry("baselines.oserve.policy:OServePolicy", "baselines.oserve.policy:OServeConfig"),
    "vllm_static": PolicyEntry(
        "baselines.oserve.vllm:VLLMStaticPolicy", "baselines.oserve.vllm:VLLMStaticConfig"
    ),
    "vllm_reload": PolicyEntry(
        "baselines.oserve.vllm:VLLMReloadPolicy", "baselines.oserve.vllm:VLLMReloadConfig"
    ),
    "llumnix_deployment": PolicyEntry("baselines.llumnix.deployment:LlumnixDeploymentPolicy"),
    "dynamo": PolicyEntry("baselines.oserve.dynamo:DynamoPolicy", "baselines.oserve.dynamo:DynamoConfig"),
    "dynamo_two_widths": PolicyEntry(
        "baselines.oserve.dynamo_two_widths:DynamoTwoWidthsPolicy",
        "baselines.oserve.dynamo_two_widths:DynamoTwoWidthsConfig",
    ),
    "clairvoyant_deployment": PolicyEntry(
        "baselines.oserve.clairvoyant:ClairvoyantDeploymentPolicy",
        "baselines.oserve.clairvoyant:ClairvoyantConfig",
    ),
    "llm_mesh": PolicyEntry(
        "baselines.llm_mesh.policy:LLMMeshPolicy", "baselines.llm_mesh.config:LLMMeshConfig"
    ),
    "sllm": PolicyEntry(
        "baselines.serverless_llm.policy:ServerlessLLMPolicy",
        "baselines.serverless_llm.policy:ServerlessLLMConfig",
    ),
    "fixed_instances": PolicyEntry(
        "baselines.common.autoscalers.fixed:FixedInstancesPolicy",
        "baselines.common.autoscalers.fixed:FixedInstancesConfig",
    ),
    "queue_proportional": PolicyEntry(
        "baselines.common.autoscalers.queue_proportional:QueueProportionalPolicy",
        "baselines.common.autoscalers.queue_proportional:QueueProportionalConfig",
    ),
    "hpa_waiting": PolicyEntry(
        "baselines.common.autoscalers.horizontal:HorizontalPolicy",
        "baselines.common.autoscalers.horizontal:WaitingConfig",
    ),
    "hpa_kv": PolicyEntry(
        "baselines.common.autoscalers.horizontal:HorizontalPolicy",
        "baselines.common.autoscalers.horizontal:KVConfig",
    ),
    "hpa_rate": PolicyEntry(
        "baselines.common.autoscalers.horizontal:HorizontalPolicy",
        "baselines.common.autoscalers.horizontal:RateConfig",
    ),
    "kpa": PolicyEntry(
        "baselines.common.autoscalers.panic_window:PanicWindowPolicy",
        "baselines.common.autoscalers.panic_window:PanicWindowConfig",
    ),
    "cron": PolicyEntry(
        "baselines.common.autoscalers.cron:CronPolicy", "baselines.common.autoscalers.cron:CronConfig"
    ),
    "llm_d_saturation": PolicyEntry(
        "baselines.common.autoscalers.saturation:SaturationPolicy",
        "baselines.common.autoscalers.saturation:SaturationConfig",
    ),
    "keda_epp": PolicyEntry(
        "baselines.common.autoscalers.keda_epp:KEDAEPPPolicy",
        "baselines.common.autoscalers.keda_epp:KEDAEPPConfig",
    ),
    "dynamo_throughput": PolicyEntry(
        "baselines.common.autoscalers.throughput_planner:ThroughputPlannerPolicy",
        "baselines.common.autoscalers.throughput_planner:ThroughputPlannerConfig",
    ),
    "dynamo_load": PolicyEntry(
        "baselines.common.autoscalers.load_planner:LoadPlannerPolicy",
        "baselines.common.autoscalers.load_planner:LoadPlannerConfig",
    ),
    "clairvoyant_scaling": PolicyEntry(
        "baselines.common.autoscalers.clairvoyant:ClairvoyantScalingPolicy",
        "baselines.common.autoscalers.clairvoyant:ClairvoyantScalingConfig",
    ),
    "sageserve": PolicyEntry(
        "baselines.sageserve.autoscaler:SageServePolicy",
        "baselines.sageserve.autoscaling_config:SageServeScalingConfig",
    ),
    "sageserve_reactive": PolicyEntry(
        "baselines.sageserve.reactive:ReactivePolicy", "baselines.sageserve.autoscaling_config:ReactiveConfig"
    ),
    "chiron": PolicyEntry(
        "baselines.chiron.autoscaler:ChironPolicy", "baselines.chiron.autoscaler:ChironConfig"
    ),
    "llumnix_scaling": PolicyEntry(
        "baselines.llumnix.scaler:LlumnixScalingPolicy", "baselines.llumnix.scaler:LlumnixScalingConfig"
    ),
    "preserve_scaling": PolicyEntry(
        "baselines.preserve.instance_scaler:PreServeScalingPolicy",
        "baselines.preserve.instance_scaler:PreServeScalingConfig",
    ),
    "preserve_reactive": PolicyEntry(
        "baselines.preserve.comparators:PreServeReactivePolicy",
        "baselines.preserve.comparators:ComparatorConfig",
    ),
    "preserve_proactive": PolicyEntry(
        "baselines.preserve.comparators:PreServeProactivePolicy",
        "baselines.preserve.comparators:ComparatorConfig",
    ),
    "preserve_hybrid": PolicyEntry(
        "baselines.preserve.comparators:PreServeHybridPolicy",
        "baselines.preserve.comparators:ComparatorConfig",
    ),
    "pass": PolicyEntry(
        "baselines.preserve.pass_scaler:PassPolicy", "baselines.preserve.pass_scaler:PassConfig"
    ),
    "token_bucket": PolicyEntry(
        "baselines.admission.token_bucket:TokenBucketPolicy",
        "baselines.admission.token_bucket:TokenBucketConfig",
    ),
    "tier_shed": PolicyEntry(
        "baselines.admission.tier_shed:TierShedPolicy", "baselines.admission.tier_shed:TierShedConfig"
    ),
    "gaie_legacy": PolicyEntry(
        "baselines.admission.gaie_legacy:GAIELegacyPolicy", "baselines.admission.gaie_legacy:GAIELegacyConfig"
    ),
    "probabilistic_admitter": PolicyEntry(
        "baselines.admission.probabilistic:ProbabilisticAdmitterPolicy",
        "baselines.admission.probabilistic:ProbabilisticAdmitterConfig",
    ),
    "soft_ceiling": PolicyEntry(
        "baselines.admission.soft_ceiling:SoftCeilingPolicy",
        "baselines.admission.soft_ceiling:SoftCeilingConfig",
    ),
    "sia_holding": PolicyEntry(
        "baselines.admission.sia_holding:SiaHoldingPolicy", "baselines.admission.sia_holding:SiaHoldingConfig"
    ),
    "deadline_feasibility": PolicyEntry(
        "baselines.admission.deadline_feasibility:DeadlineFeasibilityPolicy",
        "baselines.admission.deadline_feasibility:DeadlineFeasibilityConfig",
    ),
    "sageserve_routing": PolicyEntry(
        "baselines.sageserve.routing:SageServeRoutingPolicy",
        "baselines.sageserve.config:SageServeRoutingConfig",
    ),
}


def policy_names() -> tuple[str, ...]:
    """Names that `make_policy` knows, those of installed packages (`serving_gym.policies`) among them."""
    return (*POLICIES, *policy_entry_points())


def make_policy(name: str, **params: Any) -> Policy:
    """A policy by name.

    Args:
        name: One of `policy_names()`; `static_` and a layout (`static_4x2`); a class from outside, `module:Class` or
            `./file.py:Class`; or an admission policy with the policy that places what it lets in, `tier_shed+jsq`.
        params: Its parameters, as in `configs/policy/*.yaml`; those of the second policy are a mapping, `router`.

    Raises:
        ValueError: the name, a parameter or a parameter's value is not allowed.
    """
    admitter, router = parts_of(name)
    if router:
        return _composed(admitter, router, params)
    if name not in POLICIES and is_outside(name):
        return make_outside(name, params)
    layout = _static_layout(name)
    if layout is not None:
        name, params = "static", {"layout": layout, **params}
    if name not in POLICIES:
        raise ValueError(
            f"unknown policy {name!r}{nearest(name, POLICIES)}; "
            "a static layout goes by static_8, static_4x2, static_4+2+1+1 and so on"
        )
    entry = POLICIES[name]
    policy = load_attribute(entry.policy)
    if entry.config is None:
        _check(name, policy, params)
        return policy(**params)
    config = load_attribute(entry.config)
    _check(name, config, params)
    return policy(_made(config, params))


def policy_tunables(name: str) -> dict[str, Tunable]:
    """Constants of a policy that a tuner may search, with their ranges; none where it declares none.

    A class from outside declares them as a built-in one's config does, by a static method `tunables()`.

    Raises:
        ValueError: there is no such policy.
    """
    name = parts_of(name)[0]
    if name not in POLICIES and is_outside(name):
        declared = getattr(outside_policy(name), "tunables", None)
        return {} if declared is None else dict(declared())
    if _static_layout(name) is not None:
        return {}
    check_choice("policy", name, POLICIES)
    entry = POLICIES[name]
    return load_attribute(entry.config).tunables() if entry.config else {}


def is_admitter(name: str) -> bool:
    """Whether a name is that of an admission policy, alone."""
    return name in POLICIES and POLICIES[name].policy.startswith(ADMISSION)


def parts_of(name: str) -> tuple[str, str]:
    """The admission policy and the placement policy that a name is made of; any other name, and nothing."""
    first, _, second = name.partition(WITH)
    return (first, second) if second and is_admitter(first) else (name, "")


def _composed(admitter: str, router: str, params: Mapping[str, Any]) -> Policy:
    own = {key: value for key, value in params.items() if key != ROUTER}
    if is_admitter(parts_of(router)[0]):
        raise ValueError(
            f"policy {router!r} decides about admission; what follows {admitter!r} must place requests"
        )
    made: Any = make_policy(admitter, **own)
    made.router = make_policy(router, **dict(params.get(ROUTER, {})))
    made.name = f"{admitter}{WITH}{router}"
    return cast(Policy, made)


def _static_layout(name: str) -> str | None:
    """The layout that a name like static_4x2 stands for."""
    layout = name.removeprefix(STATIC_PREFIX)
    if name in POLICIES or layout == name:
        return None
    try:
        parse_layout(layout)
    except ValueError:
        if layout[:1].isdigit():
            raise
        return None
    return layout


def _made(config: Any, params: Mapping[str, Any], prefix: str = "") -> Any:
    """A dataclass of constants; those that it holds are made of mappings, or of lists of them."""
    known = {entry.name for entry in fields(config)}
    for param in params:
        check_choice("field", f"{prefix}{param}", [f"{prefix}{name}" for name in sorted(known)])
    hints = get_type_hints(config)
    return config(**{key: _made_of(hints[key], value, f"{prefix}{key}.") for key, value in params.items()})


def _made_of(hint: Any, value: Any, prefix: str) -> Any:
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, Mapping):
        return _made(hint, value, prefix)
    inner = get_args(hint)
    if inner and isinstance(inner[0], type) and is_dataclass(inner[0]) and isinstance(value, Sequence):
        return tuple(_made_of(inner[0], entry, prefix) for entry in value)
    return value


def _check(name: str, target: Any, params: dict[str, Any]) -> None:
    known = inspect.signature(target).parameters
    for param in params:
        check_choice(f"parameter of policy {name}", param, known)
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in params]
    if missing:
        raise ValueError(f"policy {name} needs the parameter {missing[0]}")
