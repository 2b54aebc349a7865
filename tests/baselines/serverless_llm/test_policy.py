from dataclasses import replace

import numpy as np
import pytest

from serving_gym.baselines.registry import make_policy
from serving_gym.baselines.serverless_llm.policy import ServerlessLLMConfig, ServerlessLLMPolicy
from serving_gym.envs.interface.sharing import (
    Configure,
    Event,
    InstanceStatus,
    NewInstance,
    Retry,
    TokenScheduler,
)
from serving_gym.envs.machines.shared_nodes import NodeSpec, SharingSpec
from serving_gym.envs.workload.registry import WorkloadSpec
from serving_gym.runners.rollouts.rollout import run_episode
from tests.baselines.llm_mesh.states import TOKEN, instance, setting, spec, state
from tests.defaults import make_env


def place(told, shared, **params):
    policy = make_policy("sllm", **params)
    policy.reset(spec(shared), seed=0)
    share = policy.act(None, told)
    assert share.commands == (Configure(TokenScheduler.EXCLUSIVE, True, 1.0),)
    return share.place


def test_a_new_instance_has_a_whole_node():
    shared = setting(("cpu", "gpu"))
    told = state(shared, offered=(0, 100))
    assert place(told, shared) == NewInstance(1, 9000 * TOKEN)
    assert place(told, shared, use_cpu=True) == NewInstance(0, 9000 * TOKEN)


def test_an_instance_starts_only_where_its_longest_sequence_fits():
    shared = setting(("gpu", "gpu"))
    tokens = shared.models[0].max_tokens
    blocks = -(-tokens // shared.block_tokens)
    longest = shared.models[0].weights_bytes + blocks * shared.block_tokens * TOKEN
    shared = replace(shared, memory_bytes=np.array([longest - 1, longest]))
    assert place(state(shared, offered=(0, 100)), shared) == NewInstance(
        1, blocks * shared.block_tokens * TOKEN
    )


def test_an_instance_takes_requests_up_to_its_concurrency():
    shared = setting(("cpu", "gpu", "gpu"))
    for requests, expected in ((31, 4), (32, NewInstance(2, 9000 * TOKEN))):
        told = state(shared, [instance(4, 0, requests, 5000)], offered=(0, 100))
        assert place(told, shared) == expected
    for requests, expected in ((14, 0), (15, NewInstance(1, 9000 * TOKEN))):
        told = state(shared, [instance(0, 0, requests, 5000)], offered=(0, 100))
        assert place(told, shared, use_cpu=True) == expected
    told = state(shared, [instance(4, 0, 2, 5000)], offered=(0, 100))
    assert place(told, shared, concurrency_gpu={}) == NewInstance(2, 9000 * TOKEN)


def test_requests_are_spread_and_cpu_instances_come_first():
    shared = setting(("cpu", "gpu", "gpu"))
    busy = [instance(4, 0, 9, 5000), instance(8, 0, 3, 5000)]
    assert place(state(shared, busy, offered=(0, 100)), shared) == 8
    busy.append(instance(0, 0, 10, 5000, InstanceStatus.LOADING))
    assert place(state(shared, busy, offered=(0, 100)), shared, use_cpu=True) == 0


def test_nothing_is_shared_so_requests_wait():
    shared = setting(("cpu", "gpu"))
    assert place(state(shared, [instance(4, 1, 1)], offered=(0, 100)), shared) is None
    going = [instance(4, 0, 0, 5000, InstanceStatus.UNLOADING)]
    assert place(state(shared, going, offered=(0, 100)), shared) is None


class AlwaysAsked(ServerlessLLMPolicy):
    """Hears of every request that waits at each of its turns."""

    def act(self, observation, told):
        return replace(super().act(observation, told), retry=Retry.ALWAYS)


def test_it_need_not_be_asked_while_nothing_has_come_free():
    nodes = (NodeSpec("cpu", "Xeon-32c-AMX", 1), NodeSpec("gpu", "A100-80GB", 1))
    workload = WorkloadSpec("functions_fitted", params={"num_models": 24, "minutes": 2}, rate_scale=4.0)
    env = make_env("sharing", workload=workload, cluster=SharingSpec(nodes=nodes))
    config = ServerlessLLMConfig(use_cpu=True)
    episodes = [run_episode(env, made(config), 0) for made in (ServerlessLLMPolicy, AlwaysAsked)]
    for name in ("first_token_s", "finish_s", "engine", "outcome"):
        np.testing.assert_array_equal(*(getattr(episode.records, name) for episode in episodes))
    few, many = (len(episode.decisions) for episode in episodes)
    assert 2 * few < many


def test_the_factor_scales_all_concurrencies():
    shared = setting(("cpu", "gpu", "gpu"))
    for requests, expected in ((15, 4), (16, NewInstance(2, 9000 * TOKEN))):
        told = state(shared, [instance(4, 0, requests, 5000)], offered=(0, 100))
        assert place(told, shared, concurrency_factor=0.5) == expected


def test_memory_is_left_as_it_is():
    shared = setting(("gpu",))
    told = state(shared, [instance(0, 0, 1, 5000)], event=Event.FINISHED, at=0, finished=[(0, 0, 100)])
    assert place(told, shared) is None


@pytest.mark.parametrize(
    "params",
    [
        {"default_concurrency": 0},
        {"concurrency_cpu": {"llama-2-7b": 0}},
        {"keep_alive_s": -1.0},
        {"concurrency_factor": 0.0},
    ],
)
def test_bad_constants(params):
    with pytest.raises(ValueError, match=next(iter(params))):
        ServerlessLLMConfig(**params)
