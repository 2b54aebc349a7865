"""The network sees every engine alike, in order, and knows which layout it is in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from serving_gym.agents.config import NetworkConfig, PPOConfig
from serving_gym.agents.environments.dp_tp.adapter import DPTPAdapter
from serving_gym.agents.environments.dp_tp.layout_network import layout_ranks
from serving_gym.agents.learners.factory import make_policy_network
from serving_gym.agents.networks.networks import Pooling, RowNetwork
from serving_gym.agents.policies.network_policy import scores_of
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.layout import all_layouts
from serving_gym.envs.workload.registry import WorkloadSpec
from tests.defaults import make_env

BURSTY = WorkloadSpec(name="flying_bursty", num_requests=60)


def batch_of(observation):
    return {key: torch.as_tensor(value)[None] for key, value in observation.items()}


def test_pooled_features_do_not_depend_on_the_order_of_engines_and_the_others_do():
    env = make_env("dp_tp", workload=BURSTY)
    torch.manual_seed(0)
    features = Pooling(env.observation_space, ("engines", "cluster"), row_width=8, place_width=2)
    observation = {
        "engines": torch.rand(3, *env.observation_space["engines"].shape),
        "cluster": torch.rand(3, *env.observation_space["cluster"].shape),
    }
    reversed_rows = {**observation, "engines": observation["engines"].flip(1)}
    ours, theirs = features(observation), features(reversed_rows)
    assert ours.shape == (3, features.size)
    torch.testing.assert_close(ours[:, :16], theirs[:, :16])
    assert not torch.allclose(ours[:, 16:32], theirs[:, 16:32])


@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_an_untrained_actor_mostly_keeps_the_layout_it_is_in(num_gpus):
    env = make_env("dp_tp", workload=BURSTY, cluster=ClusterSpec(num_gpus=num_gpus))
    torch.manual_seed(0)
    config = PPOConfig(network=NetworkConfig(stay_probability=0.8))
    network = make_policy_network(config, DPTPAdapter("dp_tp"), env.observation_space, env.action_space)
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    layouts = set()
    for _ in range(20):
        stay = all_layouts(num_gpus).index(env.state.target_layout) * 3
        layouts.add(stay)
        probabilities = network.get_distribution(batch_of(observation)).distribution.probs[0]
        assert probabilities[stay].item() == pytest.approx(0.8, abs=0.05)
        others = np.delete(probabilities.detach().numpy(), stay)
        np.testing.assert_allclose(others, others.mean(), rtol=0.3)
        observation, _, terminated, truncated, _ = env.step(
            int(rng.choice(np.flatnonzero(env.action_masks())))
        )
        if terminated or truncated:
            break
    assert len(layouts) > 1


def test_ranks_of_layouts():
    assert layout_ranks(2).tolist() == [[1, 1], [0, 0]]
    ranks = layout_ranks(8)
    assert ranks.shape == (26, 8)
    assert len({tuple(row) for row in ranks}) == 26


def small_rows(seed: int) -> RowNetwork:
    torch.manual_seed(seed)
    shown = spaces.Dict({"rows": spaces.Box(0.0, 9.0, (3, 4)), "all": spaces.Box(0.0, 9.0, (2,))})
    return RowNetwork(shown, 4, "rows", 0, NetworkConfig(row_width=8, hidden_widths=(8,)))


def test_what_lies_beyond_what_was_seen_counts_as_its_border() -> None:
    network = small_rows(0)
    known = {"rows": 1.0 + torch.rand(5, 3, 4), "all": 1.0 + torch.rand(5, 2)}
    known["rows"][:, :, 2] = 1.5  # never differs
    before = network(known)
    network.know(known)
    absent = {**known, "rows": known["rows"] * torch.tensor([1.0, 0.0, 1.0])[None, :, None]}
    lacking = {**known, "rows": known["rows"].clone()}
    lacking["rows"][:, 1] = torch.cat(
        [torch.zeros(5, 1), known["rows"].amin(dim=(0, 1))[1:].expand(5, 3)], dim=1
    )
    torch.testing.assert_close(network(absent)[:, [0, 2]], network(lacking)[:, [0, 2]])
    assert not torch.allclose(network(absent)[:, [0, 2]], before[:, [0, 2]]), (
        "a row that does not count stays out"
    )
    torch.testing.assert_close(network(known), before)
    beyond = {name: part.clone() for name, part in known.items()}
    beyond["rows"][:, :, 2] = torch.tensor([0.0, 5.0, 9.0])
    torch.testing.assert_close(network(beyond), before)
    beyond["rows"][:, 0, 1], beyond["all"][:, 1] = 9.0, 0.0
    border = {name: part.clone() for name, part in known.items()}
    border["rows"][:, 0, 1] = known["rows"][:, :, 1].max()
    border["all"][:, 1] = known["all"][:, 1].min()
    torch.testing.assert_close(network(beyond), network(border))
    again = small_rows(1)
    again.load_state_dict(network.state_dict())
    torch.testing.assert_close(again(beyond), network(beyond))
    in_numpy = scores_of(again)({name: part.numpy() for name, part in beyond.items()})
    np.testing.assert_allclose(in_numpy, network(beyond).detach().numpy()[:, :, 0], rtol=1e-5, atol=1e-6)
    without = small_rows(1)
    without.load_state_dict(
        {
            key: value
            for key, value in network.state_dict().items()
            if "_rows" not in key and "_all" not in key
        }
    )
    assert not torch.allclose(without(beyond), network(beyond))
