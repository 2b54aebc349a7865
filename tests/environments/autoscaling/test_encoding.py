"""The observation from the typed state is that of the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.autoscaling.observation import ENDPOINT_FEATURES, StateEncoder
from tests.defaults import make_env
from tests.environments.autoscaling.samples import VARIANTS, masked_action, play

# A state counts KV in tokens of the whole pool, the simulator in blocks of what is left of it.
ROUGH = {"kv_usage": 0.02}


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_it_follows_from_the_state(variant):
    env = make_env("autoscaling", **VARIANTS[variant])
    rng = np.random.default_rng(1)
    encoder = StateEncoder(env.config, env.core.spec, env.policy_spec.fleet)
    steps = 0
    for observation, *_ in play(env, 5, lambda e: masked_action(e, rng)):
        left = 1.0 - env.state.now_s / env.core.stream.duration_s
        ours = encoder.encode(env.state, left)
        assert env.observation_space.contains(ours)
        np.testing.assert_allclose(ours["clock"], observation["clock"], atol=1e-5)
        for number, name in enumerate(ENDPOINT_FEATURES):
            np.testing.assert_allclose(
                ours["endpoints"][:, number],
                observation["endpoints"][:, number],
                rtol=1e-5,
                atol=ROUGH.get(name, 1e-5),
                err_msg=f"{name}, step {steps}",
            )
        steps += 1
    assert steps > 1
