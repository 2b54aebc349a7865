"""Serves a policy over gRPC: `serving_gym.policy.v1.Policy` of `runners/serving/proto/policy.proto`.

    python -m runners.serve env=routing policy=preserve cluster=fleet_h100_x4 protocols=[grpc]

`Decide` is asked about a whole state. A `Session` stream has a whole state first and then changes, as
`runners.serving.session` has them. Malformed messages end a call with INVALID_ARGUMENT and one sentence.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from serving_gym.runners.serving.bounded_site import may_pass
from serving_gym.runners.serving.exchange import Exchange, from_json, from_msgpack, plain_answer
from serving_gym.runners.serving.grpc_methods import GRPCServer, Method, check_grpc
from serving_gym.runners.serving.host import Answer
from serving_gym.runners.serving.session import Session

if TYPE_CHECKING:
    from serving_gym.runners.serving.service import PolicyService

SERVICE = "serving_gym.policy.v1.Policy"
_SENTENCE = 500  # characters


class GRPCPolicy:
    """The gRPC server.

    Args:
        service: The policy.
        address: Address to listen on.
        port: Port to listen on; 0: any free port.

    Raises:
        ValueError: gRPC is not installed.
    """

    environments = ("routing", "autoscaling", "dp_tp", "deployment", "sharing")
    default_port = 8301
    checks_token = True

    def __init__(self, service: PolicyService, address: str, port: int) -> None:
        check_grpc("grpc")
        from serving_gym.runners.serving.proto import policy_pb2 as pb

        self.service, self.exchange = service, Exchange(service)
        self._token = service.config.token
        methods = {
            "Decide": Method(self._decide, pb.DecideRequest, pb.DecideReply),
            "Session": Method(self._session, pb.SessionRequest, pb.DecideReply, streams=True, asks=True),
            "Status": Method(self._status, pb.StatusRequest, pb.StatusReply),
        }
        self._server = GRPCServer({SERVICE: methods}, address, port, service.body_bytes)

    async def start(self) -> str:
        """Starts listening; returns the address."""
        return await self._server.start()

    async def stop(self) -> None:
        """Stops listening."""
        await self._server.stop()

    async def _decide(self, asked: Any, context: Any) -> Any:
        await self._check_token(context)
        try:
            state = self.exchange.wire.read_state(_value(asked, "state"))
            self.service.host.served.check(state)
            chosen = self.exchange.chosen(_value(asked, "chosen", needed=False))
        except ValueError as error:
            await self._refuse(context, str(error))
        return _reply(await self.service.decide(state, chosen))

    async def _session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        await self._check_token(context)
        session: Session | None = None
        async for asked in requests:
            try:
                session, state = self._step(session, asked)
                if not asked.no_decision:
                    self.service.host.served.check(state)
                chosen = self.exchange.chosen(_value(asked, "chosen", needed=False))
            except ValueError as error:
                await self._refuse(context, str(error))
            if not asked.no_decision:
                yield _reply(await self.service.decide(state, chosen))

    def _step(self, session: Session | None, asked: Any) -> tuple[Session, Any]:
        """The session after a message, and its state."""
        wire = self.exchange.wire
        if asked.WhichOneof("step") == "state":
            session = Session(wire, wire.read_state(_value(asked, "state")))
            return session, session.state
        if session is None:
            raise ValueError("the first message of a session must have a whole state")
        return session, session.change(_value(asked, "changes"))

    async def _status(self, asked: Any, context: Any) -> Any:
        from serving_gym.runners.serving.proto import policy_pb2 as pb

        await self._check_token(context)
        return pb.StatusReply(status=json.dumps(self.service.status()).encode())

    async def _check_token(self, context: Any) -> None:
        import grpc

        if self._token is None:
            return
        said = dict(context.invocation_metadata()).get("authorization", "")
        if not may_pass(self._token, str(said)):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the bearer token is missing or wrong")

    async def _refuse(self, context: Any, sentence: str) -> None:
        import grpc

        self.service.count("refused_requests", status="INVALID_ARGUMENT")
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence[:_SENTENCE])


def _value(message: Any, field: str, needed: bool = True) -> Any:
    """The plain value of a field; None where it is not there.

    Raises:
        ValueError: It is not there but needed, or malformed.
    """
    value = getattr(message, field)
    form = value.WhichOneof("form") if message.HasField(field) else None
    if form is None:
        if needed:
            raise ValueError(f"{field} is missing")
        return None
    if form == "json":
        return from_json(value.json)
    try:
        return from_msgpack(value.msgpack)
    except ModuleNotFoundError:
        raise ValueError("MessagePack needs the package msgpack: pip install -e '.[serve]'") from None


def _reply(answer: Answer) -> Any:
    from serving_gym.runners.serving.proto import policy_pb2 as pb

    plain = plain_answer(answer)
    action = plain["action"]
    return pb.DecideReply(
        action=json.dumps(action).encode(),
        applies=plain["applies"],
        by=plain["by"],
        error=plain["error"],
        us=plain["us"],
        kind=action["kind"] if isinstance(action, dict) else "",
        place=plain["place"],
        priority=plain["priority"],
    )
