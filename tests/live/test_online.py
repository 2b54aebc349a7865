"""The router that learns while it serves, on servers and behind `runners.serve`."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.metrics import FINISHED
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.envs.routing.live.env import LiveRoutingEnv
from serving_gym.envs.workload.formats import write_trace
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.rollouts.rollout import run_episode
from serving_gym.runners.serving.host import PolicyHost
from serving_gym.runners.serving.served import served_environment
from tests.defaults import make_env
from tests.live.conftest import MakeServer, stream_of

TWO = FleetConfig(groups=(GroupSpec(ReplicaSpec("llama-3.1-8b", "H100"), 2),))


def test_it_finds_the_slower_of_two_servers_of_one_profile(make_server: MakeServer, stack, tmp_path):
    servers = make_server(token_s=0.02), make_server(token_s=0.3, first_token_s=0.3)
    path = write_trace(stream_of(120, gap_s=0.05, output=24), tmp_path / "trace.parquet")
    live = LiveSettings(
        tuple(server.url for server in servers), scrape_interval_s=0.05, silence_s=5.0, decide_within_s=None
    )
    workload = WorkloadSpec(name="file", path=str(path), split="all")
    env = LiveRoutingEnv(live, workload=workload, cluster=TWO, split="all")
    stack.callback(env.close)
    policy = load_policy(
        {"name": "online", "params": {"window_s": 0.2, "min_windows": 4, "explore_probability": 0.0}}
    )
    episode = run_episode(env, policy, 0)
    records = episode.records
    assert (records.outcome == FINISHED).all()
    assert policy.speeds.closed > policy.config.min_windows
    assert policy.speeds.decode_s[1, 1] > 1.5 * policy.speeds.decode_s[0, 1]
    engine = records.engine
    assert (engine[60:] == 0).mean() > 0.6


def test_it_learns_from_the_states_of_a_served_router():
    workload = WorkloadSpec(name="azure_conv_fitted", num_requests=300, rate_rps=20.0)
    env = make_env("routing", cluster=TWO, workload=workload)
    policy = load_policy("online")
    host = PolicyHost(policy, served_environment("routing", env))
    policy.reset(env.policy_spec, 0)
    alone = load_policy("online")
    own = np.array([decision["action"] for decision in run_episode(env, alone, 0).decisions])
    env.reset(seed=0)
    answers, done = [], False
    while not done:
        answer = host.ask(env.state)
        assert answer.applies
        assert not answer.error
        answers.append(answer.place)
        _, _, terminated, truncated, _ = env.step(answer.place)
        done = terminated or truncated
    np.testing.assert_array_equal(answers, own)
    np.testing.assert_array_equal(policy.speeds.decode_s, alone.speeds.decode_s)
