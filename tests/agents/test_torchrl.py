"""TorchRL's collector and PPO on masked environments, where it is installed: `pip install -e '.[torchrl]'`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import serving_gym
from tests.environments.cases import CASES
from tests.tiers import full_except

pytest.importorskip("torchrl", reason="pip install -e '.[torchrl]'")


@pytest.mark.parametrize("name", full_except(["routing", "autoscaling"], "routing"))  # a number, and levers
def test_it_trains_and_is_compared(name):
    from torchrl.collectors import Collector
    from torchrl.modules import ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    from serving_gym.agents.integrations.torchrl import masked_actor, torchrl_env, torchrl_policy

    torch.manual_seed(0)
    env = torchrl_env(name, **CASES[name])
    shown = env.rollout(10)  # random actions, which are possible ones
    width, entries = shown["observations"].shape[-1], shown["action_mask"].shape[-1]
    actor = masked_actor(env, nn.Linear(width, entries))
    critic = ValueOperator(nn.Linear(width, 1), in_keys=["observations"])
    loss, advantage = ClipPPOLoss(actor, critic), GAE(gamma=1.0, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-2)
    collector = Collector(
        env, actor, frames_per_batch=64, total_frames=128, auto_register_policy_transforms=False
    )
    for batch in collector:
        assert batch.shape == (64,)
        assert torch.isfinite(batch["action_log_prob"]).all()  # -inf: impossible
        advantage(batch)
        terms = loss(batch)
        total = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
        assert torch.isfinite(total)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    collector.shutdown(close_env=False)
    policy, drawn = torchrl_policy("mine", env, actor), torchrl_policy("drawn", env, actor, draw_seed=0)
    returns = serving_gym.compare(name, [policy, drawn], seeds=1, **CASES[name])["policies"]
    assert all(np.isfinite(each["metrics"]["return"]["iqm"]) for each in returns.values())


def test_levers_are_drawn_and_weighed_apart():
    from serving_gym.agents.integrations.torchrl import MaskedLevers

    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25, 0.9, 0.1]]))
    mask = torch.tensor([[True, True, False, True, True]])
    levers = MaskedLevers(logits=logits, mask=mask, sizes=(3, 2))
    assert levers.mode.tolist() == [[0, 0]]
    assert levers.log_prob(torch.tensor([[1, 1]])).exp().item() == pytest.approx(1 / 3 * 0.1)
    first, second = np.array([2 / 3, 1 / 3]), np.array([0.9, 0.1])
    entropy = -(first * np.log(first)).sum() - (second * np.log(second)).sum()
    assert levers.entropy().item() == pytest.approx(entropy, rel=1e-5)
    drawn = levers.sample((500,))
    assert drawn.shape == (500, 1, 2)
    assert set(drawn[..., 0].unique().tolist()) == {0, 1}
