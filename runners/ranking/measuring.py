"""Episodes of an entry, and the figures that come from them."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from serving_gym.agents.checkpoint import versions
from serving_gym.baselines.policy import Policy, period_of
from serving_gym.envs.registration import env_id
from serving_gym.runners.comparison.aggregate import column
from serving_gym.runners.comparison.statistics import bootstrap_interval, interquartile_mean, mean
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.policies import check_spaces
from serving_gym.runners.configuration.schema import CompareConfig
from serving_gym.runners.ranking.entry import PROGRAM, Figures
from serving_gym.runners.ranking.identity import FIRST_LONGEST_S, LONGEST_S, Subject
from serving_gym.runners.ranking.season import Board, Season
from serving_gym.runners.rollouts.rollout import Episode, run_episode
from serving_gym.runners.scoring.program import DecisionTimeout, limited

DIGITS = 9  # of returns and figures in files
_MS_PER_S = 1e3
_P99 = 99


@dataclass(frozen=True, eq=False)
class World:
    """The environment of a board.

    Attributes:
        name: As in `env=NAME`.
        id: Gymnasium id with its version.
        env: The environment.
    """

    name: str
    id: str
    env: Any


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        returns: Return of each episode.
        figures: See `Figures`.
    """

    returns: tuple[float, ...]
    figures: Figures


def world_of(season: Season, board: Board) -> World:
    """The environment of a board.

    Raises:
        ValueError: Its words are not allowed.
    """
    config = _config_of(board.words, season.split)
    name = str(config.env["name"])
    return World(name, env_id(name), config.environment.make())


def environment_of(season: Season, board: Board) -> str:
    """Name of the environment of a board.

    Raises:
        ValueError: Its words are not allowed.
    """
    return str(_config_of(board.words, season.split).env["name"])


@lru_cache
def _config_of(words: tuple[str, ...], split: str) -> CompareConfig:
    return composed("compare", CompareConfig, [*words, f"split={split}"])


def measure(
    world: World,
    subject: Subject,
    seeds: Sequence[int],
    on_episode: Callable[[float], object] = lambda value: None,
) -> Measured:
    """Runs a policy on seeds.

    Args:
        world: The environment.
        subject: The policy.
        seeds: Seeds of the episodes.
        on_episode: Called with the return of each finished episode.

    Raises:
        ValueError: The policy failed, or a decision took too long.
    """
    policy = subject.policy
    check_spaces(policy, world.env)
    timed = _Timed(policy)
    episodes: list[Episode] = []
    for seed in seeds:
        try:
            episodes.append(run_episode(world.env, timed, seed, policy.name))
        except DecisionTimeout:
            raise ValueError(
                f"a decision of policy {policy.name!r} took longer than {timed.limit_s:g} s (seed {seed})"
            ) from None
        except Exception as error:
            if subject.statement.kind != PROGRAM:
                raise
            raise ValueError(f"program {policy.name!r} failed: {type(error).__name__}: {error}") from error
        on_episode(episodes[-1].metrics["return"])
    return Measured(tuple(map(rounded, column(episodes, "return").tolist())), _figures(episodes, timed))


def of_returns(returns: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Mean of returns and its 95 % interval."""
    low, high = bootstrap_interval([returns], mean)
    return rounded(float(np.mean(returns))), (rounded(low), rounded(high))


def rounded(value: float) -> float:
    """A figure as files have it."""
    return float(f"{value:.{DIGITS}g}")


def present_versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version(), **versions()}


def machine() -> str:
    """The machine, in words."""
    return f"{platform.system()} {platform.machine()}"


def _figures(episodes: Sequence[Episode], timed: _Timed) -> Figures:
    value, interval = of_returns([rounded(each) for each in column(episodes, "return").tolist()])
    return Figures(
        mean_return=value,
        ci95=interval,
        slo_attainment=rounded(float(column(episodes, "slo_attainment").mean())),
        ttft_p99_s=rounded(float(interquartile_mean(column(episodes, "ttft_p99_s")))),
        decision_ms_median=timed.median_ms(),
        decision_ms_p99=timed.p99_ms(),
    )


class _Timed:
    """A policy whose decisions are timed, and end after `LONGEST_S`, the first of an episode after `FIRST_LONGEST_S`.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name, self.clairvoyant, self.period_s = policy.name, policy.clairvoyant, period_of(policy)
        self._episodes: list[list[float]] = []  # decision times of each, seconds

    def reset(self, spec: Any, seed: int) -> None:
        self._episodes.append([])
        with limited(FIRST_LONGEST_S):
            self._policy.reset(spec, seed)

    def act(self, observation: Any, state: Any) -> Any:
        with limited(self.limit_s):
            begun = time.process_time()
            action = self._policy.act(observation, state)
            self._episodes[-1].append(time.process_time() - begun)
        return action

    @property
    def limit_s(self) -> float:
        """What the next decision may take."""
        return LONGEST_S if self._episodes[-1] else FIRST_LONGEST_S

    def median_ms(self) -> float:
        return rounded(_MS_PER_S * float(np.median(np.concatenate(self._counted()))))

    def p99_ms(self) -> float:
        each = [np.percentile(times, _P99) for times in self._counted()]
        return rounded(_MS_PER_S * float(np.median(each)))

    def _counted(self) -> list[list[float]]:
        """Without the first decision of each episode, which may include compilation."""
        return [times[1:] or times for times in self._episodes]
