"""Our policies inside Ray Serve, on a local cluster of replicas that only wait."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'serving-gym[ray]'")
pytestmark = pytest.mark.slow

from ray import serve  # noqa: E402
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig  # noqa: E402

GROUPS = "cluster.groups=[{replica: {model: llama-3.1-8b, gpu: H100}, count: 2}]"


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Two processors of this machine; whatever is started there ends with the tests."""
    root = str(Path.cwd())
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}},
    )
    yield
    serve.shutdown()
    ray.shutdown()


def deployed(name: str, *words: str):
    """A deployment of two replicas behind a policy."""

    @serve.deployment(
        name=name,
        num_replicas=2,
        max_ongoing_requests=32,
        ray_actor_options={"num_cpus": 0.5},
        request_router_config=RequestRouterConfig(
            request_router_class="serving_gym.runners.serving.ray_serve:PolicyRequestRouter",
            request_router_kwargs={"words": [GROUPS, *words]},
        ),
    )
    class Replica:
        async def __call__(self, request):
            await asyncio.sleep(request["sleep_s"])
            return os.getpid()

    return serve.run(Replica.bind(), name=name, route_prefix=f"/{name}")


def ask(handle, *bodies):
    """Calls one after another, all under way together; who answered each."""
    usual = {"prompt": [1] * 50, "max_tokens": 20, "sleep_s": 0.3}
    responses = [handle.remote({**usual, **body}) for body in bodies]
    return [response.result(timeout_s=60) for response in responses]


def test_round_robin_takes_turns():
    pids = ask(deployed("turns", "policy=round_robin"), *[{}] * 8)
    assert sorted(Counter(pids).values()) == [4, 4]


def test_the_policy_goes_by_the_lengths_of_requests():
    """One long prompt on one replica weighs as much as all the short ones, which go to the other."""
    handle = deployed("lengths", "policy=jsq")
    ask(handle, {})  # the router is there
    long, *short = ask(handle, {"prompt": [1] * 5000, "sleep_s": 2.0}, *[{}] * 5)
    assert set(short) - {long}
    assert long not in short


def test_in_shadow_ray_decides_and_every_request_is_answered():
    pids = ask(deployed("shadow", "policy=jsq", "mode=shadow"), *[{}] * 6)
    assert len(pids) == 6


def test_a_policy_scales_a_deployment():
    """Forty requests that take long, on one replica that runs four at a time: the policy wants more of them."""
    words = ["policy=hpa_kv", "policy.params.sync_s=1", "cluster=fleet_autoscaled"]
    words += ["env.decision_interval_s=1", "env.history_bin_s=1", "env.history_s=60"]
    words += ["env.recent_bin_s=1", "env.recent_s=10"]

    @serve.deployment(
        name="scaled",
        max_ongoing_requests=4,
        ray_actor_options={"num_cpus": 0.2},
        autoscaling_config=AutoscalingConfig(
            min_replicas=1,
            max_replicas=3,
            initial_replicas=1,
            metrics_interval_s=0.2,
            look_back_period_s=1.0,
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            policy=AutoscalingPolicy(
                policy_function="serving_gym.runners.serving.ray_autoscaling:PolicyAutoscaler",
                policy_kwargs={"words": words},
            ),
        ),
    )
    class Replica:
        async def __call__(self, request):
            await asyncio.sleep(1.0)
            return os.getpid()

        def record_autoscaling_stats(self):
            return {"kv_usage_ratio": 0.99}

    handle = serve.run(Replica.bind(), name="scaled", route_prefix="/scaled")
    responses = [handle.remote({}) for _ in range(200)]
    assert len({response.result(timeout_s=120) for response in responses}) == 3
