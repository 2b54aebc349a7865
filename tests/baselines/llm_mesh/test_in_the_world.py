import numpy as np
import pytest

from serving_gym.baselines.llm_mesh.config import LLMMeshConfig
from serving_gym.baselines.llm_mesh.policy import LLMMeshPolicy
from serving_gym.envs.interface.sharing import Reschedule, ResizeKV, Unload
from serving_gym.envs.machines.shared_nodes import NodeSpec, SharingSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.configuration.policies import load_policy
from serving_gym.runners.rollouts.rollout import run_episode
from tests.defaults import make_env

NODES = (NodeSpec("cpu", "Xeon-32c-AMX", 1, memory_gb=60.0), NodeSpec("gpu", "A100-80GB", 1))
ABLATIONS = (
    "no_sharing", "no_cpu", "no_defragmentation", "no_preemption", "spread", "no_shadow_validation", "no_watermark",
    "no_compromise", "round_robin", "fcfs",
)  # fmt: skip


@pytest.fixture(scope="module")
def env():
    """Two small nodes with more to do than they can, so that every mechanism is at work."""
    params = {"num_models": 32, "sizes": ("llama-2-7b",), "minutes": 2}
    workload = WorkloadSpec(name="functions_fitted", params=params)
    return make_env("sharing", workload=workload, cluster=SharingSpec(nodes=NODES), split="train")


def watched(env, policy, seed):
    """Runs an episode; the commands, and whether the policy ever thought less held than the world."""
    observation, _ = env.reset(seed=seed)
    core, done, said, refused = env.unwrapped, False, [], 0
    policy.reset(core.policy_spec, seed)
    while not done:
        state = core.state
        share = policy.act(observation, state)
        tracked = np.array([memory.tracked for memory in policy.memory])
        budget = np.array([memory.budget_used for memory in policy.memory])
        assert (tracked <= state.nodes["memory_bytes"]).all()
        assert (budget <= state.nodes["memory_bytes"]).all()
        said += share.commands
        observation, _, terminated, truncated, info = env.step(share)
        refused += bool(info["refused"])
        assert (core.state.nodes["held_bytes"] <= tracked + 1).all()
        done = terminated or truncated
    return said, refused


def test_what_it_tracks_is_never_less_than_what_is_held(env):
    policy = LLMMeshPolicy(LLMMeshConfig(min_total_tokens=1024, watermark=0.05))
    said, refused = watched(env, policy, seed=1)
    assert refused == 0
    assert env.unwrapped.state.num_ooms == 0
    kinds = {type(command) for command in said}
    assert {ResizeKV, Reschedule, Unload} <= kinds


def test_an_episode_repeats_itself(env):
    policy = load_policy("llm_mesh")
    first, second = (run_episode(env, policy, 3) for _ in range(2))
    np.testing.assert_array_equal(first.records.finish_s, second.records.finish_s)
    assert first.metrics == second.metrics


@pytest.mark.parametrize("name", ABLATIONS)
def test_no_ablation_runs_out_of_memory_or_is_refused(env, name):
    episode = run_episode(env, load_policy(f"llm_mesh_{name}"), 2)
    assert episode.metrics["commands_refused"] == 0
    assert env.unwrapped.state.num_ooms == 0


def test_more_requests_keep_their_promises_than_on_exclusive_nodes(env):
    attained = {
        name: np.mean(
            [run_episode(env, load_policy(name), seed).metrics["slo_attainment"] for seed in (1, 2, 3)]
        )
        for name in ("llm_mesh", "sllm_cpu", "sllm")
    }
    assert attained["llm_mesh"] > attained["sllm_cpu"] > attained["sllm"]


def test_equation_1_asked_at_every_iteration_is_the_built_in_scheduler():
    params = {"num_models": 16, "sizes": ("llama-2-7b",), "minutes": 2}
    workload = WorkloadSpec(name="functions_fitted", params=params, num_requests=60)
    env = make_env("sharing", workload=workload, split="train")
    records = []
    for scheduler in ("shortest_headroom", "policy"):
        policy = LLMMeshPolicy(LLMMeshConfig(token_scheduler=scheduler))
        episode = run_episode(env, policy, 0)
        records.append((len(episode.decisions), episode.records.finish_s))
    assert records[1][0] > records[0][0]  # it was asked
    np.testing.assert_array_equal(records[0][1], records[1][1])


def test_a_shared_cluster_that_keeps_instances_warm_is_served():
    """Where weights take seconds to load, the literal reading serves hardly anybody."""
    node = NodeSpec("gpu", "A100-80GB", 1)
    cluster = SharingSpec(nodes=(node,), load_bytes_per_s=3.31e9, keep_alive_s=7200.0)
    params = {"num_models": 8, "sizes": ("llama-2-7b",), "minutes": 2}
    workload = WorkloadSpec(name="functions_fitted", params=params)
    env = make_env("sharing", workload=workload, cluster=cluster, split="train")
    done = {
        name: np.isfinite(run_episode(env, load_policy(name), 1).records.finish_s).mean()
        for name in ("llm_mesh", "llm_mesh_literal")
    }
    assert done["llm_mesh"] > 0.95
    assert done["llm_mesh_literal"] < 0.6
