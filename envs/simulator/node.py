"""A simulated node without commands, as used by its control plane."""

from __future__ import annotations

from typing import Self

from serving_gym.calibration.profile import Profile
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.envs.interface.layout import Group
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.body import Body
from serving_gym.envs.simulator.cluster import build_cluster, make_cluster
from serving_gym.envs.simulator.kernel.state import V1


class Node(Body):
    """A simulated node of GPUs.

    Args:
        spec: The cluster.
        slos: SLO of each request class, in the order of the workload's classes.
        trigger_classes: Classes whose arrival stops `advance` so that a decision can be taken.
        profile: Latency of the engines; None: the committed profile of the spec's model and GPU.
        levels: Factors on iteration times that episodes may draw.

    Raises:
        ValueError: the spec names something unknown, or the model does not fit its GPUs.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        slos: tuple[SLO, ...],
        trigger_classes: tuple[int, ...] = (),
        profile: Profile | None = None,
        levels: tuple[float, ...] = (),
    ) -> None:
        self.spec = spec
        self.cluster = (
            build_cluster(spec, slos, levels)
            if profile is None
            else make_cluster(spec, slos, profile, levels)
        )
        super().__init__(spec, self.cluster.tables, slos, trigger_classes)

    def kind_of(self, group: Group, execution: str) -> int:
        """Row of the tables for a group, with the factor on iteration times that was drawn for the episode."""
        return self.cluster.kind(group, execution, self.factors.iteration_of(0))

    def set_request_limit(self, weights: str) -> None:
        """Sets how long requests may become: `max_model_len`, and what an engine could hold."""
        most = self.cluster.max_request_tokens(weights)
        if self.spec.chunked_prefill is False or self.tables.kinds["scheduler"][0] != V1:
            most = min(most, self.spec.max_num_batched_tokens)  # vLLM then requires a budget of max_model_len
        self.world.endpoints["max_request_tokens"] = most

    def _fork_node(self) -> Self:
        """A copy without a control plane."""
        copy = self._fork_body()
        copy.spec, copy.cluster = self.spec, self.cluster
        return copy
