"""Runs of a reproduction: words as a user types them, a policy, some seeds; and the requests of all seeds pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.policy import Policy
from serving_gym.envs.interface.layout import format_layout
from serving_gym.envs.interface.metrics import FloatArray
from serving_gym.envs.workload import flying
from serving_gym.envs.workload.registry import WorkloadSource
from serving_gym.envs.workload.seeding import stream
from serving_gym.runners.configuration.clusters import cluster_of
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.configuration.schema import EvaluateConfig
from serving_gym.runners.rollouts.rollout import Episode, run_episode

BoolArray = NDArray[np.bool_]


@lru_cache(maxsize=8)
def compose_setting(words: tuple[str, ...]) -> EvaluateConfig:
    """What `python -m runners.evaluate` would run with these words, its cluster typed."""
    setting = composed("evaluate", EvaluateConfig, words)
    return replace(setting, cluster=cluster_of(setting.cluster))


@dataclass(frozen=True, eq=False)
class Trials:
    """One policy on one workload, every seed.

    Attributes:
        setting: what was run.
        episodes: one a seed.
    """

    setting: EvaluateConfig
    episodes: tuple[Episode, ...]

    def pooled(self, name: str) -> NDArray[Any]:
        """A column of `RequestRecords` or one of its properties, over all requests of all seeds."""
        return np.concatenate([getattr(episode.records, name) for episode in self.episodes])

    @cached_property
    def ttft_s(self) -> FloatArray:
        """(requests,)."""
        return self.pooled("ttft_s")

    @cached_property
    def tpot_s(self) -> FloatArray:
        """(requests,); NaN for answers of one token."""
        return self.pooled("tpot_s")

    @cached_property
    def queue_s(self) -> FloatArray:
        """(requests,), arrival to first being scheduled."""
        return self.pooled("queue_s")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the request classes, in the order of `class_id`."""
        return WorkloadSource(self.setting.workload).classes

    @property
    def peak_tokens_per_s(self) -> float:
        """Most tokens that came out in a second, mean over episodes."""
        return float(np.mean([e.metrics["peak_throughput_tokens_per_s"] for e in self.episodes]))

    def edges_s(self, episode: Episode) -> FloatArray:
        """Where the phases of an episode of `flying_bursty` begin and end, low ones first."""
        spec = self.setting.workload
        traffic = flying.bursty(**spec.params)
        rng = stream(episode.seed, spec.name, self.setting.split)
        return traffic.phase_edges_s(spec.num_requests or traffic.num_requests, rng)


@lru_cache(maxsize=8)
def _policy(name: str) -> Policy:
    return load_policy(name)  # forgets an episode when it is reset


def run_trials(words: Sequence[str], policy: str, seeds: Sequence[int], tick: Any) -> Trials:
    """Runs a policy by name; calls `tick` after each episode."""
    setting = compose_setting(tuple(words))
    env, chosen = setting.environment.make(), _policy(policy)
    episodes = []
    for seed in seeds:
        episodes.append(run_episode(env, chosen, seed, policy))
        tick()
    return Trials(setting, tuple(episodes))


def phase_of(arrival_s: FloatArray, edges_s: FloatArray) -> NDArray[np.int64]:
    """(requests,), number of the phase each request arrives in; odd ones are bursts."""
    return np.asarray(np.searchsorted(edges_s, arrival_s, side="right") - 1, np.int64)


def in_burst(trials: Trials) -> BoolArray:
    """(requests,), whether each request arrives in a burst."""
    return np.concatenate(
        [phase_of(e.records.arrival_s, trials.edges_s(e)) % 2 == 1 for e in trials.episodes]
    )


def in_quiet(systems: Sequence[Trials]) -> BoolArray:
    """(requests,), whether each request arrives in a low phase when no system still has requests of a burst.

    Section 6.2 speaks of "flat periods"; a backlog that a burst has left behind is the burst's.
    """
    masks = []
    for episodes in zip(*(trials.episodes for trials in systems), strict=True):
        arrival_s = episodes[0].records.arrival_s
        phase = phase_of(arrival_s, systems[0].edges_s(episodes[0]))
        quiet = phase % 2 == 0
        for episode in episodes:
            left_s = np.where(phase % 2 == 1, np.nan_to_num(episode.records.finish_s, nan=np.inf), -np.inf)
            last = np.maximum.accumulate(left_s)
            quiet &= arrival_s >= last
        masks.append(quiet)
    return np.concatenate(masks)


def ordered_layout_share(trials: Trials, layout: tuple[int, ...], burst: bool) -> float:
    """Share of the time in bursts (or in low phases) during which a layout was the one last ordered."""
    with_it = whole = 0.0
    for episode in trials.episodes:
        edges_s = trials.edges_s(episode)
        present: tuple[int, ...] = ()
        starts_s = np.array([decision["now_s"] for decision in episode.decisions])
        phases = phase_of(starts_s, edges_s) % 2 == burst
        for decision, counts in zip(episode.decisions, phases, strict=True):
            present = ordered_layout(decision) or present
            if counts:
                whole += decision["dt_s"]
                with_it += decision["dt_s"] * (present == layout)
    return with_it / whole if whole else float("nan")


def ordered_layout(decision: dict[str, Any]) -> tuple[int, ...]:
    """The layout a decision asked for; () where it left all as it was."""
    action = decision["action"]
    return () if action is None else tuple(action["layout"])


def layout_shares(trials: Trials, most: int = 4) -> dict[str, float]:
    """Share of the time during which each layout was the one last ordered, the most frequent first."""
    time_s: dict[str, float] = {}
    for episode in trials.episodes:
        present: tuple[int, ...] = ()
        for decision in episode.decisions:
            present = ordered_layout(decision) or present
            time_s[format_layout(present)] = time_s.get(format_layout(present), 0.0) + decision["dt_s"]
    whole_s = sum(time_s.values())
    return {name: time_s[name] / whole_s for name in sorted(time_s, key=lambda name: -time_s[name])[:most]}


def switches(trials: Trials) -> float:
    """Layouts ordered after the first deployment, mean over episodes."""
    return float(np.mean([sum(bool(ordered_layout(d)) for d in e.decisions) - 1 for e in trials.episodes]))


def requests_in_system(trials: Trials, burst: bool) -> float:
    """Requests of bursts (or of low phases) in the system over those phases' time, mean (Little's law)."""
    spent_s = mean_s = 0.0
    for episode in trials.episodes:
        arrival_s, edges_s = episode.records.arrival_s, trials.edges_s(episode)
        chosen = (phase_of(arrival_s, edges_s) % 2 == 1) == burst
        spent_s += float(episode.records.e2e_s[chosen].sum())
        lasted_s = np.diff(np.minimum(edges_s, arrival_s[-1]))
        mean_s += float(lasted_s[int(burst) :: 2].sum())
    return spent_s / mean_s if mean_s else float("nan")


def order_delay_s(trials: Trials, layout: tuple[int, ...], burst: bool) -> float:
    """From the begin of a burst (or of a later low phase) until a layout is ordered, mean; NaN where it never is."""
    delays: list[float] = []
    for episode in trials.episodes:
        edges_s = trials.edges_s(episode)
        present: tuple[int, ...] = ()
        waiting_since_s, last_phase = float("nan"), 0
        for decision in episode.decisions:
            present = ordered_layout(decision) or present
            phase = int(phase_of(np.array([decision["now_s"]]), edges_s)[0])
            if phase != last_phase:
                last_phase = phase
                waiting_since_s = float(edges_s[phase]) if (phase % 2 == 1) == burst else float("nan")
            if present == layout and not np.isnan(waiting_since_s):
                delays.append(max(0.0, decision["now_s"] - waiting_since_s))
                waiting_since_s = float("nan")
    return float(np.mean(delays)) if delays else float("nan")
