"""Pages of the Python interface: which public names stand on which page; mkdocstrings writes what they are."""

from __future__ import annotations

_FOLDER = "reference/python"
# Titles and dotted names, below serving_gym; of each page.
API = {
    "functions": (
        "Functions",
        "`serving_gym` offers them under their last names: `serving_gym.make`, `serving_gym.compare` and so on.",
        (
            "api.make",
            "api.make_vec",
            "runners.configuration.policies.load_policy",
            "api.compare",
            "runners.scoring.score.policy_score",
            "runners.scoring.score.Score",
            "envs.registration.register",
            "envs.registration.EnvEntry",
        ),
    ),
    "environments": (
        "Environments",
        "What every environment of Gymnasium's interface has here. Each has a page of its own, with its class.",
        (
            "envs.base.env.BaseEnv",
            "envs.base.env.SimulatedEnv",
            "envs.base.vector_env.BaseVectorEnv",
            "envs.base.vector_reward.VectorReward",
            "envs.base.features.Part",
            "envs.base.features.Feature",
        ),
    ),
    "policies": (
        "Policies",
        "What a policy is, and what it knows before an episode.",
        (
            "baselines.policy.Policy",
            "baselines.policy.BatchPolicy",
            "baselines.policy.tunable",
            "baselines.policy.Tunable",
            "envs.interface.policy_spec.PolicySpec",
            "envs.interface.nominal.NominalEngines",
            "envs.interface.slo.SLO",
        ),
    ),
    "states": (
        "States and commands",
        "What policies read, and what `step` takes besides actions of the action space.",
        (
            "envs.interface.state.ClusterState",
            "envs.interface.commands.SetLayout",
            "envs.interface.commands.Redeploy",
            "envs.interface.commands.SwitchMode",
            "envs.routing.state.RoutingState",
            "envs.routing.state.RoutedRequest",
            "envs.routing.state.Dispatch",
            "envs.routing.state.Reject",
            "envs.routing.state.Defer",
            "envs.interface.fleet.Migrate",
            "envs.deployment.state.DeploymentState",
            "envs.deployment.state.DeploymentSetting",
            "envs.deployment.state.Deploy",
            "envs.autoscaling.state.AutoscalingState",
            "envs.autoscaling.state.EndpointState",
            "envs.autoscaling.state.AutoscalingSpec",
            "envs.interface.scaling.ScaleChange",
            "envs.interface.scaling.Release",
            "envs.sharing.state.SharingState",
            "envs.sharing.state.Share",
            "envs.interface.sharing.SharingSetting",
        ),
    ),
    "integrations": (
        "Other libraries",
        "For RLlib and TorchRL, and other libraries that look for the action mask in the observation.",
        (
            "agents.integrations.masked.MaskedObservation",
            "agents.integrations.masked.MaskedPolicy",
            "agents.integrations.rllib.MaskedEnv",
            "agents.integrations.rllib.MaskedModule",
            "agents.integrations.rllib.ppo_config",
            "agents.integrations.rllib.rllib_policy",
            "agents.integrations.torchrl.torchrl_env",
            "agents.integrations.torchrl.masked_actor",
            "agents.integrations.torchrl.MaskedLevers",
            "agents.integrations.torchrl.torchrl_policy",
        ),
    ),
    "workloads": (
        "Workloads and records",
        "Requests that come, and what became of them.",
        (
            "envs.workload.schema.Workload",
            "envs.workload.registry.make_workload",
            "envs.interface.metrics.RequestRecords",
            "envs.interface.metrics.summarise",
        ),
    ),
}


def api_pages() -> dict[str, str]:
    """Content of each page, by its path in the site."""
    return {
        f"{_FOLDER}/{page}.md": "\n\n".join(
            [f"# {title}", lead, *(f"::: serving_gym.{name}" for name in names)]
        )
        + "\n"
        for page, (title, lead, names) in API.items()
    }
