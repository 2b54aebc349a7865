"""Words of `runners.pareto`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.configuration.policies import CHECKPOINT, policy_config
from serving_gym.runners.configuration.schema import FIGURES, LauncherConfig, RunConfig

DIRECTIONS = ("lower", "higher")
AXES = {"cost_usd": "lower", "slo_attainment": "higher"}
# Where the command line names no policies: those of env=autoscaling, from few machines to many.
POLICIES = (
    "fixed_instances",
    "hpa_waiting",
    "hpa_kv",
    "hpa_rate",
    "hpa_rate_tuned",
    "kpa",
    "llm_d_saturation",
    "sageserve_reactive",
    "zoo/autoscaling",
)
SETTINGS: dict[str, dict[str, list[Any]]] = {
    "fixed_instances": {"instances": [3, 4, 5, 6, 8]},
    "hpa_waiting": {"target": [1.0, 5.0, 20.0]},
    "hpa_kv": {"target": [0.2, 0.4, 0.6, 0.8]},
    "hpa_rate": {"target": [0.4, 0.55, 0.7, 0.85, 1.0]},
    "kpa": {"utilization": [0.2, 0.45, 0.7]},
    "llm_d_saturation": {"kv_spare": [0.1, 0.3, 0.5]},
    "sageserve_reactive": {"out_above_ratio": [0.4, 0.55, 0.7]},
}


@dataclass(frozen=True)
class Candidate:
    """A policy at one setting.

    Attributes:
        policy: Name of its file, or of a checkpoint.
        setting: Constants that differ from its file, by name.
    """

    policy: str
    setting: dict[str, Any]

    @property
    def label(self) -> str:
        """Name in results, as `hpa_rate target=0.8`."""
        return " ".join([self.policy, *(f"{name}={value}" for name, value in self.setting.items())])

    @property
    def source(self) -> dict[str, Any]:
        """What `load_policy` takes."""
        config = policy_config(self.policy)
        return {**config, "params": {**config["params"], **self.setting}} if self.setting else config


@dataclass(frozen=True, kw_only=True)
class ParetoConfig(RunConfig):
    """Configuration of `runners.pareto`.

    Attributes:
        policies: files in `configs/policy`, or checkpoints; None: autoscalers (`POLICIES`).
        settings: by policy, values of its constants, of several all combinations; None: those of `SETTINGS`.
        axes: two metrics of episodes (docs/metrics.md), and whether lower or higher is better; None: `AXES`.
        reference: worst value of each, up to which the hypervolume is measured; None: the worst of all points.
        launcher: where episodes are run.
        figures: `png`, or `pdf`: the figure also as a PDF.
    """

    policies: tuple[str, ...] | None = None
    settings: Any = None
    axes: Any = None
    reference: tuple[float, ...] | None = None
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    figures: str = "png"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("figures", self.figures, FIGURES)
        if not self.compared:
            raise ValueError(
                "policies must name at least one policy, as in policies=[fixed_instances,hpa_rate]"
            )
        if len(self.metrics) != 2:
            raise ValueError(f"axes must be two metrics, got {len(self.metrics)}: {', '.join(self.metrics)}")
        for name, direction in self.metrics.items():
            check_choice(f"axes.{name}", direction, DIRECTIONS)
        if self.reference is not None and len(self.reference) != 2:
            raise ValueError(
                f"reference must be a value of each of {', '.join(self.metrics)}, got {list(self.reference)}"
            )
        for name in self.settings or {}:
            check_choice("policy of settings", name, self.compared)
        for name, constants in self.constants.items():
            self._check_setting(name, constants)

    @property
    def compared(self) -> tuple[str, ...]:
        """The policies."""
        return POLICIES if self.policies is None else self.policies

    @property
    def metrics(self) -> dict[str, str]:
        """Both metrics, and whether lower or higher is better."""
        return dict(AXES if self.axes is None else self.axes)

    @cached_property
    def constants(self) -> dict[str, dict[str, list[Any]]]:
        """Values of constants, by policy and constant."""
        settings = SETTINGS if self.settings is None else self.settings
        return {name: settings[name] for name in self.compared if name in settings}

    def _check_setting(self, policy: str, constants: dict[str, list[Any]]) -> None:
        config = policy_config(policy, self.env["name"])
        if config["name"] == CHECKPOINT:
            raise ValueError(f"settings.{policy} must be left out: a checkpoint has no constants to set")
        if not isinstance(constants, dict):
            raise ValueError(f"settings.{policy} must be constants with lists of values, got {constants!r}")
        for name, values in constants.items():
            check_choice(f"constant of {policy}", name, config["params"])
            if not isinstance(values, list) or not values:
                raise ValueError(f"settings.{policy}.{name} must be a list of values, got {values!r}")

    def candidates(self) -> Iterator[Candidate]:
        """Every policy at each of its settings."""
        for policy in self.compared:
            constants = self.constants.get(policy, {})
            for values in itertools.product(*constants.values()):
                yield Candidate(policy, dict(zip(constants, values, strict=True)))
