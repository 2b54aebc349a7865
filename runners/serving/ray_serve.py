"""Runs any routing policy as a request router of Ray Serve.

    from ray.serve.config import RequestRouterConfig

    RequestRouterConfig(
        request_router_class="runners.serving.ray_serve:PolicyRequestRouter",
        request_router_kwargs={"words": ["policy=preserve", "cluster=fleet_h100_x4"]},
    )

`words` are overrides of `runners.serve`: the policy, its setting, and `mode` (live, shadow, canary). Each replica of
the deployment is one slot of the fleet, in the order in which Ray lists them; a slot without a replica is down.
`describe` returns the lengths of a request (`request_lengths` by default). Ray reports the end of an answer, not its
first token: until then a request counts as without a first token. If the policy fails or its response does not apply,
Ray's own rule decides: the shorter queue of two replicas.

Tested with Ray 2.60; the interface is Ray's alpha.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from serving_gym.envs.live.gauges import Gauges
from serving_gym.envs.live.scraper import Reading
from serving_gym.envs.routing.state import RoutingState
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.fleet_view import FleetView, Flight
from serving_gym.runners.serving.openai_requests import Lengths, lengths_of
from serving_gym.runners.serving.service import rehearsed_host


def request_lengths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Lengths:
    """Lengths of a call with a request of OpenAI's API as first argument, or as the keyword `request`.

    See `openai_requests.lengths_of`.
    """
    body = kwargs.get("request", args[0] if args else {})
    return lengths_of(body if isinstance(body, Mapping) else getattr(body, "__dict__", {}))


class PolicyRequestRouter(RequestRouter):
    """Ray Serve request router that calls a routing policy of this project."""

    def initialize_state(
        self, words: Sequence[str] = (), describe: str = "runners.serving.ray_serve:request_lengths"
    ) -> None:
        """Called by Ray with `request_router_kwargs`.

        Args:
            words: Overrides as of `runners.serve`.
            describe: `module:function` that returns the lengths of a request: (args, kwargs) -> Lengths.
        """
        self.host = rehearsed_host(composed("serve", ServeConfig, ["env=routing", *words]))
        module, _, function = describe.partition(":")
        self._describe: Callable[[Sequence[Any], Mapping[str, Any]], Lengths] = getattr(
            importlib.import_module(module), function
        )
        self._view = FleetView(self.host.spec)
        self._random = random.Random(self.host.spec.fleet.models[0])

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica that the policy chooses, and two others in case it is full; none if it holds the request."""
        if pending_request is None or not candidate_replicas:
            return [self._two_of(candidate_replicas)]
        pending_request.routing_context.should_backoff = True  # before the request is decided on again
        self._view.seat(self.curr_replicas)
        name = pending_request.metadata.internal_request_id
        flight = self._arrival(name, pending_request)
        if flight.place < 0:
            answer = self.host.ask(self._state(name, candidate_replicas))
            if not answer.applies:
                return [self._two_of(candidate_replicas)]
            if answer.place is None:
                flight.held_before = True
                return []
            self._view.send(
                name, answer.place
            )  # counts from now on, whatever is decided before it gets there
        chosen = [r for r in candidate_replicas if self._view.place_of(r.replica_id) == flight.place]
        return [chosen, self._two_of([r for r in candidate_replicas if r not in chosen])]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        """Called when a request has been sent to a replica."""
        place = self._view.place_of(replica_id)
        if place is not None:
            self._view.send(pending_request.metadata.internal_request_id, place)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called when a request has finished."""
        self._view.end(internal_request_id)

    def _arrival(self, name: str, pending: PendingRequest) -> Flight:
        """The request on arrival; Ray may route it again."""
        if name in self._view:
            return self._view.flight(name)
        return self._view.arrive(name, self._describe(pending.args, pending.kwargs))

    def _state(self, name: str, candidates: list[RunningReplica]) -> RoutingState:
        """The state, with Ray's count of the requests on each replica as its only gauge."""
        now_s = time.monotonic()
        for replica_id in self.curr_replicas:
            place = self._view.place_of(replica_id)
            counted = self.replica_queue_len_cache.get(replica_id)
            if place is not None and counted is not None:
                gauges = Gauges(counted, 0, None, None, None, None)
                self._view.read(replica_id, Reading(gauges, now_s, self._view.requests_at(place)))
        places = [self._view.place_of(replica.replica_id) for replica in candidates]
        return self._view.state(name, [place for place in places if place is not None])

    def _two_of(self, replicas: list[RunningReplica]) -> list[RunningReplica]:
        """Two random replicas: within a rank Ray takes the one with the shorter queue."""
        return self._random.sample(replicas, k=min(2, len(replicas)))
