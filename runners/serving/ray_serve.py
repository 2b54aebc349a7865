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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from serving_gym.envs.interface.state import ENGINE_STATE_DTYPE, IN_FLIGHT_DTYPE, TOTALS, EngineStatus
from serving_gym.envs.routing.state import RoutedRequest, RoutingState
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.serving.config import ServeConfig
from serving_gym.runners.serving.service import policy_host

_CHARACTERS_PER_TOKEN = 4  # of a prompt given as text


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of a request known on arrival, tokens."""

    input_tokens: int
    max_output_tokens: int
    predicted_tokens: int
    class_id: int = 0
    priority: int = 0


def request_lengths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Lengths:
    """Lengths of a call with a request of OpenAI's API as first argument, or with the lengths as keywords.

    A prompt may be token ids, text (one token per four characters) or chat messages. Without `max_tokens` 256 tokens
    are assumed, unless `predicted_tokens` is given.
    """
    body = kwargs.get("request", args[0] if args else {})
    values = body if isinstance(body, Mapping) else getattr(body, "__dict__", {})
    prompt = values.get("prompt", values.get("messages", ""))
    tokens = (
        len(prompt)
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], int)
        else _estimate(prompt)
    )
    most = int(values.get("max_tokens") or 256)
    return Lengths(max(tokens, 1), most, int(values.get("predicted_tokens") or most))


def _estimate(prompt: Any) -> int:
    if isinstance(prompt, list):
        return sum(
            _estimate(part.get("content", "") if isinstance(part, Mapping) else str(part)) for part in prompt
        )
    return -(-len(str(prompt)) // _CHARACTERS_PER_TOKEN)


@dataclass(slots=True)
class _Flight:
    index: int
    arrival_s: float
    place: int
    lengths: Lengths


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
        self.host = policy_host(composed("serve", ServeConfig, ["env=routing", *words]))
        module, _, function = describe.partition(":")
        self._describe: Callable[[Sequence[Any], Mapping[str, Any]], Lengths] = getattr(
            importlib.import_module(module), function
        )
        self._begun_s = time.monotonic()
        self._places: dict[ReplicaID, int] = {}
        self._requests: dict[str, _Flight] = {}  # unfinished requests, by Ray's id
        self._arrived = 0
        self._totals = np.zeros((len(self.host.spec.slos), len(TOTALS)))
        self._predicted = 0
        self._random = random.Random(self.host.spec.fleet.models[0])

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica that the policy chooses, and two others in case it is full; none if it holds the request."""
        if pending_request is None or not candidate_replicas:
            return [self._two_of(candidate_replicas)]
        pending_request.routing_context.should_backoff = True  # before the request is decided on again
        self._seat()
        flight = self._arrival(pending_request)
        if flight.place < 0:
            answer = self.host.ask(self._state(candidate_replicas, flight))
            if not answer.applies:
                return [self._two_of(candidate_replicas)]
            if answer.place is None:
                return []
            flight.place = answer.place  # counts from now on, whatever is decided before it gets there
        chosen = [r for r in candidate_replicas if self._places.get(r.replica_id) == flight.place]
        return [chosen, self._two_of([r for r in candidate_replicas if r not in chosen])]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult
    ) -> None:
        """Called when a request has been sent to a replica."""
        flight = self._requests.get(pending_request.metadata.internal_request_id)
        if flight is not None:
            flight.place = self._places.get(replica_id, -1)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called when a request has finished."""
        self._requests.pop(internal_request_id, None)

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _seat(self) -> None:
        """Assigns a slot of the fleet to every replica, and frees the slots of removed replicas."""
        present = self.curr_replicas
        self._places = {replica: place for replica, place in self._places.items() if replica in present}
        free = [p for p in range(len(self.host.spec.fleet)) if p not in self._places.values()]
        for replica in present:
            if replica not in self._places:
                if not free:
                    raise ValueError(
                        f"the deployment has {len(present)} replicas, but the fleet of words has "
                        f"{len(self.host.spec.fleet)} places; name a larger cluster"
                    )
                self._places[replica] = free.pop(0)

    def _arrival(self, pending: PendingRequest) -> _Flight:
        """The request on arrival; Ray may route it again."""
        name = pending.metadata.internal_request_id
        if name not in self._requests:
            lengths = self._describe(pending.args, pending.kwargs)
            self._requests[name] = _Flight(self._arrived, self._now_s, -1, lengths)
            self._arrived += 1
            self._totals[lengths.class_id, TOTALS.index("arrived")] += 1
            self._totals[lengths.class_id, TOTALS.index("arrived_tokens")] += lengths.input_tokens
            self._predicted += lengths.predicted_tokens
        return self._requests[name]

    def _state(self, candidates: list[RunningReplica], flight: _Flight) -> RoutingState:
        spec, now_s = self.host.spec, self._now_s
        engines = np.zeros(len(spec.fleet), ENGINE_STATE_DTYPE)
        engines["status"] = EngineStatus.DOWN
        capacity = spec.fleet.kv_capacity_tokens
        engines["kv_capacity_tokens"] = capacity
        engines["kv_capacity_blocks"] = capacity // spec.fleet.block_size
        can_take = np.zeros(len(spec.fleet), bool)
        for replica_id, place in self._places.items():
            engines["status"][place] = EngineStatus.ACTIVE
            engines["num_running"][place] = self.replica_queue_len_cache.get(replica_id) or 0
        sent = [other for other in self._requests.values() if other.place >= 0]
        for other in sent:  # replicas report no gauges: estimated from the requests sent there
            engines["pending_prefill_tokens"][other.place] += other.lengths.input_tokens
            blocks = -(-other.lengths.input_tokens // int(spec.fleet.block_size[other.place]))
            engines["kv_used_blocks"][other.place] += blocks
        for replica in candidates:
            if replica.replica_id in self._places:
                can_take[self._places[replica.replica_id]] = True
        lengths = flight.lengths
        waiting = [other for other in self._requests.values() if other.place < 0 and other is not flight]
        held_tokens = sum(other.lengths.input_tokens for other in waiting)
        request = RoutedRequest(
            index=flight.index,
            arrival_s=flight.arrival_s,
            input_tokens=lengths.input_tokens,
            predicted_tokens=lengths.predicted_tokens,
            max_output_tokens=lengths.max_output_tokens,
            priority=lengths.priority,
            class_id=lengths.class_id,
            deadline_s=flight.arrival_s + spec.slos[lengths.class_id].ttft_s,
            region=spec.fleet.regions[0],
            network_s=np.zeros(len(spec.fleet)),
            hash_ids=np.zeros(0, np.int32),
            hash_block_tokens=1,
            cached_tokens=np.zeros(len(spec.fleet), np.int64),
            held_before=False,
        )
        return RoutingState(
            now_s=now_s,
            gauges_s=now_s,
            engines=engines,
            in_flight=_in_flight(sent),
            request=request,
            can_take=can_take,
            num_held=len(waiting),
            held_tokens=held_tokens,
            unsent_tokens=held_tokens + lengths.input_tokens,
            gpu_seconds=np.asarray(spec.fleet.num_gpus * now_s, np.float64),
            operations=(),
            totals=self._totals.copy(),
            arrived_predicted_tokens=self._predicted,
        )

    def _two_of(self, replicas: list[RunningReplica]) -> list[RunningReplica]:
        """Two random replicas: within a rank Ray takes the one with the shorter queue."""
        return self._random.sample(replicas, k=min(2, len(replicas)))


def _in_flight(sent: Sequence[_Flight]) -> NDArray[np.void]:
    rows = np.zeros(len(sent), IN_FLIGHT_DTYPE)
    rows["first_token_s"] = -1.0
    for row, flight in zip(rows, sent, strict=True):
        row["index"], row["arrival_s"], row["place"] = flight.index, flight.arrival_s, flight.place
        for name in ("input_tokens", "max_output_tokens", "predicted_tokens", "class_id", "priority"):
            row[name] = getattr(flight.lengths, name)
    return rows
