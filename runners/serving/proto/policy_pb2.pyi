from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Value(_message.Message):
    __slots__ = ("json", "msgpack")
    JSON_FIELD_NUMBER: _ClassVar[int]
    MSGPACK_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    msgpack: bytes
    def __init__(self, json: _Optional[bytes] = ..., msgpack: _Optional[bytes] = ...) -> None: ...

class DecideRequest(_message.Message):
    __slots__ = ("state", "chosen")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    state: Value
    chosen: Value
    def __init__(self, state: _Optional[_Union[Value, _Mapping]] = ..., chosen: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("state", "changes", "chosen", "no_decision")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    NO_DECISION_FIELD_NUMBER: _ClassVar[int]
    state: Value
    changes: Value
    chosen: Value
    no_decision: bool
    def __init__(self, state: _Optional[_Union[Value, _Mapping]] = ..., changes: _Optional[_Union[Value, _Mapping]] = ..., chosen: _Optional[_Union[Value, _Mapping]] = ..., no_decision: bool = ...) -> None: ...

class DecideReply(_message.Message):
    __slots__ = ("action", "applies", "by", "error", "us", "kind", "place", "priority")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    APPLIES_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    US_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    action: bytes
    applies: bool
    by: str
    error: str
    us: float
    kind: str
    place: int
    priority: int
    def __init__(self, action: _Optional[bytes] = ..., applies: bool = ..., by: _Optional[str] = ..., error: _Optional[str] = ..., us: _Optional[float] = ..., kind: _Optional[str] = ..., place: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: bytes
    def __init__(self, status: _Optional[bytes] = ...) -> None: ...
