"""`policy=online`: a router that learns while it serves, alone or in front of a network or a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.agents.environments.routing.guard import GuardConfig, guarded
from serving_gym.agents.environments.routing.online.costs import (
    Asked,
    Engines,
    Weights,
    costs,
    expected_ttft_s,
    show_speeds,
)
from serving_gym.agents.environments.routing.online.ledger import Ledger
from serving_gym.agents.environments.routing.online.speeds import EngineSpeeds
from serving_gym.baselines.common.router import Router, lowest
from serving_gym.baselines.common.routers.jsq import remaining_tokens
from serving_gym.baselines.policy import Action, Configured, Constants, Policy, PolicySpec, tunable
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

Observation = Mapping[str, NDArray[np.float32]]

PRIORS = NOTHING, PROFILE = ("nothing", "profile")
ZOO = "zoo/"
_SPREAD_TPOT = 0.15  # standard deviation of TPOT around what is expected, relative
_RATE_S = 10.0  # time constant of the prompts that an engine is sent, seconds


@dataclass(frozen=True)
class OnlineConfig(Constants):
    """Constants of `OnlinePolicy`; source: ours, chosen on validation episodes (docs/online.md).

    Attributes:
        start: Policy that chooses, by the observation as the learned speeds make it: a checkpoint (`zoo/routing` or its
            folder) or a baseline (`linear_score`, with its defaults). Empty: the least expected cost.
        prior: What is believed of the engines' speed beforehand: nothing, or profile, the spec's nominal one.
        keep: Whether what was learned outlives `reset`, if the places are the same.
        memory_s: Time constant of forgetting, seconds.
        window_s: Time over which tokens are counted for one observation of each engine, seconds.
        drift: Mean relative error of an engine's last windows above which most of what was learned of it is forgotten.
        min_windows: Windows of engines, in all, until which `jsq` decides; of prior=nothing.
        explore_probability: Of sending a request to the engine of least evidence among those that pass the guard.
        missed: Weight of the probability of a missed SLO; the objective's, where 1 is the default.
        others: Weight of what a request costs the others at its engine.
        times_least: Guard: see `GuardConfig`.
        times_usual: Guard: ditto.
        soon_s: Guard: ditto, seconds.
    """

    start: str = ""
    prior: str = NOTHING
    keep: bool = False
    memory_s: float = tunable(60.0, 5.0, 600.0, log=True)
    window_s: float = 0.5
    drift: float = tunable(0.25, 0.05, 1.0, log=True)
    min_windows: int = 12
    explore_probability: float = tunable(0.002, 0.0, 0.1)
    missed: float = tunable(1.0, 0.0, 10.0)
    others: float = tunable(2.5, 0.0, 8.0)
    times_least: float = tunable(1.5, 1.0, 5.0)
    times_usual: float = tunable(6.5, 0.0, 30.0)
    soon_s: float = tunable(0.3, 0.0, 1.0)

    def __post_init__(self) -> None:
        check_choice("prior", self.prior, PRIORS)
        check_positive(self, "memory_s", "window_s", "drift", finite=True)
        check_at_least(self, 1, "min_windows", "times_least", finite=True)
        check_not_negative(self, "missed", "others", "times_usual", "soon_s", finite=True)
        check_within(self, "[0, 1]", "explore_probability")


class OnlinePolicy(Router, Configured[OnlineConfig]):
    """The least expected cost by speeds of engines that are learned while it serves, behind a guard.

    It learns from the router's own record alone (`RoutingState.in_flight`): how many tokens came in a window (`Ledger`)
    and how long first tokens took, each known when it has happened. From these come the speed of each engine
    (`EngineSpeeds`), the expected first token, and the cost of sending the request to each (`costs`). No true output
    length is looked at, and without prior=profile no profile, only limits (`max_num_seqs`, token budget, KV pool).

    With `start`, another policy chooses in its place: it sees the observation with the columns that depend on speed as
    the learned speeds make them, so what it was trained or tuned for holds for engines that are not as their profile.

    Either chooses among the places that pass the guard of `GuardConfig`, by the learned speeds. Until enough windows
    have closed, `jsq` does. Now and then the engine of which least is known is sent a request, if it passes the
    guard. What is not observed any more is forgotten, so an engine that was avoided is tried again.

    `reset` forgets everything unless `keep`: episodes of a comparison begin from nothing and do not depend on their
    order. Served or live a policy is reset once.
    """

    name = "online"

    def __init__(self, config: OnlineConfig | None = None) -> None:
        super().__init__(config)
        self._start = made_from(self.config.start)
        guard = GuardConfig(self.config.times_least, self.config.times_usual, self.config.soon_s)
        self._guard = guard.numbers()
        self._places: tuple[Any, ...] = ()

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Prepares for an episode; forgets what was learned unless `keep`.

        Raises:
            ValueError: the cluster is a node, or `start` does not fit the setting.
        """
        super().reset(spec, seed)
        if self._start is not None:
            self._start.reset(spec, seed)

    def begin(self) -> None:
        """Nothing has been sent anywhere."""
        config, engines = self.config, self.engines
        places = (engines.models, engines.gpus, tuple(engines.num_gpus.tolist()))
        if not (config.keep and places == self._places):
            self.speeds = EngineSpeeds(engines, config.prior == PROFILE, config.memory_s, config.drift)
        self._places = places
        self._ledger = Ledger(len(engines), np.array([slo.tpot_s for slo in self.spec.slos]))
        self._prompt_rate = np.zeros(len(engines))
        self._seqs, self._budget = np.maximum(engines.max_num_seqs, 1), engines.max_num_batched_tokens

    def act(self, observation: Observation, state: RoutingState) -> Action:
        """Learns, then decides: a place, or None where none can take the request."""
        request = state.request
        if request is None or not state.can_take.any():
            return None
        output_tokens = float(max(request.predicted_tokens, 1))
        self._learn(state, output_tokens)
        asked = self._asked(state, request, output_tokens)
        own_tokens = np.maximum(request.input_tokens - request.cached_tokens, 1).astype(np.float64)
        engines = self._engines(state)
        expected_s = expected_ttft_s(engines, self._ledger.loads, own_tokens, asked)
        expected_s += np.where(np.isfinite(request.network_s), request.network_s, 0.0)
        place = self._choose(observation, state, engines, own_tokens, expected_s, asked)
        if place is not None:
            self._ledger.sent(request.index, place, own_tokens[place], state.now_s, expected_s[place])
        return place

    def _choose(
        self,
        observation: Observation,
        state: RoutingState,
        engines: Engines,
        own_tokens: NDArray[np.float64],
        expected_s: NDArray[np.float64],
        asked: Asked,
    ) -> int | None:
        config, loads = self.config, self._ledger.loads
        if config.prior == NOTHING and self.speeds.closed < config.min_windows:
            return lowest(remaining_tokens(state), state.can_take)
        shown = dict(observation)
        shown["places"] = shown["places"].copy()
        show_speeds(engines, loads, own_tokens, asked, shown["places"])
        able = self._passing(shown, state.can_take)
        if config.explore_probability and self.rng.random() < config.explore_probability:
            return lowest(self.speeds.evidence, able)
        if self._start is not None:
            place: Any = self._start.act(shown, replace(state, can_take=able))
            return None if place is None or place >= len(able) else int(place)
        weights = Weights(config.missed, config.others, self.speeds.spread, _SPREAD_TPOT)
        ttft_s = self.speeds.first_token_s(expected_s)
        return lowest(costs(engines, loads, own_tokens, ttft_s, asked, weights), able)

    def _passing(self, shown: Observation, can_take: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(P,) places that can take the request and pass the guard."""
        one = {name: shown[name][None] for name in ("places", "request", "cluster")}
        one["places"] = one["places"][:, : len(can_take)]
        return guarded(self._guard, one, can_take[None])[0]

    def _learn(self, state: RoutingState, output_tokens: float) -> None:
        """Takes in what has come back since the last decision."""
        self.speeds.learn_first(self._ledger.read(state, output_tokens))
        windows = self._ledger.window(state, self.config.window_s)
        if windows is None:
            return
        self.speeds.learn(windows)
        old = np.exp(-windows.elapsed_s / _RATE_S)
        self._prompt_rate = old * self._prompt_rate + (1.0 - old) * windows.prefilled / windows.elapsed_s

    def _asked(self, state: RoutingState, request: RoutedRequest, output_tokens: float) -> Asked:
        left_s = request.deadline_s - state.now_s
        ttft_slo_s = max(request.deadline_s - request.arrival_s, 1e-3)
        tpot_slo_s = self.spec.slos[request.class_id].tpot_s
        return Asked(float(request.input_tokens), output_tokens, ttft_slo_s, left_s, tpot_slo_s)

    def _engines(self, state: RoutingState) -> Engines:
        speeds = self.speeds
        capacity = np.maximum(state.engines["kv_capacity_tokens"], 1).astype(np.float64)
        return Engines(
            speeds.decode_s,
            speeds.kv_s_per_token,
            speeds.prefill_s_per_token,
            self._prompt_rate,
            capacity,
            self._seqs,
            self._budget,
        )


def made_from(start: str) -> Policy | None:
    """The policy that `OnlineConfig.start` names; None: none.

    Raises:
        ValueError: there is no such policy, or it decides by more than the observation.
    """
    if not start:
        return None
    if "/" in start or start.endswith(".zip"):
        from serving_gym.agents.checkpoint import load_policy, trained_in  # imports torch

        env = trained_in(start)
        if env not in (None, "routing"):
            raise ValueError(
                f"start must be an agent of env=routing, got {start!r}, which was trained in env={env}"
            )
        return load_policy(start)
    from serving_gym.baselines.common.routers.linear_score import LinearScorePolicy

    if start != LinearScorePolicy.name:
        raise ValueError(
            f"start must be a checkpoint (zoo/routing) or {LinearScorePolicy.name!r}, which decide by the observation, "
            f"or empty, got {start!r}"
        )
    return LinearScorePolicy()
