"""Protocols by which a policy is served: a listener class each, imported when it is asked for (`listeners`)."""

from __future__ import annotations

# Listener class of each protocol, `module:class`.
PROTOCOLS = {
    "http": "runners.serving.server:HttpListener",
    "grpc": "runners.serving.grpc_policy:GRPCPolicy",
    "external_metrics": "runners.serving.external_metrics:ExternalMetricsListener",
    "keda": "runners.serving.keda:KEDAListener",
    "aibrix": "runners.serving.aibrix:AIBrixListener",
    "dynamo_planner": "runners.serving.dynamo_planner:DynamoPlannerListener",
    "dynamo_router": "runners.serving.dynamo_router:DynamoRouter",
    "endpoint_picker": "runners.serving.endpoint_picker:EndpointPicker",
    "latency_predictor": "runners.serving.latency_predictor:LatencyPredictor",
}

# Those that read servers themselves: gauges of `backend.endpoints`.
READ_SERVERS = ("endpoint_picker", "external_metrics", "keda", "aibrix", "dynamo_planner")
