"""Deployments that are chosen once, at the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from serving_gym.baselines.common.layouts import check_layout, parse_layout, uniform_layout
from serving_gym.baselines.policy import Action, PolicySpec
from serving_gym.envs.interface.commands import Redeploy
from serving_gym.envs.interface.layout import Layout, format_layout
from serving_gym.envs.interface.state import ClusterState


class DeployOncePolicy:
    """Deploys at time zero and keeps what it has.

    Where it takes over a cluster that has been running, it leaves it as it is: to deploy would be a cold restart.
    """

    name: str
    clairvoyant = False
    execution = "tp"
    weights = "sharded"

    def layout_of(self, num_base: int) -> Layout:
        """The layout of a node of so many base engines."""
        raise NotImplementedError

    def reset(self, spec: PolicySpec, seed: int) -> None:
        """Works out the deployment."""
        self._deployment: Redeploy | None = Redeploy(
            self.layout_of(spec.num_base), self.execution, self.weights
        )

    def act(self, observation: Any, state: ClusterState) -> Action:
        """The deployment at the first decision, if that is at time zero; nothing afterwards."""
        deployment, self._deployment = self._deployment, None
        return deployment if state.now_s == 0.0 else None


class StaticLayoutPolicy(DeployOncePolicy):
    """Keeps one layout.

    Args:
        layout: Lengths of the groups, or as written in configs (`8`, `4x2`, `4+2+1+1`).
        execution: "tp" or "shift".
        weights: "sharded" (each engine loads its own shard, as a static deployment does) or "whole".

    Raises:
        ValueError: the layout cannot be read; on `reset`, it does not cover the node.
    """

    def __init__(
        self,
        layout: str | int | Sequence[int],
        execution: str = "tp",
        weights: str = "sharded",
    ) -> None:
        self.layout, self.execution, self.weights = parse_layout(layout), execution, weights
        self.name = f"static_{format_layout(self.layout)}"
        Redeploy(self.layout, execution, weights)  # refuses what cannot be deployed

    def layout_of(self, num_base: int) -> Layout:
        """The one layout, if it covers the node."""
        check_layout(self.layout, num_base)
        return self.layout


class StaticDPPolicy(DeployOncePolicy):
    """Data parallelism: every base engine on its own with the full model. A baseline of Flying Serving (6.1.2)."""

    name = "static_dp"

    def layout_of(self, num_base: int) -> Layout:
        """All apart."""
        return uniform_layout(num_base, 1)


class StaticTPPolicy(DeployOncePolicy):
    """Tensor parallelism: one engine over the whole node, weights sharded. A baseline of Flying Serving (6.1.2)."""

    name = "static_tp"

    def layout_of(self, num_base: int) -> Layout:
        """All merged."""
        return (num_base,)


class ShiftParallelismPolicy(DeployOncePolicy):
    """Shift Parallelism (arXiv 2509.16495): tensor-parallel under low load, sequence-parallel in bursts.

    The engine shifts by itself, iteration by iteration: batches above a number of tokens run sequence-parallel. That
    threshold belongs to the engine's latency model, so there is nothing left to decide here. Weights are held whole
    because sequence parallelism needs all of them on every GPU. A baseline of Flying Serving (section 6.1.2).
    """

    name = "shift_parallelism"
    execution = "shift"
    weights = "whole"

    def layout_of(self, num_base: int) -> Layout:
        """All merged."""
        return (num_base,)
