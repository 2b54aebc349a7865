"""The SageServe routing policy: region, endpoint, deployment, instance (sections 6.1 and 6.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.baselines.common.router import Router
from serving_gym.baselines.policy import Action, Configured
from serving_gym.baselines.sageserve.config import SageServeRoutingConfig
from serving_gym.baselines.sageserve.effective_memory import EffectiveMemory
from serving_gym.baselines.sageserve.model_router import deployments_of, least_loaded_deployment
from serving_gym.baselines.sageserve.queue_manager import Endpoint, QueueManager
from serving_gym.baselines.sageserve.region_router import choose_region, order_of_preference
from serving_gym.baselines.sageserve.shortest_queue import join_shortest_queue
from serving_gym.envs.routing.state import Dispatch, RoutedRequest, RoutingState


class SageServeRoutingPolicy(Router, Configured[SageServeRoutingConfig]):
    """Interactive requests go by effective memory utilisation; the others wait until an endpoint has room."""

    name = "sageserve_routing"

    def begin(self) -> None:
        """Empties the queue manager.

        Raises:
            ValueError: `proximity` names a region that the fleet does not have.
        """
        fleet = self.spec.fleet
        self._regions = tuple(dict.fromkeys(fleet.regions))
        for region in (name for near in self.config.proximity.values() for name in near):
            if region not in self._regions:
                raise ValueError(
                    f"proximity names the region {region!r}; the fleet has {', '.join(self._regions)}"
                )
        places = list(zip(fleet.models, fleet.regions, strict=True))
        self._endpoints: dict[Endpoint, NDArray[np.bool_]] = {
            endpoint: np.array([own == endpoint for own in places]) for endpoint in dict.fromkeys(places)
        }
        self._deployments = deployments_of(fleet, self.config.deployment_instances)
        self._non_interactive = {
            number for number, name in enumerate(self.spec.classes) if name in self.config.niw_classes
        }
        self._queue = QueueManager(self.config)

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Sends an interactive request; sends or holds another."""
        memory = EffectiveMemory.of(state, self.spec.fleet)
        model = self.spec.fleet.models[int(np.argmax(state.can_take))]
        hosting = {
            region: members & state.can_take
            for (own, region), members in self._endpoints.items()
            if own == model and (members & state.can_take).any()
        }
        if request.class_id not in self._non_interactive:
            region = self._interactive_region(request, memory, model, hosting)
            return self._send(state, memory, hosting[region], self.config.interactive_priority)
        if self._queue.overdue(request, state.now_s):
            released: str | None = self._interactive_region(request, memory, model, hosting)
        else:
            self._listen(state, request, memory)
            released = self._queue.release(request, model, set(hosting))
        if released is None:
            return None
        return self._send(state, memory, hosting[released], self._queue.priority(request, state.now_s))

    def _interactive_region(
        self,
        request: RoutedRequest,
        memory: EffectiveMemory,
        model: str,
        hosting: dict[str, NDArray[np.bool_]],
    ) -> str:
        utilization = {region: memory.utilization(self._endpoints[model, region]) for region in hosting}
        nearest = sorted(hosting, key=lambda region: float(request.network_s[hosting[region]].min()))
        preference = order_of_preference(request.region, nearest, self.config.proximity)
        return choose_region(utilization, preference, self.config.region_threshold_ratio)

    def _listen(self, state: RoutingState, request: RoutedRequest, memory: EffectiveMemory) -> None:
        """Takes the endpoints' signals when the queue is looked at and they are due."""
        if request.held_before and self._queue.signal_due(state.now_s):
            utilization = {
                endpoint: memory.utilization(members) for endpoint, members in self._endpoints.items()
            }
            self._queue.receive(state.now_s, utilization)

    def _send(
        self,
        state: RoutingState,
        memory: EffectiveMemory,
        candidates: NDArray[np.bool_],
        priority: int | None,
    ) -> Dispatch:
        deployment = least_loaded_deployment(memory, self._deployments, candidates)
        return Dispatch(join_shortest_queue(state, deployment), priority)
