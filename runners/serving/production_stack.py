"""Any routing policy as the routing logic of vLLM's production-stack.

    from vllm_router.routers import routing_logic
    from serving_gym.runners.serving.production_stack import ProductionStackRouting

    class Router(ProductionStackRouting, routing_logic.SessionRouter):
        words = ("policy=zoo/routing", "cluster=fleet_h100_x4")

    routing_logic.SessionRouter = Router  # before vllm_router.app is imported
    from vllm_router.app import main
    main()

and `--routing-logic session --session-key x-user-id`. The stack has no hook for a routing logic of others; it hands the
body of a request to `SessionRouter` and two more, which is why this stands in its place.

Gauges are the stack's own (`--engine-stats-interval`, 10 s). It tells how many requests each engine has, and how many
of them have no token yet, but not which: the oldest are taken to have ended (`Placement.reconcile`).

Source: vllm-project/production-stack, src/vllm_router/routers/routing_logic.py (008a23b, 2026), `RoutingInterface`,
and services/request_service/request.py, `route_general_request`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from serving_gym.envs.live.gauges import Gauges
from serving_gym.envs.live.scraper import Reading
from serving_gym.runners.serving.openai_requests import lengths_of, prefix_ids
from serving_gym.runners.serving.placement import Placement


class ProductionStackRouting:
    """A `RoutingInterface` of the production-stack, to be mixed into its `SessionRouter`.

    Args:
        session_key: As of `SessionRouter`; the stack logs it.
    """

    words: ClassVar[Sequence[str]] = ()

    def __init__(self, session_key: str | None = None) -> None:
        self.session_key = session_key
        self.placement = Placement(self.words)
        self._initialized = True  # of the stack's singletons

    async def route_request(
        self,
        endpoints: Sequence[Any],
        engine_stats: Mapping[str, Any],
        request_stats: Mapping[str, Any],
        request: Any,
        request_json: Mapping[str, Any],
    ) -> str:
        """Address of the engine that takes a request.

        Args:
            endpoints: `EndpointInfo`s of the engines that serve its model.
            engine_stats: `EngineStats` by address.
            request_stats: `RequestStats` by address.
            request: The request of FastAPI.
            request_json: Its body.

        Raises:
            ValueError: there are more engines than places, or none that can take the request.
        """
        placement, allowed = self.placement, [str(endpoint.url) for endpoint in endpoints]
        known = list(dict.fromkeys([*engine_stats, *allowed]))  # the endpoints are those of one model
        placement.view.seat(known)
        placement.drop(known)
        for address in known:
            self._read(address, engine_stats.get(address), request_stats.get(address))
        _, chosen = placement.place(known, lengths_of(request_json), prefix_ids(request_json), allowed)
        return str(chosen)

    def _read(self, address: str, engine: Any, requests: Any) -> None:
        """Takes what the stack knows of an engine; either may be missing."""
        placement = self.placement
        if requests is not None:
            in_prefill = max(int(requests.in_prefill_requests), 0)
            in_decoding = max(int(requests.in_decoding_requests), 0)
            placement.reconcile(address, in_prefill + in_decoding, in_prefill)
        if engine is None:
            placement.view.read(address, None)
            return
        usage = float(engine.gpu_cache_usage_perc)
        gauges = Gauges(
            num_running=max(int(engine.num_running_requests), 0),
            num_waiting=max(int(engine.num_queuing_requests), 0),
            kv_usage_ratio=usage if 0 <= usage <= 1 else None,
            preemptions=None,
            prompt_tokens=None,
            generation_tokens=None,
        )
        place = placement.view.place_of(address)
        own = 0 if place is None else placement.view.requests_at(place)
        placement.view.read(address, Reading(gauges, time.monotonic(), own))
