"""Plug-in of NVIDIA Dynamo's planner: an autoscaling policy proposes the number of engines of a component.

The planner calls at each tick the stages that it has the plug-in registered for:

    predict     requests and lengths of the next window by the environment's forecast, from an hour of traffic on
    propose     SET: the number that the policy wants
    reconcile   the same, in place of what others proposed
    constrain   AT_LEAST and AT_MOST: the bounds

What the planner observes is what the policy sees: engines that are ready and expected, and requests and mean lengths in
a window. It tells no gauges of engines; they come from `scaling.replicas`, or the policy reads none
(`scaling.without=[gauges]`). Where there is no decision the plug-in accepts, which is no opinion. With `mode=shadow` it
always accepts, and the log has what it would have said: advisory. The planner's configuration names the plug-in, or the
plug-in registers itself (`scaling.registry`).

Contract: protocol 1.0 of `dynamo.planner.plugin.v1` in Dynamo 1.5 (2026),
`components/src/dynamo/planner/plugins/proto/v1/plugin.proto` at 0a756f2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from serving_gym.envs.autoscaling.forecast import HOUR_S, forecast_tps
from serving_gym.envs.live.discovery import Found
from serving_gym.envs.live.endpoints import is_loopback
from serving_gym.runners.serving.dynamo_registration import DynamoRegistration
from serving_gym.runners.serving.grpc_methods import GRPCServer, Method, check_grpc
from serving_gym.runners.serving.scaling_control import ScalingControl

if TYPE_CHECKING:
    from serving_gym.runners.serving.service import PolicyService

PACKAGE = "dynamo.planner.plugin.v1"
SOURCE = "serving-gym"
_MOST_ENGINES = 4096


class DynamoPlannerListener:
    """The plug-in.

    Args:
        service: The served policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.

    Raises:
        ValueError: gRPC is missing, or a setting is impossible.
    """

    environments: ClassVar[tuple[str, ...]] = ("autoscaling",)
    default_port: ClassVar[int] = 8340

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        check_grpc("dynamo_planner")
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        self.service, self.control = service, ScalingControl.of(service)
        self._component = self.control.settings.component
        registry = self.control.settings.registry
        if registry is not None and not registry.startswith("unix:") and not service.config.allow_remote:
            host = registry.removeprefix("grpc://").rpartition(":")[0].strip("[]")
            if not is_loopback(host):
                raise ValueError(
                    f"scaling.registry={registry} is beyond loopback; allow it with allow_remote=true"
                )
        self._tick = ""
        self._registration: DynamoRegistration | None = None
        stages = {
            "Predict": Method(self._predict, pb.PredictStageRequest, pb.PredictStageResponse),
            "Propose": Method(self._propose, pb.ProposeStageRequest, pb.ProposeStageResponse),
            "Reconcile": Method(self._reconcile, pb.ReconcileStageRequest, pb.ReconcileStageResponse),
            "Constrain": Method(self._constrain, pb.ConstrainStageRequest, pb.ConstrainStageResponse),
        }
        services = {f"{PACKAGE}.{name}Plugin": {name: method} for name, method in stages.items()}
        services[f"{PACKAGE}.PluginLifecycle"] = {
            "Bootstrap": Method(self._bootstrap, pb.BootstrapRequest, pb.BootstrapResponse),
            "Reset": Method(self._reset, pb.ResetRequest, pb.ResetResponse),
        }
        self._server = GRPCServer(services, address, port)

    async def start(self) -> str:
        """Starts listening; returns the address."""
        where, settings = f"grpc://{await self._server.start()}", self.control.settings
        await self.control.start()
        if settings.registry is not None:
            reached = settings.endpoint or where
            self._registration = DynamoRegistration(self.service, settings.registry, reached, settings.stages)
            self._registration.start()
        return where

    async def stop(self) -> None:
        """Stops listening."""
        if self._registration is not None:
            await self._registration.stop()
        await self.control.stop()
        await self._server.stop()

    async def _observe(self, context: Any) -> None:
        """Takes what the planner observes, once a tick, and asks the policy where it is due."""
        if context.request_id and context.request_id == self._tick:
            return
        self._tick = context.request_id
        self.control.begin()
        self.service.count("dynamo_ticks")
        observed, replicas = context.observations, self.control.replicas
        ready = _counted(observed.workers, f"ready_{self._component}")
        expected = _counted(observed.workers, f"expected_{self._component}")
        if expected is not None or ready is not None:
            replicas.wanted = max(n for n in (expected, ready) if n is not None)
        if self.control.scrapes:  # which tells replicas and traffic
            await self.control.step(sample=False)
            return
        now_s = self.control.now_s
        if ready is not None:
            names = [f"{self._component}-{number}" for number in range(min(ready, _MOST_ENGINES))]
            replicas.there_are({name: Found(name, name=name) for name in names}, now_s)
            for name in names:
                replicas.take(name, {}, now_s)
        columns = self._traffic(observed, now_s)
        await self.control.step(columns, sample=columns is not None)

    def _traffic(self, observed: Any, now_s: float) -> dict[str, float] | None:
        """What was counted since the last tick with traffic, at the rate of its window; None: it is not known."""
        traffic = observed.traffic
        numbers = (traffic.duration_s, traffic.num_req, traffic.isl, traffic.osl)
        known = observed.HasField("traffic") and traffic.duration_s > 0
        if not known or not all(math.isfinite(number) and number >= 0 for number in numbers):
            return None
        requests = traffic.num_req / traffic.duration_s * (now_s - self.control.view.meter.times_s[-1])
        return {
            "requests_total": requests,
            "input_tokens_total": requests * traffic.isl,
            "output_tokens_total": requests * traffic.osl,
        }

    async def _predict(self, asked: Any, context: Any) -> Any:
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        await self._observe(asked.context)
        control, duration_s = self.control, asked.context.observations.traffic.duration_s
        known_s = control.view.known_s(control.now_s)
        if known_s < HOUR_S or not 0 < duration_s < math.inf:
            reason = f"a forecast needs {HOUR_S:g} s of traffic, and there are {known_s:g} s"
            return pb.PredictStageResponse(reason=reason)
        rates = self._forecast(duration_s)
        requests = rates["requests"]
        found = pb.PredictionData(predicted_num_req=requests * duration_s, source=SOURCE)
        if requests > 0:
            found.predicted_isl = rates["input_tokens"] / requests
            found.predicted_osl = rates["output_tokens"] / requests
        return pb.PredictStageResponse(predictions=found, reason="the hour, the day and the week before")

    def _forecast(self, ahead_s: float) -> Mapping[str, float]:
        """Requests, and prompt and answer tokens, a second, that are expected in the time ahead."""
        control, config = self.control, self.control.view.config
        bin_s = config.history_bin_s
        most = round(config.history_s / bin_s)
        rows = control.view.meter.traffic(bin_s, control.now_s, most).rows
        return {
            name: float(forecast_tps(np.asarray(rows[name], np.float64)[None, :], bin_s, ahead_s)[0])
            for name in ("requests", "input_tokens", "output_tokens")
        }

    async def _propose(self, asked: Any, context: Any) -> Any:
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        await self._observe(asked.context)
        return self._set(pb.ProposeStageResponse())

    async def _reconcile(self, asked: Any, context: Any) -> Any:
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        await self._observe(asked.context)
        return self._set(pb.ReconcileStageResponse())

    def _set(self, response: Any) -> Any:
        """The number that the policy wants, or no opinion."""
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        decision = self.control.decision
        if decision is None or not decision.applies:
            response.accept.SetInParent()
            return response
        target = response.override.targets.add()
        target.sub_component_type, target.type = self._component, pb.SET
        target.replicas = decision.desired
        response.override.reason = f"{SOURCE}: {self.control.name}"
        return response

    async def _constrain(self, asked: Any, context: Any) -> Any:
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        await self._observe(asked.context)
        response = pb.ConstrainStageResponse()
        if self.service.config.mode == "shadow":
            response.accept.SetInParent()
            return response
        for kind, bound in ((pb.AT_LEAST, self.control.lowest), (pb.AT_MOST, self.control.highest)):
            target = response.override.targets.add()
            target.sub_component_type, target.type, target.replicas = self._component, kind, bound
        response.override.reason = f"{SOURCE}: bounds"
        return response

    async def _bootstrap(self, asked: Any, context: Any) -> Any:
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        return pb.BootstrapResponse(ok=True, message=f"{SOURCE}: {self.control.name}")

    async def _reset(self, asked: Any, context: Any) -> Any:
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        try:
            await self.service.reset(self.service.config.seed)
        except (ValueError, TimeoutError) as error:
            return pb.ResetResponse(ok=False, message=f"{type(error).__name__}: {error}".rstrip(": "))
        return pb.ResetResponse(ok=True)


def _counted(workers: Any, name: str) -> int | None:
    """A number of engines; None: not told."""
    return max(int(getattr(workers, name)), 0) if workers.HasField(name) else None
