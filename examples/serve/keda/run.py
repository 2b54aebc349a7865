"""Plays keda-operator and its metrics server against the external scaler, without a cluster.

    python examples/serve/keda/run.py

It calls what KEDA calls: `GetMetricSpec` for the HorizontalPodAutoscaler that it owns, `IsActive` at its polling
interval, `GetMetrics` when the autoscaler asks, and it follows `StreamIsActive`. At last there is no load: the policy
wants no replica, and KEDA, whose `minReplicaCount` is 0, goes to none; then requests wait in front, and it starts the
first.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from serving_gym.runners.serving.proto import externalscaler_pb2 as pb

sys.path.insert(0, str(Path(__file__).parent.parent))
from played import Deployment, asked, header, load, row, served

TICK_S = 0.25
TICKS = 48
POLICY = (
    "env.min_instances=0",
    "policy.params.period_s=0.5",
    "policy.params.polling_s=0.5",
    "policy.params.cooldown_s=1",
    "policy.params.in_stabilization_s=1",
)
_ANSWERS = {
    "IsActive": pb.IsActiveResponse,
    "StreamIsActive": pb.IsActiveResponse,
    "GetMetricSpec": pb.GetMetricSpecResponse,
    "GetMetrics": pb.GetMetricsResponse,
}


def call(channel: grpc.Channel, method: str, request: Any) -> Any:
    """Calls a method of the external scaler."""
    make = channel.unary_stream if method.startswith("Stream") else channel.unary_unary
    stub = make(
        f"/externalscaler.ExternalScaler/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=_ANSWERS[method].FromString,
    )
    return stub(request, timeout=60 if method.startswith("Stream") else 5)


def replicas_by_hpa(present: int, value: float, target: float) -> int:
    """What the HorizontalPodAutoscaler sets for an external metric with `AverageValue` and a tolerance of 0."""
    return present if value == target * present else math.ceil(value / target)


def follow(channel: grpc.Channel, ref: Any, pushed: list[bool]) -> None:
    """Notes what `StreamIsActive` pushes, until the server ends."""
    try:
        pushed.extend(answer.result for answer in call(channel, "StreamIsActive", ref))
    except grpc.RpcError as error:
        if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            raise


def requests_per_s(tick: int) -> float:
    """Few, many, few, none, some."""
    return 0.0 if 26 <= tick < 40 else load(tick)


def main() -> int:
    """Plays; returns the number of rounds in which KEDA would set another number than the policy wants."""
    deployment, wrong, pushed = Deployment(served_rps=4.0), 0, []  # type: ignore[var-annotated]
    ref = pb.ScaledObjectRef(name="llama", namespace="default", scalerMetadata={"scalerAddress": "played"})
    protocols, words = ["external_metrics", "keda"], ("scaling.target=default/llama", *POLICY)
    with served("keda_epp", protocols, *words) as at, grpc.insecure_channel(at["keda"]) as channel:
        (spec,) = call(channel, "GetMetricSpec", ref).metricSpecs
        stream = threading.Thread(target=follow, args=(channel, ref, pushed))
        stream.start()
        header("second", "rps", "waiting", "ready", "active", "metric", "KEDA sets")
        for tick in range(TICKS):
            rps = requests_per_s(tick)
            deployment.tick(rps * TICK_S, TICK_S)
            asked(f"{at['external_metrics']}/v1/readings", deployment.readings(rps))
            active, value, wanted = "-", "-", deployment.wanted
            try:
                active = call(channel, "IsActive", ref).result
                metrics = call(
                    channel,
                    "GetMetrics",
                    pb.GetMetricsRequest(scaledObjectRef=ref, metricName=spec.metricName),
                )
                value = metrics.metricValues[0].metricValueFloat
                wanted = keda_sets(deployment.wanted, active, value, spec.targetSizeFloat)
                wrong += wanted != value and not (
                    value > 1 and deployment.wanted == 0
                )  # from 0 KEDA goes to 1 first
            except grpc.RpcError as error:  # no decision yet: KEDA leaves all as it is
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
            row(tick * TICK_S, rps, deployment.waiting, len(deployment.pods), str(active), value, wanted)
            deployment.scale(wanted)
            time.sleep(TICK_S)
    stream.join()
    print(f"StreamIsActive pushed {pushed}")
    print(f"{wrong} of {TICKS} rounds in which KEDA sets another number than the policy wants")
    return wrong


def keda_sets(present: int, active: bool, value: float, target: float) -> int:
    """What KEDA sets: between none and one itself, above by its HorizontalPodAutoscaler, which keeps at least one."""
    if not active:
        return 0
    return max(replicas_by_hpa(present, value, target), 1) if present else 1


if __name__ == "__main__":
    sys.exit(main())
