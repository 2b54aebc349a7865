"""Plays the planner of NVIDIA Dynamo against the plug-in, without Dynamo.

    python examples/serve/dynamo_planner/run.py

Each tick it observes the traffic and the engines, calls the stages predict, propose, reconcile and constrain in their
order, merges the answers as the planner does (SET by priority, then AT_MOST, then AT_LEAST) and sets the engines.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import grpc

from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

sys.path.insert(0, str(Path(__file__).parent.parent))
from played import Deployment, header, load, row, served

TICK_S = 0.25
TICKS = 40
WINDOW_S = 2.0  # observation_window_seconds
PACKAGE = "dynamo.planner.plugin.v1"


def call(channel: grpc.Channel, stage: str, request: Any) -> Any:
    """Calls a stage of the plug-in."""
    stub = channel.unary_unary(
        f"/{PACKAGE}.{stage}Plugin/{stage}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=getattr(pb, f"{stage}StageResponse").FromString,
    )
    return stub(request, timeout=5)


def observed(deployment: Deployment, tick: int) -> Any:
    """What the planner observes: requests of the last window, and engines."""
    first = max(tick - round(WINDOW_S / TICK_S) + 1, 0)
    requests = sum(load(each) * TICK_S for each in range(first, tick + 1))
    duration_s = (tick - first + 1) * TICK_S
    traffic = pb.TrafficMetrics(
        duration_s=duration_s, num_req=requests, isl=deployment.prompt_tokens, osl=100.0
    )
    workers = pb.WorkerState(ready_decode=len(deployment.pods), expected_decode=deployment.wanted)
    return pb.ObservationData(traffic=traffic, workers=workers)


def merged(baseline: int, *overrides: Any) -> int:
    """Engines after a merge (`plugins/merge/type_aware.py`), the first SET being that of the best priority."""
    targets = [target for override in overrides for target in override.targets]
    wanted = next((target.replicas for target in targets if target.type == pb.SET), baseline)
    ceiling = min((target.replicas for target in targets if target.type == pb.AT_MOST), default=wanted)
    floor = max((target.replicas for target in targets if target.type == pb.AT_LEAST), default=0)
    return max(floor, min(ceiling, wanted))


def main(policy: str = "hpa_rate", mode: str = "live") -> int:
    """Plays; returns the number of ticks at which a stage answers nothing, or the merge is not what it proposes."""
    deployment, wrong = Deployment(prompt_tokens=6000.0), 0
    words = ("scaling.without=[gauges]", "policy.params.sync_s=0.5", "policy.params.in_stabilization_s=1.5")
    with (
        served(policy, ["dynamo_planner"], "policy.params.rate_window_s=2", *words, f"mode={mode}") as at,
        grpc.insecure_channel(at["dynamo_planner"].removeprefix("grpc://")) as channel,
    ):
        header("second", "rps", "ready", "propose", "floor", "ceiling", "sets")
        for tick in range(TICKS):
            deployment.tick(load(tick) * TICK_S, TICK_S)
            context = pb.PipelineContext(request_id=f"tick-{tick}", observations=observed(deployment, tick))
            predicted = call(channel, "Predict", pb.PredictStageRequest(context=context))
            proposed = call(channel, "Propose", pb.ProposeStageRequest(context=context))
            proposals = [pb.ProposeResult(plugin_id="serving-gym", override=proposed.override)]
            reconciled = call(
                channel, "Reconcile", pb.ReconcileStageRequest(context=context, proposals=proposals)
            )
            constrained = call(channel, "Constrain", pb.ConstrainStageRequest(context=context))
            stages = (proposed, reconciled, constrained)
            wrong += any(stage.WhichOneof("result") is None for stage in stages)
            wrong += not predicted.HasField("predictions") and not predicted.reason
            wanted = merged(deployment.wanted, reconciled.override, constrained.override)
            said = [target.replicas for target in proposed.override.targets]
            wrong += bool(said) and wanted != said[0]
            bounds = [target.replicas for target in constrained.override.targets]
            shown = said[0] if said else "accept"
            row(tick * TICK_S, load(tick), len(deployment.pods), shown, *(bounds or ("-", "-")), wanted)
            deployment.scale(wanted)
            time.sleep(TICK_S)
    print(f"{wrong} of {TICKS} ticks at which a stage answers nothing, or the merge is not what it proposes")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
