"""Requests and answers in plain values, which HTTP and gRPC have in common."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.serving.forms import key_of
from serving_gym.runners.serving.host import Answer
from serving_gym.runners.serving.session import Sessions

if TYPE_CHECKING:
    from serving_gym.runners.serving.service import PolicyService

MOST_DECISIONS = 256  # of a batch
_NESTED = "the body is nested too deeply"


def plain_answer(answer: Answer) -> dict[str, Any]:
    """An answer in the wire form."""
    return {
        "action": answer.action,
        "applies": answer.applies,
        "by": answer.by,
        "error": answer.error,
        "us": round(answer.us, 1),
        "place": answer.place,
        "priority": answer.priority,
    }


def from_json(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: It is no JSON, has a key twice, or is nested too deeply.
    """
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(_NESTED) from None
    except UnicodeDecodeError:
        raise ValueError("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the body is not JSON: {error.msg} at character {error.pos}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the body has the key {key_of(twice)!r} twice in one object")
    return values


def _no_constant(name: str) -> Any:
    raise ValueError(f"the body has {name}, which is no JSON")


def from_msgpack(body: bytes) -> Any:
    """The value of a MessagePack body.

    Raises:
        ValueError: It is none, or nested too deeply.
    """
    import msgpack

    try:
        return msgpack.unpackb(body, object_pairs_hook=_once, strict_map_key=True)
    except (RecursionError, msgpack.StackError):
        raise ValueError(_NESTED) from None
    except (msgpack.UnpackException, UnicodeDecodeError, TypeError, OverflowError) as error:
        raise ValueError(f"the body is not MessagePack: {error}"[:200]) from None


def fields_of(body: Any, allowed: tuple[str, ...], needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a request.

    Raises:
        ValueError: It is no object, or a field is unknown or missing.
    """
    if not isinstance(body, Mapping):
        raise ValueError(f"the body must be an object, got {type(body).__name__}")
    for name in body:
        check_choice("key of the body", key_of(name), allowed)
    for name in needed:
        if name not in body:
            raise ValueError(f"{name} is missing")
    return dict(body)


class Exchange:
    """Answers requests in plain values.

    Args:
        service: The policy.
    """

    def __init__(self, service: PolicyService) -> None:
        self.service = service
        self.sessions = Sessions(self.wire)

    @property
    def wire(self) -> Any:
        """The wire form."""
        return self.service.host.served.wire

    async def decide(self, body: Any) -> dict[str, Any]:
        """`{"state": STATE, "chosen": ACTION}` or a change of a session (`session`): an answer.

        Raises:
            ValueError: The request is malformed.
            OutOfStepError: The session is unknown or has moved on.
        """
        if isinstance(body, Mapping) and "session" in body:
            return await self.decide_in_session(body)
        given = fields_of(body, ("state", "chosen"), ("state",))
        state = self.wire.read_state(given["state"])
        self.service.host.served.check(state)
        return plain_answer(await self.service.decide(state, self.chosen(given.get("chosen"))))

    async def batch(self, body: Any) -> dict[str, Any]:
        """`{"decisions": [{"state": ..., "chosen": ...}, ...]}`: `{"answers": [...]}`, in this order.

        Raises:
            ValueError: The request is malformed; nothing is decided then.
        """
        decisions = fields_of(body, ("decisions",), ("decisions",))["decisions"]
        if not isinstance(decisions, list) or not 1 <= len(decisions) <= MOST_DECISIONS:
            raise ValueError(f"decisions must be a list of 1 to {MOST_DECISIONS} requests")
        asked = []
        for number, each in enumerate(decisions):
            try:
                given = fields_of(each, ("state", "chosen"), ("state",))
                state = self.wire.read_state(given["state"])
                self.service.host.served.check(state)
                asked.append((state, self.chosen(given.get("chosen"))))
            except ValueError as error:
                raise ValueError(f"decisions[{number}]: {error}") from None
        answers = [plain_answer(await self.service.decide(state, chosen)) for state, chosen in asked]
        return {"answers": answers}

    def open_session(self, body: Any) -> dict[str, Any]:
        """`{"state": STATE}`: `{"session": NAME, "n": 0}`.

        Raises:
            ValueError: The request is malformed.
        """
        given = fields_of(body, ("state",), ("state",))
        return {"session": self.sessions.open(self.wire.read_state(given["state"])), "n": 0}

    async def decide_in_session(self, body: Any) -> dict[str, Any]:
        """`{"session": NAME, "since": N, "changes": {...}, "chosen": ACTION}`: an answer with `n`.

        With `"decide": false` the state is changed and nothing is decided.

        Raises:
            ValueError: The request is malformed.
            OutOfStepError: The session is unknown or has moved on.
        """
        allowed = ("session", "since", "changes", "chosen", "decide")
        given = fields_of(body, allowed, ("session", "since", "changes"))
        decides = given.get("decide", True)
        if not isinstance(decides, bool):
            raise ValueError(f"decide must be true or false, got {decides!r}"[:200])
        chosen = self.chosen(given.get("chosen"))
        state, number = self.sessions.change(given["session"], given["since"], given["changes"])
        if not decides:
            return {"n": number}
        self.service.host.served.check(state)
        return {**plain_answer(await self.service.decide(state, chosen)), "n": number}

    def chosen(self, value: Any) -> Any:
        """The caller's own decision in the wire form, or a place of routing; None: not given.

        Raises:
            ValueError: It is neither.
        """
        if value is None:
            return None
        if type(value) is int and "places" in self.wire.context.sizes:
            places = self.wire.context.sizes["places"]
            if not 0 <= value < places:
                raise ValueError(f"chosen must lie in [0, {places}), got {value}")
            return value
        return self.wire.write_action(self.wire.read_action(value, "chosen"))

    async def reset(self, body: Any) -> dict[str, Any]:
        """`{"seed": NUMBER}`: the status after the policy has begun anew.

        Raises:
            ValueError: The request is malformed, or the policy cannot be reset.
        """
        seed = fields_of(body, ("seed",)).get("seed", 0)
        if type(seed) is not int or not 0 <= seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to 2^32 - 1, got {seed!r}"[:200])
        await self.service.reset(seed)
        return self.service.status()

    async def change_policy(self, body: Any) -> dict[str, Any]:
        """`{"policy": NAME}`: the status after another policy has been loaded and answers; null: the same, read anew.

        Raises:
            ValueError: The request is malformed, or the policy cannot be served; the old one goes on.
        """
        name = fields_of(body, ("policy",), ("policy",))["policy"]
        if name is not None and not isinstance(name, str):
            raise ValueError(f"policy must be a name or null, got {name!r}"[:200])
        await self.service.change(name)
        return self.service.status()
