"""Any routing policy as NVIDIA Dynamo's standalone selection service, over HTTP.

    python -m runners.serve env=routing policy=zoo/routing cluster=... protocols=[dynamo_router]

Stands where `python -m dynamo.select_service` does: workers are registered, a worker is selected and booked, and the
life of the booking is reported. Each data-parallel rank of a worker is a place of the fleet. Load is what the bookings
say: no gauges are scraped, KV events are not read (an overlap is what was selected where, with
`cluster.prefix_caching`),
and there are no replicas of the service.

Contract: ai-dynamo/dynamo, docs "Standalone Selection Service" of v1.6 and lib/kv-router's `selection/types.rs`. Of the
requests' fields `model_name`, `routing_group`, `selection_id`, `token_ids`, `sequence_hashes`, `isl_tokens`,
`expected_output_tokens`, `strict_priority`, `allowed_worker_ids`, `pinned_worker` and `advisory` are read; others are
ignored. Not offered: `/dump`, `/overlap_scores`, `/potential_loads`, `/replica_sync`.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from serving_gym.runners.serving.bounded_site import BoundedSite
from serving_gym.runners.serving.fleet_view import FleetView, Flight
from serving_gym.runners.serving.json_body import json_object, text_of, whole_of
from serving_gym.runners.serving.openai_requests import DEFAULT_OUTPUT_TOKENS, Lengths, prefix_ids
from serving_gym.runners.serving.routing_desk import Choice, RoutingDesk

if TYPE_CHECKING:
    from aiohttp import web

    from serving_gym.runners.serving.service import PolicyService

PENDING_S = 120.0  # for which a selection may be booked; Dynamo's `--selection-cache-ttl-secs`
MOST_PENDING = 4096
EXPIRY_S = 300.0  # after which a booking is given up; Dynamo's DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS
_MOST_BYTES = 16 * 2**20
_OPEN_PATHS = ("/health", "/ready")  # without a token
_DEFAULT = "default"
_HIGHEST_PRIORITY = 2**31 - 2

Place = tuple[int, int]  # worker and rank


class _RefusalError(Exception):
    """An answer other than 2xx.

    Args:
        status: HTTP status.
        reason: One sentence.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(slots=True)
class _Worker:
    """A worker of the catalog.

    Attributes:
        record: What was registered, with the defaults of what was not.
    """

    record: dict[str, Any]

    @property
    def complete(self) -> bool:
        return bool(self.record.get("endpoint")) and bool(self.record.get("block_size"))

    @property
    def places(self) -> list[Place]:
        start = self.record["data_parallel_start_rank"]
        return [(self.record["worker_id"], start + rank) for rank in range(self.record["data_parallel_size"])]

    def described(self) -> dict[str, Any]:
        return self.record | {"lifecycle": "schedulable" if self.complete else "incomplete"}


@dataclass(frozen=True, slots=True)
class _Pending:
    """A selection that has not been booked.

    Attributes:
        flight: The request.
        place: What was selected.
        scope: Model and routing group.
        until_s: When it is forgotten, monotonic seconds.
    """

    flight: Flight
    place: Place
    scope: tuple[str, str]
    until_s: float


class DynamoRouter:
    """The listener.

    Args:
        service: The policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.
    """

    environments: ClassVar[tuple[str, ...]] = ("routing",)
    checks_token: ClassVar[bool] = True
    default_port: ClassVar[int] = 8092  # of Dynamo's own

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        self.service, self.address, self.port = service, address, port
        fleet = service.env.policy_spec.fleet
        self.block_size = int(fleet.block_size[0])
        remember = bool(service.env.config.cluster.prefix_caching)
        self.view = FleetView(service.env.policy_spec, remember, self.block_size)
        self.desk = RoutingDesk(service, self.view)
        self.workers: dict[int, _Worker] = {}
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._booked: OrderedDict[str, float] = OrderedDict()  # when, by selection, monotonic seconds
        self._site: BoundedSite | None = None

    async def start(self) -> str:
        """Starts listening; returns the address."""
        from aiohttp import web

        routes = [
            web.get("/health", self._answers(self._health)),
            web.get("/ready", self._answers(self._ready)),
            web.get("/workers", self._answers(self._list_workers)),
            web.post("/workers", self._answers(self._put_worker)),
            web.patch("/workers/{worker_id}", self._answers(self._patch_worker)),
            web.delete("/workers/{worker_id}", self._answers(self._remove_worker)),
            web.post("/select", self._answers(self._select)),
            web.post("/select_and_reserve", self._answers(self._select_and_reserve)),
            web.post("/reservations", self._answers(self._reserve)),
            web.post("/reservations/{id}/prefill_complete", self._answers(self._prefill_complete)),
            web.post("/reservations/{id}/output_block", self._answers(self._output_block)),
            web.delete("/reservations/{id}", self._answers(self._free)),
            web.get("/loads", self._answers(self._loads)),
        ]
        self._site = BoundedSite(
            self.service,
            self.address,
            self.port,
            routes,
            _MOST_BYTES,
            lambda path: path not in _OPEN_PATHS,
            lambda why: {"error": why},
        )
        address = await self._site.start()
        self.port = self._site.port
        return address

    async def stop(self) -> None:
        """Stops listening; what is held is refused."""
        await self.desk.close()
        if self._site is not None:
            await self._site.stop()

    def _answers(
        self, handler: Callable[[web.Request], Coroutine[Any, Any, tuple[int, Any]]]
    ) -> Callable[[web.Request], Coroutine[Any, Any, web.Response]]:
        """A handler whose refusals are answers in JSON."""
        from aiohttp import web

        async def handle(request: web.Request) -> web.Response:
            self._expire()
            try:
                status, body = await handler(request)
            except _RefusalError as refusal:
                status, body = refusal.status, {"error": str(refusal)}
            except ValueError as error:
                status, body = 400, {"error": str(error)}
            return web.json_response(body, status=status)

        return handle

    # -- workers -------------------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> tuple[int, Any]:
        return 200, {"status": "ok"}

    async def _ready(self, request: web.Request) -> tuple[int, Any]:
        schedulable = sum(worker.complete for worker in self.workers.values())
        listed = [worker.described() for worker in self.workers.values()]
        body = {"ready": schedulable > 0, "schedulable_workers": schedulable, "workers": listed}
        return (200 if schedulable else 503), body

    async def _list_workers(self, request: web.Request) -> tuple[int, Any]:
        return 200, [worker.described() for worker in self.workers.values()]

    async def _put_worker(self, request: web.Request) -> tuple[int, Any]:
        values = await json_object(request)
        worker_id = whole_of(values, "worker_id", None, 2**64 - 1)
        return 201, self._put(worker_id, values)

    async def _patch_worker(self, request: web.Request) -> tuple[int, Any]:
        worker = self._worker_of(request)
        values = {name: value for name, value in (await json_object(request)).items() if value is not None}
        return 200, self._put(worker.record["worker_id"], worker.record | values)

    async def _remove_worker(self, request: web.Request) -> tuple[int, Any]:
        worker = self._worker_of(request)
        del self.workers[worker.record["worker_id"]]
        self._seat()
        return 200, {"ok": True}

    def _worker_of(self, request: web.Request) -> _Worker:
        number = request.match_info["worker_id"]
        if not number.isdecimal() or int(number) not in self.workers:
            raise _RefusalError(404, f"there is no worker {number}")
        return self.workers[int(number)]

    def _put(self, worker_id: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Adds or replaces a worker; returns its record."""
        size = values.get("block_size")
        if size is not None and size != self.block_size:
            raise ValueError(f"block_size must be {self.block_size}, as cluster has it, got {size!r}")
        record = dict(values) | {
            "worker_id": worker_id,
            "model_name": text_of(values, "model_name", _DEFAULT),
            "routing_group": _group(values),
            "data_parallel_start_rank": whole_of(values, "data_parallel_start_rank", 0, 2**16),
            "data_parallel_size": max(whole_of(values, "data_parallel_size", 1, 2**16), 1),
        }
        before = self.workers.get(worker_id)
        self.workers[worker_id] = _Worker(record)
        try:
            self._seat()
        except ValueError:
            del self.workers[worker_id]
            if before is not None:
                self.workers[worker_id] = before
            raise
        return self.workers[worker_id].described()

    def _seat(self) -> None:
        complete = [worker for worker in self.workers.values() if worker.complete]
        self.view.seat([place for worker in complete for place in worker.places])

    # -- selections ----------------------------------------------------------------------------------------------------

    async def _select(self, request: web.Request) -> tuple[int, Any]:
        values = await json_object(request)
        name = text_of(values, "selection_id", "") or None
        choice, key, answer = await self._chosen(values, name, may_wait=not values.get("advisory"))
        place = self._place_at(choice)
        if values.get("advisory"):
            answer["worker_load"] = self._worker_load(choice)
        flight = self.view.withdraw(key)
        if name is not None:
            self._pending.pop(name, None)
            scope = (answer["model_name"], answer["routing_group"])
            self._pending[name] = _Pending(flight, place, scope, time.monotonic() + PENDING_S)
            answer["selection_id"] = name
        return 200, answer

    async def _select_and_reserve(self, request: web.Request) -> tuple[int, Any]:
        values = await json_object(request)
        name = text_of(values, "selection_id", "") or str(uuid.uuid4())
        if name in self._booked:
            raise _RefusalError(409, f"{name} is booked already")
        choice, key, answer = await self._chosen(values, name)
        flight = self.view.withdraw(key)
        if name in self._booked:  # while the policy thought
            raise _RefusalError(409, f"{name} is booked already")
        self._book(name, flight, self._place_at(choice))
        hashes = values.get("sequence_hashes") or flight.hash_ids.tolist()
        more = {
            "sequence_hashes": hashes,
            "isl_tokens": flight.lengths.input_tokens,
            "track_prefill_tokens": True,
        }
        return 200, {"selection_id": name} | more | answer

    async def _chosen(
        self, values: Mapping[str, Any], name: str | None, may_wait: bool = True
    ) -> tuple[Choice, str, dict[str, Any]]:
        """The choice of a place, its name at the view, and what is answered about it."""
        lengths, ids = self._prompt(values)
        model, group = text_of(values, "model_name", _DEFAULT), _group(values)
        key = f"select {name or ''} {uuid.uuid4()}"
        flight = self.view.arrive(key, lengths, ids)
        held = self.view.cached_tokens(flight)
        choice = await self.desk.choose(key, self._allowed(values, model, group), may_wait)
        if choice.place is None:
            raise _RefusalError(choice.status, choice.reason)
        cached = int(held[choice.place])
        worker_id, rank = self._place_at(choice)
        worker = self.workers[worker_id]
        self.service.count("picks", endpoint=str(worker.record["endpoint"]))
        return (
            choice,
            key,
            {
                "model_name": model,
                "routing_group": group,
                "worker_id": worker_id,
                "dp_rank": rank,
                "endpoint": worker.record["endpoint"],
                "block_size": self.block_size,
                "overlap": {
                    "longest_matched": cached,
                    "gpu": cached,
                    "dp": {str(rank): cached},
                    "cpu": cached,
                    "disk": cached,
                },
                "effective_prefill_tokens": lengths.input_tokens - cached,
                "potential_decode_blocks": -(-self.view.context_tokens_at(choice.place) // self.block_size),
            },
        )

    def _prompt(self, values: Mapping[str, Any]) -> tuple[Lengths, NDArray[np.int32]]:
        """Lengths of a prompt, and ids of its blocks."""
        tokens, hashes = values.get("token_ids"), values.get("sequence_hashes")
        for name, listed in (("token_ids", tokens), ("sequence_hashes", hashes)):
            if listed is not None and not (
                isinstance(listed, list) and all(isinstance(value, int) for value in listed)
            ):
                raise ValueError(f"{name} must be a list of whole numbers")
        if tokens is not None:
            number, ids = len(tokens), prefix_ids({"prompt": tokens}, self.block_size)
        else:
            number = whole_of(values, "isl_tokens", None, 2**31 - 1)
            ids = np.array([value & 0x7FFFFFFF for value in hashes or ()], np.int32)
        if number < 1:
            raise ValueError("token_ids is empty: there is nothing to select a worker for")
        predicted = whole_of(values, "expected_output_tokens", 0, 2**31 - 1)
        # Dynamo serves the higher strict priority first, vLLM the lower one
        priority = -whole_of(values, "strict_priority", 0, _HIGHEST_PRIORITY)
        most = predicted or DEFAULT_OUTPUT_TOKENS
        return Lengths(number, most, predicted or None, priority=priority), ids

    def _allowed(self, values: Mapping[str, Any], model: str, group: str) -> list[int]:
        """Places of the model and group that the request may go to."""
        able = [
            place
            for worker in self.workers.values()
            if worker.complete
            and (worker.record["model_name"], worker.record["routing_group"]) == (model, group)
            for place in worker.places
        ]
        only, pinned = values.get("allowed_worker_ids"), values.get("pinned_worker")
        if only is not None:
            if not isinstance(only, list):
                raise ValueError(f"allowed_worker_ids must be a list, got {only!r}")
            able = [place for place in able if place[0] in only]
        if pinned is not None:
            if not isinstance(pinned, dict):
                raise ValueError(f"pinned_worker must have worker_id and dp_rank, got {pinned!r}")
            able = [place for place in able if place == (pinned.get("worker_id"), pinned.get("dp_rank", 0))]
        found = (self.view.place_of(place) for place in able)
        return [place for place in found if place is not None]

    def _place_at(self, choice: Choice) -> Place:
        assert choice.place is not None
        endpoint = self.view.endpoint_at(choice.place)
        assert isinstance(endpoint, tuple)
        return endpoint

    def _worker_load(self, choice: Choice) -> dict[str, Any]:
        assert choice.place is not None
        fleet = self.view.spec.fleet
        return {
            "active_prefill_tokens": self.view.pending_tokens_at(choice.place),
            "prefill_token_capacity": int(fleet.max_num_batched_tokens[choice.place]),
            "total_kv_blocks": int(fleet.kv_capacity_tokens[choice.place]) // self.block_size,
        }

    # -- bookings ------------------------------------------------------------------------------------------------------

    async def _reserve(self, request: web.Request) -> tuple[int, Any]:
        values = await json_object(request)
        name = text_of(values, "selection_id", "")
        if not name:
            raise ValueError("selection_id is missing")
        scope = (text_of(values, "model_name", _DEFAULT), _group(values))
        if name in self._booked:
            raise _RefusalError(409, f"{name} is booked already")
        if values.get("worker_id") is not None:
            place = (whole_of(values, "worker_id", None, 2**64 - 1), whole_of(values, "dp_rank", 0, 2**16))
            lengths, ids = self._prompt(values)
            if self.view.place_of(place) is None:
                raise _RefusalError(404, f"there is no worker {place[0]} with rank {place[1]}")
            self._pending.pop(name, None)
            key = f"reserve {name} {uuid.uuid4()}"
            self.view.arrive(key, lengths, ids)
            self._book(name, self.view.withdraw(key), place)
        else:
            pending = self._pending.get(name)
            if pending is None or pending.scope != scope:
                raise _RefusalError(404, f"no pending selection {name}")
            place = pending.place
            if self.view.place_of(place) is None:
                raise _RefusalError(503, f"worker {place[0]} is gone")
            del self._pending[name]
            self._book(name, pending.flight, place)
        answer = {"selection_id": name, "model_name": scope[0], "routing_group": scope[1]}
        endpoint = self.workers[place[0]].record["endpoint"] if place[0] in self.workers else ""
        return 201, answer | {"worker_id": place[0], "dp_rank": place[1], "endpoint": endpoint}

    def _book(self, name: str, flight: Flight, place: Place) -> None:
        number = self.view.place_of(place)
        if number is None:
            raise _RefusalError(503, f"worker {place[0]} is gone")
        self.view.restore(name, flight)
        self.view.send(name, number)
        self._booked[name] = time.monotonic()

    def _booking(self, request: web.Request) -> str:
        name = request.match_info["id"]
        if name not in self._booked or name not in self.view:
            raise _RefusalError(404, f"there is no reservation {name}")
        return name

    async def _prefill_complete(self, request: web.Request) -> tuple[int, Any]:
        name = self._booking(request)
        self.view.tokens(name, max(self.view.flight(name).generated, 1))
        return 200, {"ok": True}

    async def _output_block(self, request: web.Request) -> tuple[int, Any]:
        name = self._booking(request)
        self.view.tokens(name, self.view.flight(name).generated + self.block_size)
        return 200, {"ok": True}

    async def _free(self, request: web.Request) -> tuple[int, Any]:
        name = self._booking(request)
        del self._booked[name]
        self.view.end(name)
        return 200, {"ok": True}

    async def _loads(self, request: web.Request) -> tuple[int, Any]:
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for worker in self.workers.values():
            for place in worker.places if worker.complete else ():
                number = self.view.place_of(place)
                if number is not None:
                    tokens = self.view.context_tokens_at(number)
                    scope = (worker.record["model_name"], worker.record["routing_group"])
                    groups.setdefault(scope, []).append(
                        {
                            "worker_id": place[0],
                            "dp_rank": place[1],
                            "potential_prefill_tokens": self.view.pending_tokens_at(number),
                            "potential_decode_blocks": -(-tokens // self.block_size),
                        }
                    )
        asked = request.query
        return 200, [
            {
                "model_name": model,
                "routing_group": group,
                "loads": loads,
                "pending_count": 0,
                "pending_isl_tokens": 0,
            }
            for (model, group), loads in groups.items()
            if asked.get("model_name", model) == model and asked.get("routing_group", group) == group
        ]

    def _expire(self) -> None:
        """Forgets selections that nobody books, and bookings that nobody ends."""
        now_s = time.monotonic()
        while self._pending:
            oldest = next(iter(self._pending))
            if self._pending[oldest].until_s > now_s and len(self._pending) <= MOST_PENDING:
                break
            del self._pending[oldest]
        while self._booked:
            oldest = next(iter(self._booked))
            if self._booked[oldest] + EXPIRY_S > now_s:
                break
            del self._booked[oldest]
            self.view.end(oldest, failed=True)
            self.service.count("reservations_expired")


def _group(values: Mapping[str, Any]) -> str:
    """The routing group, which was called `tenant_id` before v1.6."""
    return text_of(values, "routing_group", text_of(values, "tenant_id", _DEFAULT))
