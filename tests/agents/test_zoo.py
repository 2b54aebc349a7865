"""The shipped checkpoint keeps its promise: it beats both static layouts, on workloads it was not trained on."""

from __future__ import annotations

import numpy as np
import pytest

from agents.checkpoint import load_policy
from baselines.registry import make_policy
from envs.backend import ClusterSpec
from envs.registration import make_env
from envs.workload.registry import WorkloadSpec
from envs.workload.traces import find_trace
from runners.rollout import run_episode

SEEDS = range(6)


@pytest.mark.parametrize(
    "workload",
    [
        WorkloadSpec(name="flying_bursty", num_requests=1500),
        pytest.param(
            WorkloadSpec(name="azure_conv", num_requests=1500, rate_scale=8.0),
            marks=pytest.mark.skipif(find_trace("azure_conv") is None, reason="the trace is not at hand"),
        ),
    ],
    ids=lambda workload: workload.name,
)
def test_the_shipped_agent_beats_both_static_layouts(workload: WorkloadSpec) -> None:
    env = make_env("dp_tp", workload=workload, split="test")
    returns = {
        name: np.array([run_episode(env, policy, seed).metrics["return"] for seed in SEEDS])
        for name, policy in {
            "agent": load_policy("zoo/dp_tp"),
            "dp": make_policy("static_dp"),
            "tp": make_policy("static_tp"),
        }.items()
    }
    assert (returns["agent"] > returns["dp"]).mean() > 0.95
    assert (returns["agent"] > returns["tp"]).mean() > 0.95


def test_a_node_of_another_size_is_refused() -> None:
    env = make_env("dp_tp", cluster=ClusterSpec(num_gpus=4))
    env.reset(seed=0)
    with pytest.raises(ValueError, match="8 base engines"):
        load_policy("zoo/dp_tp").reset(env.policy_spec, seed=0)
