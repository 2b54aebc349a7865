"""Logs of the routing environment, replayed: against true gains of single decisions, by forks of the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from serving_gym.runners import evaluate, replay
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.replaying.log import Coder, Log, read_log
from serving_gym.runners.replaying.outcomes import costs_of, recorded_outcomes, seen_outcomes
from serving_gym.runners.replaying.recording import Exploring
from serving_gym.runners.replaying.setting import run_of
from serving_gym.runners.serving.served import served_environment

MOST = 20.0
WORDS = [
    "env=routing",
    "policy=jsq",
    "cluster=fleet_h100_x4",
    "workload.num_requests=300",
    "workload.rate_scale=6",
    "seeds=1",
    "log_states=true",
    "explore=0.5",
]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its log."""
    out = tmp_path_factory.mktemp("logged")
    assert evaluate.main([*WORDS, f"out={out}"]) == 0
    return out


def read(folder: Path) -> tuple[Log, Any]:
    environment = run_of(folder / "states.jsonl").environment
    assert environment is not None
    env: Any = environment.make().unwrapped
    return read_log(folder / "states.jsonl", Coder(served_environment("routing", env)), 10_000), env


def test_costs_seen_in_the_states_are_close_to_the_recorded_ones(logged: Path) -> None:
    log, env = read(logged)
    slos = env.policy_spec.slos
    recorded = recorded_outcomes(log, pd.read_parquet(logged / "requests.parquet"), slos, MOST)
    seen = seen_outcomes(log, slos, MOST)
    assert not np.isnan(recorded.cost).any()
    known = ~np.isnan(seen.cost)
    assert known.mean() > 0.7
    error = seen.cost[known] - recorded.cost[known]
    assert abs(np.median(error)) < 0.03 * recorded.cost.mean()
    assert np.corrcoef(seen.cost[known], recorded.cost[known])[0, 1] > 0.7


def true_gain(env: Any, name: str, log: Log, every: int) -> tuple[float, float]:
    """Mean gain of a policy's choices over the log's in some logged states, and its standard error.

    Each choice is carried out in a fork of the simulator, where the log's policy goes on until the request is done.
    """
    target = load_policy(name, "routing")
    behaviour = Exploring(load_policy("jsq", "routing"), 0.5, env.config.num_rows)
    spec = env.policy_spec
    observation, _ = env.reset(seed=int(log.seed[0]))
    target.reset(spec, int(log.seed[0]))
    behaviour.reset(spec, 1)
    costs = []
    for row in range(len(log)):
        state = env.state
        chosen = target.act(observation, state)
        if row % every == 0:
            pair = (chosen, behaviour.act(observation, state))
            costs.append(
                [cost_in(env.fork(), each, behaviour, state.request.index, spec.slos) for each in pair]
            )
        observation, *_ = env.step(int(log.taken[row]))
    cost, logged = np.array(costs).T
    mean = float(logged.mean())
    return float((logged - cost).mean()) / mean, float((logged - cost).std()) / len(cost) ** 0.5 / mean


def cost_in(fork: Any, action: Any, policy: Exploring, index: int, slos: Any) -> float:
    """Cost of a request in a fork, after an action."""
    observation, _, terminated, truncated, _ = fork.step(action)
    while not (terminated or truncated) and (
        index in fork.state.in_flight["index"] or fork.state.request.index == index
    ):
        observation, _, terminated, truncated, _ = fork.step(policy.act(observation, fork.state))
    records = fork.records()
    one = records.rows(records.index == index)
    return float(costs_of(one.ttft_s, one.tpot_s, one.class_id.astype(np.int64), slos, MOST)[0])


@pytest.mark.full
def test_the_estimate_covers_the_true_gain_and_is_narrower_than_weights_alone(
    logged: Path, tmp_path: Path
) -> None:
    words = ["policies=[jsq,round_robin]", "twin=false", f"out={tmp_path}"]
    assert replay.main([str(logged), *words]) == 0
    found = json.loads((tmp_path / "replay.json").read_text())
    assert (
        found["random_decisions"] == found["decisions"]
    )  # each is one of several that could have been taken
    log, env = read(logged)
    for name, entry in found["policies"].items():
        truth, error = true_gain(env, name, log, every=4)
        low, high = entry["gain"]["doubly_robust"]["ci95"]
        weighted = entry["gain"]["ips"]["ci95"]
        assert low - 2 * error <= truth <= high + 2 * error
        assert high - low < weighted[1] - weighted[0]
    assert found["policies"]["jsq"]["agreement"] > 0.5
