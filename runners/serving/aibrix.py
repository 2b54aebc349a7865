"""AIBrix' external metric source: a PodAutoscaler gets the number of replicas that an autoscaling policy wants.

    GET /metrics/NAMESPACE/DEPLOYMENT    vllm:deployment_replicas{model_name="..."} N, as AIBrix' GPU optimizer answers
    GET /metrics                         the same

With `targetValue: "1"` the strategies KPA and APA come to N. While there is no decision the answer is 503, and the
autoscaler leaves all as it is.

Contract: AIBrix 0.7, `python/aibrix/aibrix/gpu_optimizer/app.py` (the answer) and `pkg/metrics/engine_fetcher.go` (what
is asked). Its 0.5 to 0.7 ask `/metrics` whatever `path` says, and refuse the metric by its name (issue 2615 of
vllm-project/aibrix, mended in August 2026); there `metricSourceType: external` without `endpoint` reads
`runners.serving.external_metrics` in place of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from serving_gym.runners.serving.bounded_site import BoundedSite
from serving_gym.runners.serving.scaling_control import ScalingControl

if TYPE_CHECKING:
    from aiohttp import web

    from serving_gym.runners.serving.service import PolicyService

METRIC = "vllm:deployment_replicas"
_BODY_BYTES = 4096  # longest body; there is none


class AIBrixListener:
    """The metric source.

    Args:
        service: The served policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.

    Raises:
        ValueError: A setting is impossible.
    """

    environments: ClassVar[tuple[str, ...]] = ("autoscaling",)
    default_port: ClassVar[int] = 8330

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        self.service, self.control = service, ScalingControl.of(service)
        self._model = self.control.view.spec.endpoints[0].model
        self._address, self._port = address, port
        self._http: BoundedSite | None = None

    async def start(self) -> str:
        """Starts listening; returns the address."""
        from aiohttp import web

        paths = ("/metrics", "/metrics/{namespace}/{deployment}")
        self._http = BoundedSite(
            self.service,
            self._address,
            self._port,
            [web.get(path, self._replicas) for path in paths],
            _BODY_BYTES,
            lambda path: False,
            lambda why: {"error": why},
            bounds_handlers=True,
        )
        where = await self._http.start()
        await self.control.start()
        return where

    async def stop(self) -> None:
        """Stops listening."""
        await self.control.stop()
        if self._http is not None:
            await self._http.stop()

    async def _replicas(self, request: web.Request) -> web.Response:
        from aiohttp import web

        self.service.count("aibrix_requests")
        asked, control = request.match_info, self.control
        if asked and not control.about(asked["namespace"], asked["deployment"]):
            message = (
                f"scaling.target is {control.settings.target}, not {asked['namespace']}/{asked['deployment']}"
            )
            return web.json_response({"error": message}, status=404)
        if control.decision is None:
            return web.json_response({"error": f"there is no decision yet: {control.problem}"}, status=503)
        text = (
            f"# HELP {METRIC} Number of suggested replicas.\n"
            f"# TYPE {METRIC} gauge\n"
            f'{METRIC}{{model_name="{self._model}"}} {control.decision.desired}\n'
        )
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
