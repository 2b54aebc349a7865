"""Registers the plug-in with the registry of Dynamo's planner, sends its heartbeats, and takes it back at the end.

Where the planner does not answer, refuses, or has been started anew, it is tried again; each failure is counted, and a
reason is said once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import grpc

    from serving_gym.runners.serving.service import PolicyService

TOKEN = "SERVING_GYM_DYNAMO_TOKEN"  # environment variable
SERVICE = "dynamo.planner.plugin.v1.PluginRegistry"
PROTOCOL = "1.0"
BEAT_S = 5.0  # a third of the registry's heartbeat_timeout_seconds
_WITHIN_S = 5.0
_log = logging.getLogger(__name__)


class DynamoRegistration:
    """The registration of some stages.

    Args:
        service: Counts.
        registry: Address of the registry, `HOST:PORT` or `unix:PATH`.
        endpoint: Address of the plug-in as the planner is to see it, `grpc://HOST:PORT`.
        stages: Those that it is registered for.
        beat_s: Time between two heartbeats, seconds.
    """

    def __init__(
        self,
        service: PolicyService,
        registry: str,
        endpoint: str,
        stages: Sequence[str],
        beat_s: float = BEAT_S,
    ) -> None:
        self._service, self._registry, self._endpoint = service, registry, endpoint
        self._stages, self._beat_s = tuple(stages), beat_s
        self._token = os.environ.get(TOKEN, "")
        self._task: asyncio.Task[None] | None = None
        self._said = ""

    def start(self) -> None:
        """Begins to register."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Takes the registration back."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        import grpc

        registered: set[str] = set()
        async with grpc.aio.insecure_channel(self._registry.removeprefix("grpc://")) as channel:
            try:
                while True:
                    for stage in self._stages:
                        await self._keep(channel, stage, registered)
                    await asyncio.sleep(self._beat_s)
            finally:
                for stage in registered:
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                        words = {"plugin_id": _id(stage), "auth_token": self._token}
                        await self._call(channel, "Unregister", reason="graceful_shutdown", **words)

    async def _keep(self, channel: grpc.aio.Channel, stage: str, registered: set[str]) -> None:
        """Registers a stage, or tells that it lives."""
        import grpc

        try:
            if stage in registered:
                beat = await self._call(channel, "Heartbeat", plugin_id=_id(stage), auth_token=self._token)
                if not beat.ok:
                    registered.discard(stage)
                    return
            else:
                await self._register(channel, stage)
                registered.add(stage)
            self._said = ""
        except (grpc.aio.AioRpcError, ValueError) as error:
            registered.discard(stage)
            said = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            self._service.count("dynamo_registration_failures")
            if said != self._said:
                _log.warning("the planner's registry at %s does not take %s: %s", self._registry, stage, said)
                self._said = said or ""

    async def _register(self, channel: grpc.aio.Channel, stage: str) -> None:
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        answer = await self._call(
            channel,
            "Register",
            plugin_id=_id(stage),
            plugin_type=stage,
            priority=1,
            endpoint=self._endpoint,
            version=metadata.version("serving-gym"),
            hold_policy=pb.HOLD_LAST,
            needs=["observations.traffic", "observations.workers"],
            protocol_version=PROTOCOL,
            auth_token=self._token,
        )
        if not answer.accepted:
            raise ValueError(answer.reject_reason or "rejected without a reason")
        _log.info("registered with the planner at %s: %s", self._registry, stage)

    async def _call(self, channel: grpc.aio.Channel, method: str, **fields: Any) -> Any:
        from serving_gym.runners.serving.proto import dynamo_planner_pb2 as pb

        request, response = (getattr(pb, f"{method}{kind}") for kind in ("Request", "Response"))
        call = channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return await call(request(**fields), timeout=_WITHIN_S)


def _id(stage: str) -> str:
    """Name of the plug-in of a stage."""
    return f"serving-gym-{stage}"
