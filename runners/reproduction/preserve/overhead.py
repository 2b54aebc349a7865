"""Section 5.5, figure 11: what a decision costs, by the number of engines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from serving_gym.baselines.policy import Policy
from serving_gym.baselines.preserve.router import PreServePolicy
from serving_gym.envs.routing.state import RoutingState
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.reproduction.claims import Claim, at_most, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.preserve.study import (
    COMPARED,
    PRACTICE,
    PREDICTION_S,
    PRESERVE,
    ROUTING_S,
    Study,
    make_claim,
)
from serving_gym.runners.reproduction.trials import compose_setting

SECTION = "5.5"
ENGINES = (4, 64, 1024)
QUICK_ENGINES = (4, 64)
DECISIONS = 32  # timed, each after the next arrival
_WARM_UP_S = 8.0  # of traffic before, in which most of the requests come that are in flight in the long run
_LOAD = 0.97  # of the rate where light load ends; source: ours ("non-overloaded benchmark conditions")


@dataclass(frozen=True)
class Overhead:
    """What was measured on a fleet of one size.

    Attributes:
        in_flight: requests that the router has in flight, mean over the decisions.
        decision_s: seconds of a decision by policy, median over the decisions.
        anticipator_s: seconds of PreServe's load anticipators, which its decision contains.
    """

    in_flight: float
    decision_s: dict[str, float]
    anticipator_s: float


def engines_of(config: ReproduceConfig) -> tuple[int, ...]:
    """Sizes of fleet."""
    return QUICK_ENGINES if config.quick else ENGINES


def num_fleets(config: ReproduceConfig) -> int:
    """Steps of the progress bar."""
    return len(engines_of(config))


def claims(study: Study) -> list[Claim]:
    """Time of a decision against the paper's."""
    found = []
    for engines in engines_of(study.config):
        study.bar.set_postfix_str(f"overhead of {engines} engines", refresh=False)
        overhead = measure(study, engines, _LOAD * study.light_rps / min(ENGINES))
        study.bar.update(1)
        found += _claims(engines, overhead)
    return found


def measure(study: Study, engines: int, rate_rps: float) -> Overhead:
    """Times every router on the same states of a fleet that serves.

    Args:
        study: with the setting.
        engines: size of the fleet.
        rate_rps: arrivals at each engine.
    """
    seed = study.config.first_seed
    warm_up = round(engines * rate_rps * _WARM_UP_S)
    words = [
        *study.setting,
        f"cluster.groups.0.count={engines}",
        f"workload.num_requests={warm_up + DECISIONS + 1}",
        f"workload.rate_rps={engines * rate_rps!r}",
        "split=validation",
    ]
    env: Any = compose_setting(tuple(words)).environment.make().unwrapped
    observation, _ = env.reset(seed=seed)
    policies = {name: load_policy(name) for name in (*COMPARED, *PRACTICE)}
    for policy in policies.values():
        policy.reset(env.policy_spec, seed)
    for arrival in range(warm_up):
        observation, *_ = env.step(arrival % engines)
    _compile(policies, observation, env.state)
    preserve = policies[PRESERVE]
    assert isinstance(preserve, PreServePolicy)
    took: dict[str, list[float]] = {name: [] for name in policies}
    anticipator, in_flight = [], []
    for arrival in range(DECISIONS):
        state: RoutingState = env.state
        assert state.request is not None  # one arrives after the last that is timed
        for name, policy in policies.items():
            took[name].append(_timed(partial(policy.act, observation, state)))
        anticipator.append(_timed(partial(preserve.anticipated, state, state.request)))
        in_flight.append(len(state.in_flight))
        observation, *_ = env.step(arrival % engines)
    medians = {name: float(np.median(seconds)) for name, seconds in took.items()}
    return Overhead(float(np.mean(in_flight)), medians, float(np.median(anticipator)))


def _compile(policies: dict[str, Policy], observation: Any, state: RoutingState) -> None:
    """Decides once, untimed."""
    for policy in policies.values():
        policy.act(observation, state)


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _claims(engines: int, overhead: Overhead) -> list[Claim]:
    others = ", ".join(
        f"{name} {1e6 * seconds:.0f}" for name, seconds in overhead.decision_s.items() if name != PRESERVE
    )
    load = (
        f"{overhead.in_flight:.0f} requests in flight, median of {DECISIONS} decisions on this machine's processor, "
        "compiled; the observation of the engines is not counted."
    )
    published = ROUTING_S * 1e6
    found = [
        make_claim(
            SECTION, f"{engines} engines: a decision of PreServe", published, 1e6 * overhead.decision_s[PRESERVE],
            "us", at_most(published, 0.0, least=0.0),
            note=f"The paper's is on four engines. {load} Others, us: {others}.",
        ),
        make_claim(
            SECTION, f"{engines} engines: of which the load anticipators", None, 1e6 * overhead.anticipator_s, "us",
            shown("the paper has them together with the rest"),
        ),
    ]  # fmt: skip
    if engines == min(ENGINES):
        found.append(
            make_claim(
                SECTION, "prediction of a response's length", PREDICTION_S * 1e6, float("nan"), "us",
                shown("predictions are drawn from the published errors, no model is run"), kind="input",
            )
        )  # fmt: skip
    return found
