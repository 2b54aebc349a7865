"""Words of `runners.train`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from serving_gym.agents.checkpoint import CHECKPOINT, LAST, plain, read_config, standing
from serving_gym.agents.config import POLICY_KEYS, POLICY_LISTS, REQUIRED_POLICIES, AgentConfig, no_policy
from serving_gym.agents.learners.learner import AGENTS, agent_config_class
from serving_gym.calibration.fields import check_positive
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.registration import Environment, usual_policies
from serving_gym.envs.routing.random_fleets import TRAINING, VALIDATION, RandomFleets
from serving_gym.envs.workload.registry import WorkloadSpec, for_larger
from serving_gym.runners.configuration.policies import composed_file, policy_config
from serving_gym.runners.configuration.schema import FIGURES, LauncherConfig, RunConfig, check_least
from serving_gym.runners.configuration.typed import build, schema_of

DEFAULT_MINUTES = 5.0
IMITATORS = ("bc", "dagger")

# What may be another when a training is resumed.
_FREE = (
    "resume",
    "out",
    "total_steps",
    "max_minutes",
    "tracker",
    "save_every_s",
    "baselines",
    "seeds",
    "split",
    "launcher",
    "figures",
    "workload",  # with the env's name beside it: what was learned on one is gone on with on another
)

_CHOICES = ("env", "agent")  # groups whose defaults come along: their word decides the name alone


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """Words of `runners.train`.

    Attributes:
        agent: name and settings of the agent; where a setting names a policy, its parameters are looked up.
        seed: of weights, exploration and training episodes.
        total_steps: decisions to train for; None: the agent's own number.
        max_minutes: time to train for, minutes; None: five where `total_steps` is not given, else no limit.
        num_envs: episodes side by side.
        also_clusters: files in configs/cluster; as many training episodes are played on each of these fleets as on
            `cluster`, where validation episodes are. As many more requests come as a fleet has more places than that.
            agent=api in env=routing, and agent=bc and dagger.
        also_env: settings of the environment, likewise: as many training episodes are played with each of these in
            place of what `env` says, as `[{gauge_interval_s: 1.0}]`. agent=api in env=routing, and agent=bc and dagger.
        also_workloads: files in configs/workload, likewise beside `workload`; agent=bc, dagger and reuse alone.
        also_fleets: fleets drawn at random from `seed`, each with traffic for its own capacity, likewise beside
            `cluster` and `workload` (`envs.routing.random_fleets`); its `validation` further ones have a share of the
            validation episodes as large as `cluster`. agent=api in env=routing alone.
        validations: times that the policy is tried on validation episodes.
        validation_seeds: episodes each time; of several parts of a workload, where an agent plays each by itself, one
            of each at least.
        save_every_s: time between saves from which training can go on, seconds.
        baselines: policies beside the agent in the comparison at the end; None: the environment's usual ones.
        resume: run directory of a training that was interrupted, or is to go on, on another workload if `env` and
            `workload` say so; None: a new one.
        launcher: where the episodes of the comparison at the end are run.
        report: whether to write `report.html`.
        figures: `png`, or `pdf`: each figure also as a PDF.
    """

    agent: Any
    seed: int = 0
    total_steps: int | None = None
    max_minutes: float | None = None
    num_envs: int = 32
    also_clusters: tuple[str, ...] = ()
    also_env: tuple[dict[str, Any], ...] = ()
    also_workloads: tuple[str, ...] = ()
    also_fleets: RandomFleets = field(default_factory=RandomFleets)
    validations: int = 10
    validation_seeds: int = 6
    save_every_s: float = 20.0
    baselines: tuple[str, ...] | None = None
    resume: str | None = None
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    report: bool = False
    figures: str = "png"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("figures", self.figures, FIGURES)
        for key in REQUIRED_POLICIES:
            if key in self.agent and self.agent[key] is None:
                raise no_policy(key)
        named = {key: self.agent[key] for key in POLICY_KEYS if isinstance(self.agent.get(key), str)}
        env = self.env["name"]
        policies = {key: policy_config(name, env) for key, name in named.items()}
        lists = {
            key: [policy_config(each, env) if isinstance(each, str) else each for each in self.agent[key]]
            for key in POLICY_LISTS
            if isinstance(self.agent.get(key), list | tuple)
        }
        object.__setattr__(self, "agent", {**self.agent, **policies, **lists})
        for name in ("num_envs", "validations", "validation_seeds"):
            check_least(name, getattr(self, name), 1)
        check_least("seed", self.seed, 0)
        imitates = self.agent["name"] in IMITATORS
        routes = (self.agent["name"], self.env["name"]) == ("api", "routing")
        for name in ("also_clusters", "also_env"):
            if getattr(self, name) and not (imitates or routes):
                raise ValueError(
                    f"{name} is for agent=api in env=routing and for agent=bc and dagger alone; leave it empty"
                )
        if self.also_workloads and not (imitates or self.agent["name"] == "reuse"):
            raise ValueError("also_workloads is for agent=bc, dagger and reuse alone; leave it empty")
        if self.also_fleets.number and not routes:
            raise ValueError("also_fleets is for agent=api in env=routing alone; leave it none")
        if self.total_steps is not None:
            check_least("total_steps", self.total_steps, 1)
        check_positive(self, "max_minutes", "save_every_s")
        _ = self.others  # says what is wrong with them before anything takes time

    @cached_property
    def others(self) -> dict[str, Environment]:
        """The environments besides that training episodes are played in, by the word that asks for each.

        Raises:
            ValueError: a file or a setting that there is not.
        """
        found = {f"also_clusters={each}": self._on_cluster(each) for each in self.also_clusters}
        found |= {f"also_env={each}": self._with_settings(each) for each in self.also_env}
        for each in self.also_workloads:
            workload = WorkloadSpec(**composed_file("workload", each))
            found[f"also_workloads={each}"] = self._alone(workload=workload).environment
        return found | self._fleets(TRAINING, self.also_fleets.number)

    @cached_property
    def validation_fleets(self) -> dict[str, Environment]:
        """The environments besides that validation episodes are played in, by what they are called."""
        return self._fleets(VALIDATION, self.also_fleets.validation)

    def _fleets(self, stream: str, number: int) -> dict[str, Environment]:
        """Environments on random fleets."""
        base = self.environment
        return {
            f"also_fleets, {stream} fleet {i}": dataclasses.replace(
                base, settings=self.also_fleets.draw(base.settings, self.seed, i, stream)
            )
            for i in range(number)
        }

    def _on_cluster(self, name: str) -> Environment:
        """The environment on another cluster; as many more requests come to a fleet as it has more places."""
        other = self._alone(cluster=composed_file("cluster", name)).environment
        if self.env["name"] != "routing":
            return other
        factor = other.settings.cluster.num_places / self.environment.settings.cluster.num_places
        return other.changed(workload=for_larger(self.workload, factor))

    def _with_settings(self, settings: Mapping[str, Any]) -> Environment:
        """The environment with some of its settings changed."""
        for name in settings:
            check_choice(
                "key", f"also_env.{name}", [f"also_env.{each}" for each in self.env if each != "name"]
            )
        return self._alone(env={**self.env, **settings}).environment

    def _alone(self, **changes: Any) -> TrainConfig:
        """The same training with other values, in one environment."""
        none: dict[str, Any] = {"also_fleets": RandomFleets()}
        return dataclasses.replace(self, also_clusters=(), also_env=(), also_workloads=(), **none, **changes)

    @property
    def compared(self) -> tuple[str, ...]:
        """Policies beside the agent in the comparison at the end."""
        return usual_policies(self.env["name"]) if self.baselines is None else self.baselines

    @property
    def agent_config(self) -> AgentConfig:
        """The agent's settings, typed."""
        config_class: type[AgentConfig] = agent_config_class(self.agent["name"])
        return build(config_class, self.agent)

    @property
    def steps(self) -> int:
        """Decisions to train for."""
        return self.total_steps if self.total_steps is not None else self.agent_config.total_steps

    @property
    def minutes(self) -> float | None:
        """Limit of the time to train for, minutes."""
        return DEFAULT_MINUTES if self.max_minutes is None and self.total_steps is None else self.max_minutes


def register_agents() -> None:
    """Puts the schema of every agent into Hydra's ConfigStore, and the resolver that `configs/train.yaml` needs."""
    store = ConfigStore.instance()
    for name in AGENTS:
        store.store(group="schema/agent", name=name, node=schema_of(cast(Any, agent_config_class(name))))
    OmegaConf.register_new_resolver("either", lambda first, second: first or second, replace=True)


def resumed(config: TrainConfig) -> TrainConfig:
    """The settings of the run that `config.resume` names, with those that may be changed.

    Raises:
        ValueError: there is nothing to resume, or a word of the command line contradicts the run's settings.
    """
    folder = standing(Path(str(config.resume)) / LAST)
    if not folder.is_dir():
        raise ValueError(f"nothing to resume in {config.resume!r}: it has no folder {LAST!r} of a training")
    out = Path(config.out)
    held = any(standing(out / name).exists() for name in (CHECKPOINT, LAST))
    if held and out.resolve() != Path(str(config.resume)).resolve():
        raise ValueError(
            f"out={config.out!r} holds another training than resume={config.resume!r}; choose another"
        )
    saved = read_config(folder)
    saved.pop("format")
    given, words = plain(config), list(_words())
    for word in words:
        _check_agrees(word, given, saved)
    free = {"resume": config.resume, "out": config.out}
    for word in sorted(words):  # the choice of a group before what is said of its keys
        key = word.partition(".")[0]
        if key in _FREE:
            free[key] = _with_word(free.get(key, saved.get(key)), given[key], word)
    return dataclasses.replace(build(TrainConfig, {**saved, **free}))


def _words() -> Iterable[str]:
    """Keys that the command line sets."""
    for word in HydraConfig.get().overrides.task if HydraConfig.initialized() else ():
        key, _, value = word.lstrip("+~").partition("=")
        yield f"{key}.name" if key in _CHOICES and not value.startswith("{") else key


def _with_word(saved: Any, given: Any, word: str) -> Any:
    """What a key comes to where the command line sets it, or something in it."""
    inside = word.partition(".")[2]
    if not inside or not isinstance(saved, Mapping):
        return given
    changed = OmegaConf.create(dict(saved))
    OmegaConf.update(changed, inside, OmegaConf.select(OmegaConf.create(given), inside))
    return OmegaConf.to_container(changed)


def _check_agrees(word: str, given: dict[str, Any], saved: dict[str, Any]) -> None:
    """Refuses a word that says something else than the run's settings.

    Raises:
        ValueError: names the first key that differs.
    """
    key = word.partition(".")[0]
    if key in _FREE:
        return
    if key not in given:
        raise ValueError(f"{word} cannot stand beside resume; these can: {', '.join(_FREE)}")
    ours, theirs = (_said(word, each) for each in (given, saved))
    for name, own, other in _differences(word, ours, theirs):
        raise ValueError(
            f"the training in {given['resume']!r} has {name}={other}, it cannot go on with {name}={own}; "
            f"these may change: {', '.join(_FREE)}"
        )


def _said(word: str, config: dict[str, Any]) -> Any:
    """What a configuration has at a word, in plain values."""
    said = OmegaConf.select(OmegaConf.create(config), word)
    return OmegaConf.to_container(said) if OmegaConf.is_config(said) else said


def _differences(key: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    """Keys in which two values differ, and what each has there; a key that is missing is as good as null."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in {**theirs, **ours}:
            yield from _differences(f"{key}.{name}", ours.get(name), theirs.get(name))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (own, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _differences(f"{key}[{i}]", own, other)
    elif ours != theirs:
        yield key, ours, theirs
