"""gRPC's health checking service (grpc/health/v1/health.proto): `Check` and `Watch`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from serving_gym.runners.serving.proto import health_pb2 as pb

if TYPE_CHECKING:
    import grpc

SERVICE = "grpc.health.v1.Health"
_LOOK_EVERY_S = 0.5


def health_handler(
    services: Mapping[str, bool | None], is_ready: Callable[[], bool]
) -> grpc.GenericRpcHandler:
    """The service's handler.

    Args:
        services: Names of services with their health; None: that of `is_ready`.
        is_ready: Whether the process can serve requests.
    """
    import grpc

    def status_of(name: str) -> pb.HealthCheckResponse.ServingStatus:
        if name not in services:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        healthy = services[name]
        healthy = is_ready() if healthy is None else healthy
        return pb.HealthCheckResponse.SERVING if healthy else pb.HealthCheckResponse.NOT_SERVING

    async def check(request: pb.HealthCheckRequest, context: Any) -> pb.HealthCheckResponse:
        status = status_of(request.service)
        if status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r}")
        return pb.HealthCheckResponse(status=status)

    async def watch(request: pb.HealthCheckRequest, context: Any) -> AsyncIterator[pb.HealthCheckResponse]:
        told: pb.HealthCheckResponse.ServingStatus | None = None
        while True:
            status = status_of(request.service)
            if status != told:
                told = status
                yield pb.HealthCheckResponse(status=status)
            await asyncio.sleep(_LOOK_EVERY_S)

    encode, decode = pb.HealthCheckResponse.SerializeToString, pb.HealthCheckRequest.FromString
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Check": grpc.unary_unary_rpc_method_handler(check, decode, encode),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, decode, encode),
        },
    )
