"""KEDA's external scaler: a ScaledObject gets the number of replicas that an autoscaling policy wants.

`GetMetricSpec` names a metric with the target 1 a replica, and `GetMetrics` answers with the number that is wanted, so
that the HorizontalPodAutoscaler that KEDA owns sets just that number. `IsActive` is false where the policy wants none,
which it can only where none are allowed (`scaling.min_replicas`, else `env.min_instances`); KEDA then goes to 0.
`StreamIsActive` (trigger `external-push`) says so at once. While there is no decision the answer is UNAVAILABLE, and
KEDA leaves all as it is or follows its `fallback`. With `scaling.tls_*` it speaks TLS (`enableTLS` of the trigger).

Contract: `externalscaler.proto` of KEDA 2.20 and later; metric names and values as in its `external_scaler.go`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from serving_gym.runners.serving.grpc_methods import GRPCServer, Method, check_grpc
from serving_gym.runners.serving.scaling_control import ScalingControl

if TYPE_CHECKING:
    from serving_gym.runners.serving.scaling_settings import ScalingSettings
    from serving_gym.runners.serving.service import PolicyService

SERVICE = "externalscaler.ExternalScaler"


class KEDAListener:
    """The external scaler.

    Args:
        service: The served policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.

    Raises:
        ValueError: gRPC is missing, or a setting is impossible.
    """

    environments: ClassVar[tuple[str, ...]] = ("autoscaling",)
    default_port: ClassVar[int] = 8320

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        check_grpc("keda")
        from serving_gym.runners.serving.proto import externalscaler_pb2 as pb

        self.service, self.control = service, ScalingControl.of(service)
        ref = pb.ScaledObjectRef
        methods = {
            "IsActive": Method(self._is_active, ref, pb.IsActiveResponse),
            "StreamIsActive": Method(self._stream_is_active, ref, pb.IsActiveResponse, streams=True),
            "GetMetricSpec": Method(self._metric_spec, ref, pb.GetMetricSpecResponse),
            "GetMetrics": Method(self._metrics, pb.GetMetricsRequest, pb.GetMetricsResponse),
        }
        certificate = pem_of(self.control.settings)
        self._server = GRPCServer({SERVICE: methods}, address, port, certificate=certificate)

    async def start(self) -> str:
        """Starts listening; returns the address."""
        where = await self._server.start()
        await self.control.start()
        return where

    async def stop(self) -> None:
        """Stops listening."""
        await self.control.stop()
        await self._server.stop()

    async def _check(self, asked: Any, context: Any) -> None:
        """Ends the call unless it is about the target."""
        import grpc

        self.service.count("keda_requests")
        if not self.control.about(asked.namespace, asked.name):
            message = f"scaling.target is {self.control.settings.target}, not {asked.namespace}/{asked.name}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)

    async def _desired(self, context: Any) -> int:
        """Replicas that are wanted; ends the call where there is no decision yet."""
        import grpc

        if self.control.decision is None:
            message = f"there is no decision yet: {self.control.problem}"
            await context.abort(grpc.StatusCode.UNAVAILABLE, message)
        assert self.control.decision is not None
        return self.control.decision.desired

    async def _is_active(self, asked: Any, context: Any) -> Any:
        from serving_gym.runners.serving.proto import externalscaler_pb2 as pb

        await self._check(asked, context)
        return pb.IsActiveResponse(result=await self._desired(context) > 0)

    async def _stream_is_active(self, asked: Any, context: Any) -> AsyncIterator[Any]:
        from serving_gym.runners.serving.proto import externalscaler_pb2 as pb

        await self._check(asked, context)
        desired: int | None = None
        told: bool | None = None
        while True:
            desired = await self.control.changed(desired)
            if (active := desired > 0) != told:
                told = active
                yield pb.IsActiveResponse(result=active)

    async def _metric_spec(self, asked: Any, context: Any) -> Any:
        from serving_gym.runners.serving.proto import externalscaler_pb2 as pb

        await self._check(asked, context)
        spec = pb.MetricSpec(metricName=self.control.settings.metric, targetSize=1, targetSizeFloat=1.0)
        return pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def _metrics(self, asked: Any, context: Any) -> Any:
        import grpc

        from serving_gym.runners.serving.proto import externalscaler_pb2 as pb

        await self._check(asked.scaledObjectRef, context)
        name = self.control.settings.metric
        if asked.metricName != name:
            message = f"there is no metric {asked.metricName!r}, only {name}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        desired = await self._desired(context)
        value = pb.MetricValue(metricName=name, metricValue=desired, metricValueFloat=float(desired))
        return pb.GetMetricsResponse(metricValues=[value])


def pem_of(settings: ScalingSettings) -> tuple[bytes, bytes, bytes | None] | None:
    """Key, certificate and authority of `scaling.tls_*`; None: no TLS.

    Raises:
        ValueError: A file cannot be read.
    """
    if settings.tls_key is None or settings.tls_certificate is None:
        return None
    paths = settings.tls_key, settings.tls_certificate, settings.tls_client_ca
    try:
        key, certificate, authority = (None if path is None else Path(path).read_bytes() for path in paths)
    except OSError as error:
        raise ValueError(f"scaling.tls_*: {error.filename} cannot be read: {error.strerror}") from None
    assert key is not None
    assert certificate is not None
    return key, certificate, authority
