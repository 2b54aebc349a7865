"""Kubernetes' external metrics API, for a HorizontalPodAutoscaler; and the same number as a gauge and as JSON.

    GET  /apis/external.metrics.k8s.io/v1beta1                              the metrics there are
    GET  /apis/external.metrics.k8s.io/v1beta1/namespaces/NAMESPACE/METRIC  an ExternalMetricValueList
    GET  /metrics                 a page for Prometheus, with the gauge `desired_replicas`
    GET  /v1/desired_replicas     JSON, also for KEDA's metrics-api scaler
    POST /v1/readings             readings of replicas
    GET  /healthz

The metric is the number of replicas that the policy wants, so that a HorizontalPodAutoscaler with `AverageValue: 1`
sets just that number. While there is no decision the answers are 503, and the autoscaler leaves all as it is. What lies
below `/v1/` needs the token of `token_file`, if there is one; the API server sends none, but a certificate
(`scaling.tls_client_ca`).

Form: `k8s.io/metrics/pkg/apis/external_metrics/v1beta1` and `kubernetes-sigs/custom-metrics-apiserver`, as of
Kubernetes 1.35.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from serving_gym.runners.serving.bounded_site import BoundedSite
from serving_gym.runners.serving.json_body import json_object
from serving_gym.runners.serving.scaling_control import ScalingControl

if TYPE_CHECKING:
    from aiohttp import web

    from serving_gym.runners.serving.service import PolicyService

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
GROUP_VERSION = f"{GROUP}/{VERSION}"
_SET = re.compile(r"\s*([\w./-]+)\s+(in|notin)\s+\(([^()]*)\)\s*")
_EQUAL = re.compile(r"\s*([\w./-]+)\s*(==|=|!=)\s*([\w.-]*)\s*")
_BODY_BYTES = 4 * 2**20  # longest body
_EXISTS = re.compile(r"\s*(!?)\s*([\w./-]+)\s*")


class ExternalMetricsListener:
    """The external metrics API.

    Args:
        service: The served policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.

    Raises:
        ValueError: A setting is impossible, or a file of the certificate cannot be read.
    """

    environments: ClassVar[tuple[str, ...]] = ("autoscaling",)
    default_port: ClassVar[int] = 8310

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        self.service, self.control = service, ScalingControl.of(service)
        self._address, self._port = address, port
        self._context = server_context(self.control.settings)
        self._http: BoundedSite | None = None

    async def start(self) -> str:
        """Starts listening; returns the address."""
        from aiohttp import web

        api = f"/apis/{GROUP_VERSION}"
        gets = {
            "/apis": self._groups,
            f"/apis/{GROUP}": self._group,
            api: self._resources,
            api + "/namespaces/{namespace}/{metric}": self._values,
            "/metrics": self._page,
            "/v1/desired_replicas": self._json,
            **dict.fromkeys(("/healthz", "/livez", "/readyz"), self._health),
        }
        routes = [web.get(path, handler) for path, handler in gets.items()]
        self._http = BoundedSite(
            self.service,
            self._address,
            self._port,
            [web.post("/v1/readings", self._readings), *routes],
            _BODY_BYTES,
            lambda path: path.startswith("/v1/"),
            lambda why: {"error": why},
            context=self._context,
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

    async def _groups(self, request: web.Request) -> web.Response:
        return _json({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group()]})

    async def _group(self, request: web.Request) -> web.Response:
        return _json({"kind": "APIGroup", "apiVersion": "v1", **_group()})

    async def _resources(self, request: web.Request) -> web.Response:
        resource = {
            "name": self.control.settings.metric,
            "singularName": "",
            "namespaced": True,
            "kind": "ExternalMetricValueList",
            "verbs": ["get"],
        }
        return _json(
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": GROUP_VERSION,
                "resources": [resource],
            }
        )

    async def _values(self, request: web.Request) -> web.Response:
        self.service.count("external_metrics_requests")
        control, asked = self.control, request.match_info
        if asked["metric"] != control.settings.metric:
            return failure(
                404, "NotFound", f"there is no metric {asked['metric']}, only {control.settings.metric}"
            )
        labels = self._labels()
        try:
            meant = selects(request.query.get("labelSelector", ""), labels)
        except ValueError as error:
            return failure(400, "BadRequest", str(error))
        if not meant or not control.about(asked["namespace"]):
            return _json(_list([]))
        if control.decision is None:
            return failure(503, "ServiceUnavailable", f"there is no decision yet: {control.problem}")
        at = datetime.fromtimestamp(control.decision.at_s, UTC)
        value = {
            "metricName": control.settings.metric,
            "metricLabels": labels,
            "timestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "value": str(control.decision.desired),
        }
        return _json(_list([value]))

    def _labels(self) -> dict[str, str]:
        """Labels of the metric."""
        _, _, name = self.control.settings.target_parts
        return {"policy": self.control.name} | ({"target": name} if name else {})

    async def _page(self, request: web.Request) -> web.Response:
        return prometheus_page(self.service)

    async def _json(self, request: web.Request) -> web.Response:
        found = self.control.as_json()
        return _json(found, 200 if found["desired_replicas"] is not None else 503)

    async def _readings(self, request: web.Request) -> web.Response:
        try:
            await self.control.post(await json_object(request))
        except ValueError as error:
            return _json({"error": str(error)}, 400)
        return _json(self.control.as_json())

    async def _health(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(text="ok")


def server_context(settings: Any) -> ssl.SSLContext | None:
    """TLS of a server by `scaling.tls_*`; None: none.

    Raises:
        ValueError: A file cannot be read.
    """
    if settings.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=None)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"scaling.tls_certificate={settings.tls_certificate} and scaling.tls_key={settings.tls_key} "
            f"cannot be used: {error}"
        ) from None
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(
                f"scaling.tls_client_ca={settings.tls_client_ca} cannot be used: {error}"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def prometheus_page(service: PolicyService) -> web.Response:
    """The service's page for Prometheus."""
    from aiohttp import web
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return web.Response(body=generate_latest(service.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether a label selector of Kubernetes selects labels.

    Args:
        selector: As `a=b,c!=d,e in (f,g),h,!i`; empty: all.
        labels: By name.

    Raises:
        ValueError: It is none.
    """
    rest, met = selector, True
    while rest.strip():
        for pattern in (_SET, _EQUAL, _EXISTS):
            found = pattern.match(rest)
            if found is not None and (not rest[found.end() :] or rest[found.end()] == ","):
                break
        else:
            raise ValueError(f"labelSelector {selector!r} is not understood")
        met = met and _met(pattern, found, labels)
        rest = rest[found.end() + 1 :]
    return met


def _met(pattern: re.Pattern[str], found: re.Match[str], labels: Mapping[str, str]) -> bool:
    if pattern is _SET:
        name, operator, values = found.groups()
        chosen = labels.get(name) in [value.strip() for value in values.split(",")]
        return chosen if operator == "in" else not chosen
    if pattern is _EQUAL:
        name, operator, value = found.groups()
        return (labels.get(name) == value) != (operator == "!=")
    absent, name = found.groups()
    return (name in labels) != bool(absent)


def failure(status: int, reason: str, message: str) -> web.Response:
    """A failure in the form of the API."""
    return _json(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": status,
        },
        status,
    )


def _group() -> dict[str, Any]:
    version = {"groupVersion": GROUP_VERSION, "version": VERSION}
    return {"name": GROUP, "versions": [version], "preferredVersion": version}


def _list(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items}


def _json(body: Any, status: int = 200) -> web.Response:
    from aiohttp import web

    return web.json_response(body, status=status)
