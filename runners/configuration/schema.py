"""Typed schemas of all commands, behind `configs/`; they refuse unknown keys.

The dataclasses here are frozen; `runners.configuration.typed` mirrors them for Hydra. A group whose keys depend on the
choice (`env`, `policy`) stays a mapping: `env` is checked against the environment's own dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from hydra.core.config_store import ConfigStore

from serving_gym.calibration.fields import check_positive, check_within
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.objective import Objective
from serving_gym.envs.interface.randomise import RandomiseSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.live.envelope import EnvelopeSettings
from serving_gym.envs.live.launch_settings import DEVICES
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.live.transitions import Deadlines
from serving_gym.envs.registration import Environment, env_config_class, env_names, usual_policies
from serving_gym.envs.workload.registry import SPLITS, WorkloadSource, WorkloadSpec
from serving_gym.runners.configuration.clusters import CLUSTERS, cluster_of
from serving_gym.runners.configuration.packages import register_packages
from serving_gym.runners.configuration.policies import is_pattern, members_of
from serving_gym.runners.configuration.typed import build, schema_of

# Fields of an environment's dataclass that are config groups or keys of their own.
SHARED_ENV_FIELDS = ("workload", "cluster", "objective", "split")

SIMULATOR = "simulator"
BACKENDS = (SIMULATOR, "vllm", "both", "tables")
LIVE_BACKENDS = ("vllm", "both")
FIGURES = ("png", "pdf")  # `figures=`: PNG alone, or each with a PDF beside it


@dataclass(frozen=True)
class BackendConfig(LiveSettings):
    """The backend: the simulator or live servers; all fields but `name` apply to live servers.

    Attributes:
        name: "simulator", "vllm", or "both" to run on one after the other; "tables" for `runners.calibrate`.
        launch: Whether to start servers on this machine, one per engine, if no endpoints are given.
        python: Python with vLLM to launch servers with; None: the one in SERVING_GYM_VLLM_PYTHON.
        device: Device of launched servers, cpu or cuda.
        slots: Cores or GPUs of each launched server; empty: the available ones in order.
        serves: Folder with the config.json of the model that launched servers serve; None: a tiny Llama.
        sleep_mode: Whether launched servers support sleep mode; on GPUs only.
        log_iterations: Whether launched servers log each iteration, in a log without bound, as `runners.calibrate
            traffic=` reads it.
        policy_process: Whether policies decide in a process of their own, so that one that computes or hangs delays no
            request (`runners.rollouts.policy_process`).
        control_within_s: Longest time that a policy which starts and stops servers may take, s; then all is left as it
            is.
        envelope: Safety limits of such a policy.
        deadlines: Deadlines of the steps of starting and stopping.
    """

    name: str = "simulator"
    launch: bool = False
    python: str | None = None
    device: str = "cpu"
    slots: tuple[str, ...] = ()
    serves: str | None = None
    sleep_mode: bool = False
    log_iterations: bool = False
    policy_process: bool = True
    control_within_s: float = 10.0
    envelope: EnvelopeSettings = field(default_factory=EnvelopeSettings)
    deadlines: Deadlines = field(default_factory=Deadlines)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("backend", self.name, BACKENDS)
        check_choice("backend.device", self.device, DEVICES)
        check_positive(self, "control_within_s", prefix="backend.")
        if self.name not in LIVE_BACKENDS and (self.endpoints or self.launch):
            raise ValueError("backend.endpoints and backend.launch need backend=vllm")
        if self.name in LIVE_BACKENDS and bool(self.endpoints) == self.launch:
            raise ValueError(
                f"backend={self.name} needs either running servers, as in backend.endpoints=[http://127.0.0.1:8000], "
                "or backend.launch=true"
            )


@dataclass(frozen=True)
class TrackerConfig:
    """Tracker of a run's metrics, in addition to its directory.

    Attributes:
        name: "none", "tensorboard" or "wandb".
        project: W&B project.
        entity: W&B user or team; None: the account's default.
        mode: W&B "offline" (a folder to be synchronised later) or "online" (needs an account); the environment variable
            WANDB_MODE goes before it.
        group: W&B group; None: names of the environment and the agent or policy.
        run_name: name of the run; None: chosen by the tracker.
        tags: W&B tags.
    """

    name: str = "none"
    project: str = "serving-gym"
    entity: str | None = None
    mode: str = "offline"
    group: str | None = None
    run_name: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("tracker", self.name, ("none", "tensorboard", "wandb"))
        check_choice("tracker.mode", self.mode, ("offline", "online"))


@dataclass(frozen=True)
class LauncherConfig:
    """Where the episodes of a comparison are run.

    Attributes:
        name: "local" (this machine) or "ray".
        workers: Worker processes; 1 on this machine: all in this process. None: one for each processor of a Ray
            cluster, or for each core of this machine where that saves more time than the start of processes takes.
        address: Address of a running Ray cluster; None: one on this machine for the duration of the command.
    """

    name: str = "local"
    workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        check_choice("launcher", self.name, ("local", "ray"))
        if self.workers is not None:
            check_least("launcher.workers", self.workers, 1)


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """Configuration of an environment, on the command line and in `gymnasium.make`.

    Attributes:
        env: Name of the environment, and its settings that have no config group of their own.
        workload: Requests of an episode.
        cluster: A node or a fleet, typed by its own file (`runners.configuration.clusters`).
        objective: Weights of the reward terms.
        split: Split of the workload that episodes are drawn from; None: the workload's default.
    """

    env: Any
    workload: WorkloadSpec
    cluster: Any
    objective: Objective
    split: str | None = None

    def __post_init__(self) -> None:
        if self.split is not None:
            check_choice("split", self.split, SPLITS)
        _ = self.environment  # says what is wrong with it before anything takes time

    @cached_property
    def environment(self) -> Environment:
        """The environment with all its settings, typed.

        Raises:
            ValueError: A setting is unknown or not allowed.
        """
        name = self.env["name"]
        own = {key: value for key, value in self.env.items() if key != "name"}
        groups = {
            "workload": self.workload,
            "cluster": cluster_of(self.cluster),
            "objective": self.objective,
            "split": self.split,
        }
        return Environment(name, build(env_config_class(name), {**own, **groups}, "env."))


@dataclass(frozen=True, kw_only=True)
class RunConfig(EnvironmentConfig):
    """Configuration common to all commands on an environment.

    Attributes:
        backend: The backend, simulator or live servers.
        tracker: Tracker of metrics, in addition to the run directory.
        out: Run directory.
        seeds: Number of episodes (of each policy).
        first_seed: Seed of the first; the others follow it.
    """

    backend: BackendConfig
    tracker: TrackerConfig
    out: str
    split: str = "test"
    seeds: int = 10
    first_seed: int = 0

    bodies: ClassVar[tuple[str, ...]] = ("simulator",)  # that the command can use

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least("seeds", self.seeds, 1)
        check_least("first_seed", self.first_seed, 0)
        if self.backend.name not in self.bodies:
            raise ValueError(
                f"backend={self.backend.name} is not available here (allowed: {', '.join(self.bodies)}); "
                "runners.evaluate and runners.compare run policies on live servers"
            )
        if self.backend.name in LIVE_BACKENDS:
            self.environment.arguments.get("randomise", RandomiseSpec()).check_live()

    @property
    def seed_range(self) -> range:
        """Seeds of the episodes."""
        return range(self.first_seed, self.first_seed + self.seeds)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(RunConfig):
    """Configuration of `runners.evaluate`.

    Attributes:
        policy: name and constants of the policy.
        detailed: whether `requests.json` has every episode, not only the first.
        rivals: policies that are ranked with it with backend=both; None: four common baselines.
        repeats: runs of each episode on live servers with backend=both, to measure their variance.
        log_states: whether to write the state of each decision, for `runners.replay`; in env=routing.
        explore: share of random decisions, for `runners.replay`; in env=routing.
        report: whether to write `report.html`.
    """

    policy: dict[str, Any]
    detailed: bool = False
    log_states: bool = False
    explore: float = 0.0
    report: bool = False
    rivals: tuple[str, ...] | None = None
    repeats: int = 2

    bodies: ClassVar[tuple[str, ...]] = ("simulator", "vllm", "both")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least("repeats", self.repeats, 1)
        check_within(self, "[0, 1]", "explore")
        if (self.log_states or self.explore) and (
            self.env["name"] != "routing" or self.backend.name == "both"
        ):
            raise ValueError("log_states and explore need env=routing and one backend, simulator or vllm")


@dataclass(frozen=True)
class SearchConfig:
    """A clairvoyant search (`runners.comparison.clairvoyant`).

    Attributes:
        base: policy that rollouts follow after the candidate; None: no action.
        horizon: rollout length, decisions.
        candidates: most actions compared.
        every: decisions between two searches.
        hold: whether to also compare repeating a candidate until the next search.
        seeds: number of first seeds searched; 0: none.
    """

    base: str | None = None
    horizon: int = 100
    candidates: int = 8
    every: int = 1
    hold: bool = False
    seeds: int = 0

    def __post_init__(self) -> None:
        for name, least in (("horizon", 1), ("candidates", 2), ("every", 1), ("seeds", 0)):
            check_least(f"search.{name}", getattr(self, name), least)


@dataclass(frozen=True)
class BenchmarkTask:
    """A task of the benchmark, as in `configs/benchmark/task`.

    Attributes:
        words: overrides of `runners.compare`.
        policies: names of the policies.
        strata: overrides of each workload; the blocks are divided among them.
        short: overrides for short episodes.
        search: the clairvoyant search; its number of seeds is the benchmark's.
        shifts: overrides of each perturbation.
    """

    words: tuple[str, ...]
    policies: tuple[str, ...]
    strata: dict[str, tuple[str, ...]]
    short: tuple[str, ...] = ()
    search: SearchConfig = field(default_factory=SearchConfig)
    shifts: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.policies or not self.strata:
            raise ValueError("a task of the benchmark needs policies and at least one workload in strata")


@dataclass(frozen=True)
class BenchmarkConfig:
    """A benchmark, as in `configs/benchmark`.

    Attributes:
        name: its name.
        tasks: their names; None: all.
        blocks: episodes of each policy in each task, without a request in common.
        first_seed: lowest seed, outside those of training and tuning.
        short: whether tasks run on short episodes.
        shifted: whether tasks run under each of their perturbations instead of unperturbed.
        search_blocks: episodes of the clairvoyant search, divided among the workloads.
        processes: number of processes that run blocks in parallel.
    """

    name: str
    tasks: tuple[str, ...] | None = None
    blocks: int = 30
    first_seed: int = 1_000_000
    short: bool = False
    shifted: bool = False
    search_blocks: int = 0
    processes: int = 2

    def __post_init__(self) -> None:
        if self.tasks is not None and not self.tasks:
            raise ValueError("benchmark.tasks must name at least one task, or be null for all")
        check_least("benchmark.blocks", self.blocks, 1)
        check_least("benchmark.processes", self.processes, 1)
        check_least("benchmark.first_seed", self.first_seed, 0)
        check_least("benchmark.search_blocks", self.search_blocks, 0)


@dataclass(frozen=True, kw_only=True)
class CompareConfig(RunConfig):
    """Configuration of `runners.compare`.

    Attributes:
        policies: names of files in `configs/policy`, or checkpoints (`zoo/NAME`, or a path; a pattern, as runs/ten/*,
            names several trainings of one agent, which are also pooled); None: the environment's defaults.
        plots: whether to draw.
        figures: `png`, or `pdf`: each figure also as a PDF.
        disjoint: whether windows of a trace must not overlap; there may be fewer than `seeds` then.
        search: clairvoyant search as a reference.
        benchmark: a benchmark of many comparisons, which sets all other keys but `out`; None: one comparison.
        launcher: where episodes are run.
        report: whether to write `report.html`, and the requests and decisions of the worst episodes for it.
    """

    policies: tuple[str, ...] | None = None
    plots: bool = True
    report: bool = False
    figures: str = "png"
    disjoint: bool = False
    search: SearchConfig = field(default_factory=SearchConfig)
    benchmark: BenchmarkConfig | None = None
    launcher: LauncherConfig = field(default_factory=LauncherConfig)

    bodies: ClassVar[tuple[str, ...]] = ("simulator", "vllm")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("figures", self.figures, FIGURES)
        if not self.compared:
            raise ValueError("policies must name at least one policy, as in policies=[static_dp,static_tp]")
        if self.launcher.name != "local" and self.backend.name != SIMULATOR:
            raise ValueError("launcher=ray needs backend=simulator: live servers serve one episode at a time")
        if self.search.seeds and self.backend.name != SIMULATOR:
            raise ValueError("search.seeds needs backend=simulator: live servers cannot be forked")
        if self.report and self.benchmark is not None:
            raise ValueError("report=true is for one comparison; leave it or benchmark out")
        twice = sorted({name for name in self.compared if self.compared.count(name) > 1})
        if twice:
            raise ValueError(f"policies names {twice[0]!r} more than once")

    @property
    def workload_source(self) -> WorkloadSource:
        """Source of the episodes' requests."""
        return WorkloadSource(self.workload)

    @property
    def compared(self) -> tuple[str, ...]:
        """The policies, with the members of pools listed one by one."""
        named = usual_policies(self.env["name"]) if self.policies is None else self.policies
        return tuple(member for name in named for member in self.pools.get(name, (name,)))

    @cached_property
    def pools(self) -> dict[str, tuple[str, ...]]:
        """Checkpoints by the pattern that matches them, read at the first access.

        Raises:
            ValueError: a pattern matches fewer than two checkpoints.
        """
        return {name: members_of(name) for name in self.policies or () if is_pattern(name)}


@dataclass(frozen=True, kw_only=True)
class TuneConfig(RunConfig):
    """Configuration of `runners.tune`.

    Attributes:
        policy: name and constants of the policy; the search starts from these constants.
        evaluations: candidates to try, each on every seed.
        sigma: initial step size, as a share of each constant's range.
        search_seed: seed of the search itself.
        reference: a policy whose return in each episode normalises the return, so that hard and easy
            episodes weigh the same; null: not normalised.
        clip: clips each episode's return to this relative difference from the reference; null: no clipping.
        save: whether to write `configs/policy/NAME_tuned.yaml` as well.
    """

    policy: dict[str, Any]
    evaluations: int = 100
    sigma: float = 0.25
    search_seed: int = 0
    reference: str | None = None
    clip: float | None = None
    save: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least("evaluations", self.evaluations, 1)
        check_within(self, "(0, 1]", "sigma")
        if self.clip is not None:
            if not self.clip > 0:
                raise ValueError(f"clip must be positive or null, got {self.clip}")
            if self.reference is None:
                raise ValueError("clip needs reference: what is clipped are shares of its returns")


@dataclass(frozen=True)
class SimulateConfig:
    """Configuration of `runners.simulate`.

    Attributes:
        workload: requests.
        cluster: a node or a fleet, typed by its own file (`runners.configuration.clusters`).
        router: built-in router; None: the cluster's router.
        slos: SLO of each request class.
        seed: of the workload.
        limit_s: time to stop at, seconds of simulated time; None: when every request is done.
        requests_json: whether to write `requests.json` in addition to `requests.parquet`.
        out: run directory.
        backend: the backend, simulator or live servers.
        report: whether to write `report.html`.
    """

    workload: WorkloadSpec
    cluster: Any
    out: str
    report: bool = False
    backend: BackendConfig = field(default_factory=BackendConfig)
    slos: dict[str, SLO] = field(default_factory=dict)
    router: str | None = None
    seed: int = 0
    limit_s: float | None = None
    requests_json: bool = True

    def __post_init__(self) -> None:
        check_least("seed", self.seed, 0)
        check_choice("backend", self.backend.name, ("simulator", "vllm"))
        check_positive(self, "limit_s")


@dataclass(frozen=True)
class BenchConfig:
    """Configuration of `runners.bench`.

    Attributes:
        out: run directory.
        cluster: the node; its number of GPUs is set to each of `engines`.
        workload: requests, always all of them; None: azure_conv if its trace is available, else azure_conv_fitted.
        engines: numbers of engines to simulate.
        router: built-in router.
        load: arrival rate as a share of the engines' capacity.
        requests: lengths of the streams.
        week_requests: requests of the week.
        repeats: runs of each measurement; the median counts.
        only: names of the measurements to make; empty: all.
        num_envs: episodes of the vector environment.
        oracle_requests: requests simulated by the oracle, which is slow.
    """

    out: str
    cluster: ClusterSpec
    workload: WorkloadSpec | None = None
    engines: tuple[int, ...] = (1, 8, 16, 64, 256)
    router: str = "jsq"
    load: float = 0.7
    requests: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    week_requests: int = 10_000_000
    repeats: int = 5
    only: tuple[str, ...] = ()
    num_envs: int = 64
    oracle_requests: int = 300

    def __post_init__(self) -> None:
        for name in ("repeats", "num_envs", "oracle_requests", "week_requests"):
            check_least(name, getattr(self, name), 1)
        for name in ("engines", "requests"):
            for value in getattr(self, name):
                check_least(name, value, 1)
        check_within(self, "(0, 1]", "load")


@dataclass(frozen=True)
class JoinConfig:
    """Configuration of `runners.join`.

    Attributes:
        checkpoints: checkpoints to join; a pattern names all that it matches.
        out: run directory.
        weights: weight of each checkpoint's scores, any sum; empty: equal weights.
        epochs: epochs over the states of all trainings to train new networks; None: networks are kept unchanged.
        networks: number of new networks.
        seed: seed of the new networks.
    """

    checkpoints: tuple[str, ...]
    out: str
    weights: tuple[float, ...] = ()
    epochs: int | None = None
    networks: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        check_least("networks", self.networks, 1)
        check_least("seed", self.seed, 0)
        if self.epochs is not None:
            check_least("epochs", self.epochs, 1)
            if self.weights:
                raise ValueError(
                    "weights are for networks that stay as they are: leave weights or epochs out"
                )
        elif (self.networks, self.seed) != (JoinConfig.networks, JoinConfig.seed):
            raise ValueError("networks and seed are for new networks: set epochs, or leave them out")


@dataclass(frozen=True)
class ValidateConfig:
    """Configuration of `runners.validate`.

    Attributes:
        out: run directory.
        cluster: of traffic: the engine, its TP degree (`base_width`) and batch limits; its KV cache is the server's.
        data: table of measurements.
        traffic: instead: run directories of `runners.simulate backend=vllm` on one server each, to simulate.
        profile: file or name of the profile to score; None: the committed one for each row, or the cluster's.
    """

    out: str
    cluster: ClusterSpec
    data: str | None = None
    traffic: list[str] = field(default_factory=list)
    profile: str | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (not self.traffic):
            raise ValueError("either data must name a table of measurements, or traffic the folders of runs")


COMMANDS: dict[str, type] = {
    "environment": EnvironmentConfig,
    "evaluate": EvaluateConfig,
    "compare": CompareConfig,
    "tune": TuneConfig,
    "simulate": SimulateConfig,
    "bench": BenchConfig,
    "validate": ValidateConfig,
}


def check_least(name: str, value: int, least: int) -> None:
    """Checks that a number is not too small.

    Raises:
        ValueError: the number is too small; names the key, its value and the least allowed.
    """
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def register_schemas() -> None:
    """Puts every schema into Hydra's ConfigStore, under `schema/`, where YAML files refer to them."""
    store = ConfigStore.instance()
    for name, config in COMMANDS.items():
        register_command(name, config)
    for name in env_names():
        node = schema_of(env_config_class(name), omit=SHARED_ENV_FIELDS, name=str)
        store.store(group="schema/env", name=name, node=node)
    for name, cluster in CLUSTERS.items():
        store.store(group="schema/cluster", name=name, node=schema_of(cluster))
    register_packages()


def register_command(name: str, config: type) -> None:
    """Puts one command's schema into the ConfigStore, as `schema/NAME`."""
    ConfigStore.instance().store(group="schema", name=name, node=schema_of(config), package="_global_")
