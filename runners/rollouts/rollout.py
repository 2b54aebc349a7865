"""Runs episodes of a policy, one at a time or in a vector environment, and collects their metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.files import is_in_file
from serving_gym.baselines.policy import period_of
from serving_gym.envs.base.env import SteppedEnv
from serving_gym.envs.interface.metrics import RequestRecords, summarise
from serving_gym.runners.comparison.references import class_slowdowns, engines_of
from serving_gym.runners.rollouts.glance import EVERY_S, glance

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from serving_gym.baselines.policy import BatchPolicy, Policy
    from serving_gym.envs.base.placement import PlacementVectorEnv
    from serving_gym.envs.interface.policy_spec import PolicySpec

_SECONDS_PER_HOUR = 3600.0
_RENT = "reward/gpu_usd"  # minus the price of provisioned machines, if the environment charges it


@dataclass(frozen=True)
class Score:
    """Metrics of an episode.

    Attributes:
        metrics: See `Episode`.
        us_per_decision: See `Episode`.
    """

    metrics: dict[str, float]
    us_per_decision: float


@dataclass(frozen=True)
class VectorEpisode:
    """An episode of a vector environment.

    Attributes:
        metrics: The return, and metrics of `envs.interface.metrics.summarise`.
        actions: One entry per decision (`describe_action`).
    """

    metrics: dict[str, float]
    actions: list[Any]


@dataclass(frozen=True, eq=False)
class Episode:
    """A rollout of one episode: its decisions, requests and metrics.

    Attributes:
        policy: name of the policy.
        seed: seed of the episode.
        metrics: metrics by name: `return`, `reward/TERM` (before weighting), `gpu_hours`, `cost_usd` (rent of the
            machines that are kept, in environments that charge it), `commands_refused`, `slowdown/CLASS`
            (`runners.comparison.references.class_slowdowns`), and those of `envs.interface.metrics.summarise`.
        decisions: one mapping per decision: time, action, why it was refused, reward and its terms; about once a second
            also the cluster before it (`runners.rollouts.glance`).
        us_per_decision: mean decision time, microseconds; the first decision, which may include compilation,
            does not count.
        duration_s: length of the episode, seconds of simulated time.
        records: every request.
    """

    policy: str
    seed: int
    metrics: dict[str, float]
    decisions: list[dict[str, Any]]
    us_per_decision: float
    duration_s: float
    records: RequestRecords

    @property
    def score(self) -> Score:
        """Its metrics only."""
        return Score(self.metrics, self.us_per_decision)

    @property
    def actions(self) -> list[Any]:
        """The actions, one entry per decision."""
        return [decision["action"] for decision in self.decisions]

    def row(self) -> dict[str, Any]:
        """The episode as one row of a table."""
        return {
            "policy": self.policy,
            "seed": self.seed,
            "decisions": len(self.decisions),
            "duration_s": self.duration_s,
            "us_per_decision": self.us_per_decision,
            **self.metrics,
        }


def run_episode(
    env: gym.Env[Any, Any],
    policy: Policy,
    seed: int,
    name: str | None = None,
    on_decision: Callable[[dict[str, Any]], None] | None = None,
) -> Episode:
    """Runs one episode to its end.

    Args:
        env: environment with `state`, `policy_spec`, `gpu_seconds` and `records()`.
        policy: the policy.
        seed: of the episode and of the policy.
        name: name of the policy in results; None: its own name.
        on_decision: called with each entry of `Episode.decisions` when its step has ended.
    """
    with _observed_lazily(env, policy):
        return _run_episode(env, policy, seed, name, on_decision)


@contextlib.contextmanager
def _observed_lazily(env: gym.Env[Any, Any], policy: Policy) -> Iterator[None]:
    """Leaves observations uncomputed unless they are read, for baselines: most read the state alone."""
    if not isinstance(env, SteppedEnv) or not _is_of(policy, "serving_gym.baselines."):
        yield
        return
    env.observes_lazily = True
    try:
        yield
    finally:
        env.observes_lazily = False


def _run_episode(
    env: gym.Env[Any, Any],
    policy: Policy,
    seed: int,
    name: str | None,
    on_decision: Callable[[dict[str, Any]], None] | None,
) -> Episode:
    called = policy.name if name is None else name
    core: Any = env.unwrapped
    core.ask_every(period_of(policy))
    if hasattr(core, "rehearse"):  # on live servers, which run in real time
        with getattr(policy, "unhurried", contextlib.nullcontext)():
            core.rehearse(policy, seed)
    observation, _ = env.reset(seed=seed)
    policy.reset(core.policy_spec, seed)
    decisions: list[dict[str, Any]] = []
    thinking_s: list[float] = []
    glance_s, done = 0.0, False
    while not done:
        now_s = core.state.now_s
        if now_s >= glance_s:
            cluster, glance_s = {"cluster": glance(core.state)}, now_s + EVERY_S
        else:
            cluster = {}
        begun = time.perf_counter()
        action = _decide(policy, observation, core)
        thinking_s.append(time.perf_counter() - begun)
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        decisions.append(
            {
                "policy": called,
                "seed": seed,
                "now_s": now_s,
                "dt_s": info["dt"],
                "action": describe_action(action),
                "refused": info["refused"],
                "reward": float(reward),
                "reward_terms": info["reward_terms"],
                **cluster,
                **_live_entries(info),
            }
        )
        if on_decision is not None:
            on_decision(decisions[-1])
    records: RequestRecords = core.records()
    duration_s = float(core.state.now_s)
    spec = core.policy_spec
    return Episode(
        policy=called,
        seed=seed,
        metrics=_metrics(spec, records, decisions, duration_s)
        | class_slowdowns(engines_of(env), records, spec.slos, spec.classes)
        | {"gpu_hours": core.gpu_seconds / _SECONDS_PER_HOUR},
        decisions=decisions,
        us_per_decision=1e6 * float(np.mean(thinking_s[1:] or thinking_s)),
        duration_s=duration_s,
        records=records,
    )


def run_vector_episodes(
    env: PlacementVectorEnv, policies: Sequence[Policy], spec: PolicySpec, seeds: Sequence[int]
) -> list[VectorEpisode] | None:
    """Runs one episode in each row of a vector environment, with the same results as `run_episode`.

    Args:
        env: The vector environment, with autoreset disabled.
        policies: One for each row, all distinct objects.
        spec: The policy specification.
        seeds: Seeds of the episodes, one for each row.

    Returns:
        The episodes in the order of `seeds`; None: a policy takes a command outside the action space, which
        vector environments do not take.
    """
    for policy, seed in zip(policies, seeds, strict=True):
        policy.reset(spec, seed)
    each: Any = list(seeds)
    observation, _ = env.reset(seed=each)
    hold = observation["places"].shape[1]
    returns, taken = [0.0 for _ in seeds], [[] for _ in seeds]  # type: tuple[list[float], list[list[Any]]]
    going = list(range(len(seeds)))
    while going:
        actions = np.full(len(seeds), hold, np.int64)
        for i in going:
            own = {name: part[i] for name, part in observation.items()}
            action = policies[i].act(own, env.episodes[i].state)
            if not isinstance(action, int | np.integer | None):
                return None
            taken[i].append(describe_action(action))
            actions[i] = hold if action is None else int(action)
        observation, rewards, terminated, truncated, _ = env.step(actions)
        over = terminated | truncated
        for i in going:
            returns[i] += float(rewards[i])
        going = [i for i in going if not over[i]]
    return [
        VectorEpisode(_figures(spec, episode.simulator.results(), total, float(episode.state.now_s)), actions)
        for episode, total, actions in zip(env.episodes, returns, taken, strict=True)
    ]


def episode_returns(
    env: VectorEnv[Any, Any, Any], policy: BatchPolicy, spec: PolicySpec, seeds: Sequence[int]
) -> NDArray[np.float64]:
    """Returns of episodes in a vector environment with batched decisions, (num_envs,).

    A network may round differently in a batch than alone, so returns can differ slightly from those of `run_episode`.

    Args:
        env: Vector environment with same-step autoreset and masks.
        policy: The policy.
        spec: The policy specification.
        seeds: Seeds of the episodes, one for each row.
    """
    policy.reset(spec, seeds[0])
    each: Any = list(seeds)
    observation, info = env.reset(seed=each)
    returns, over = np.zeros(env.num_envs), np.zeros(env.num_envs, bool)
    while not over.all():
        actions = policy.act_batch(observation, info["action_mask"])
        observation, rewards, terminated, truncated, info = env.step(actions)
        returns += np.where(over, 0.0, rewards)
        over |= terminated | truncated
    return returns


def _decide(policy: Policy, observation: Any, core: Any) -> Any:
    """The action of a policy; on live servers an error of the policy counts as no decision.

    Raises:
        ValueError: A policy from outside this package failed; names the line.
    """
    try:
        return policy.act(observation, core.state)
    except Exception as error:
        failure = f"{policy.name} failed: {type(error).__name__}: {error}"
        if getattr(core, "survives_failures", False):  # requests must be served even if the policy fails
            from serving_gym.envs.live.control import NoDecision

            return NoDecision(failure)
        if isinstance(error, ValueError) or _is_of(policy, "serving_gym."):
            raise
        line = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(line.filename).name}, line {line.lineno}"
        raise ValueError(
            f"policy {failure} ({where}); SERVING_GYM_DEBUG=1 shows the whole traceback"
        ) from error


def _is_of(policy: Policy, package: str) -> bool:
    """Whether a policy's class is one of a package, and not of a file that a user named."""
    return type(policy).__module__.startswith(package) and not is_in_file(policy)


def _live_entries(info: Mapping[str, Any]) -> dict[str, Any]:
    """On live servers: the executed action, and decisions taken for a policy that was late."""
    if "overrides" not in info:
        return {}
    return {
        "executed": info["executed"],
        "overrides": [dataclasses.asdict(override) for override in info["overrides"]],
    }


def describe_action(action: Any) -> Any:
    """Describes an action for the decisions log: indices, commands spelt out, or null for no change."""
    if action is None or isinstance(action, (int, np.integer)):
        return action if action is None else int(action)
    if isinstance(action, tuple) and all(dataclasses.is_dataclass(change) for change in action):
        return [describe_action(change) for change in action]
    if dataclasses.is_dataclass(action) and not isinstance(action, type):
        values = {key: getattr(value, "name", value) for key, value in dataclasses.asdict(action).items()}
        return {"command": type(action).__name__, **values}
    return np.asarray(action).tolist()


def _metrics(
    spec: PolicySpec, records: RequestRecords, decisions: list[dict[str, Any]], duration_s: float
) -> dict[str, float]:
    terms = _sum_terms(decision["reward_terms"] for decision in decisions)
    total = sum(decision["reward"] for decision in decisions)
    return {
        **_figures(spec, records, total, duration_s),
        "commands_refused": float(sum(bool(decision["refused"]) for decision in decisions)),
        **terms,
        **({"cost_usd": -terms[_RENT]} if _RENT in terms else {}),
    }


def _figures(spec: PolicySpec, records: RequestRecords, total: float, duration_s: float) -> dict[str, float]:
    """The return, and metrics of the requests."""
    slos = dict(zip(spec.classes, spec.slos, strict=True))
    return {"return": total, **summarise(records, slos, spec.classes, duration_s)}


def _sum_terms(terms: Any) -> dict[str, float]:
    """Each reward term, before weighting, over the episode."""
    total: dict[str, float] = {}
    each: Mapping[str, float]
    for each in terms:
        for name, value in each.items():
            total[f"reward/{name}"] = total.get(f"reward/{name}", 0.0) + value
    return total
