"""An API server of Kubernetes that has EndpointSlices and scales, and can have every mishap."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

TOKEN = "secret"


def endpoint(address: str, name: str = "", **conditions: bool | None) -> dict[str, object]:
    """An endpoint of a slice."""
    return {
        "addresses": [address],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": name or f"pod-{address}"},
    }


def slice_of(
    service: str, endpoints: list[dict[str, object]], port: int = 8000, name: str = "http", kind: str = "IPv4"
) -> dict[str, object]:
    """An EndpointSlice."""
    return {
        "metadata": {"name": f"{service}-abcde", "labels": {"kubernetes.io/service-name": service}},
        "addressType": kind,
        "endpoints": endpoints,
        "ports": [{"name": name, "port": port, "protocol": "TCP"}],
    }


@dataclass
class FakeKubernetes:
    """The server; `async with`.

    Attributes:
        account: Folder that the token is put into.
        slices: By namespace.
        replicas: `spec.replicas` by "NAMESPACE/deployments/NAME".
        status: HTTP status that it answers with.
        body: What it answers in place of the truth.
        tokens: Those it was shown.
    """

    account: Path
    slices: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    status: int = 200
    body: bytes | None = None
    tokens: list[str] = field(default_factory=list)

    async def __aenter__(self) -> FakeKubernetes:
        (self.account / "token").write_text(f"{TOKEN}\n")
        app = web.Application()
        app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", self._slices)
        app.router.add_get("/apis/apps/v1/namespaces/{namespace}/{kind}/{name}/scale", self._scale)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def _answer(self, request: web.Request, truth: dict[str, object] | None) -> web.Response:
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.body is not None:
            return web.Response(body=self.body, status=self.status)
        if self.tokens[-1] != f"Bearer {TOKEN}":
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        if truth is None:
            return web.json_response({"kind": "Status", "message": "not found"}, status=404)
        return web.Response(text=json.dumps(truth), status=self.status, content_type="application/json")

    async def _slices(self, request: web.Request) -> web.Response:
        label, service = request.query["labelSelector"].split("=")
        items = [
            entry
            for entry in self.slices.get(request.match_info["namespace"], [])
            if entry["metadata"]["labels"].get(label) == service  # type: ignore[index]
        ]
        return self._answer(request, {"kind": "EndpointSliceList", "items": items})

    async def _scale(self, request: web.Request) -> web.Response:
        about = request.match_info
        wanted = self.replicas.get(f"{about['namespace']}/{about['kind']}/{about['name']}")
        truth = None if wanted is None else {"kind": "Scale", "spec": {"replicas": wanted}}
        return self._answer(request, truth)
