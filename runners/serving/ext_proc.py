"""Messages of Envoy's external processing protocol, as an endpoint picker reads and writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from google.protobuf.json_format import MessageToDict

from serving_gym.runners.serving.proto import ext_proc_pb2 as pb

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
NAMESPACE, SUBSET_NAMESPACE = "envoy.lb", "envoy.lb.subset_hint"
_CHUNK_BYTES = 62_000  # of a body that is streamed back; Envoy takes 64 KiB


def headers_of(headers: pb.HeaderMap) -> dict[str, str]:
    """Headers by name; Envoy sends values as bytes."""
    return {
        header.key.lower(): header.raw_value.decode(errors="replace") if header.raw_value else header.value
        for header in headers.headers
    }


def subset_of(message: pb.ProcessingRequest) -> list[str] | None:
    """Endpoints that the proxy allows; None: it does not limit them."""
    found = _metadata(message, SUBSET_NAMESPACE, SUBSET)
    if found is None:
        return None
    listed = found if isinstance(found, list) else str(found).split(",")
    return [str(endpoint).strip() for endpoint in listed if str(endpoint).strip()]


def served_by(message: pb.ProcessingRequest) -> str:
    """The endpoint that served the request, as the proxy says; empty: it does not."""
    return str(_metadata(message, NAMESPACE, SERVED) or "")


def _metadata(message: pb.ProcessingRequest, namespace: str, key: str) -> object:
    """An entry of the filter metadata; None: it is not there."""
    entries = message.metadata_context.filter_metadata
    if namespace not in entries or key not in entries[namespace].fields:
        return None
    return MessageToDict(entries[namespace]).get(key)


def picked_on_headers(endpoint: str, content_length: int | None = None) -> pb.ProcessingResponse:
    """The answer to request headers that names the endpoint.

    Args:
        endpoint: `ip:port`.
        content_length: Of a body that was changed, bytes.
    """
    response = pb.ProcessingResponse()
    _name(response.request_headers.response, endpoint, content_length)
    _add_metadata(response, endpoint)
    return response


def picked_on_body(endpoint: str, body: bytes | None) -> pb.ProcessingResponse:
    """The answer to a buffered body that names the endpoint.

    Args:
        endpoint: `ip:port`.
        body: A new body; None: it stays as it is.
    """
    response = pb.ProcessingResponse()
    common = response.request_body.response
    _name(common, endpoint, None if body is None else len(body))
    if body is not None:
        common.body_mutation.body = body
    _add_metadata(response, endpoint)
    return response


def streamed_back(body: bytes, ended: bool = True, request: bool = True) -> Iterator[pb.ProcessingResponse]:
    """A body given back in full-duplex mode, in chunks.

    Args:
        body: The body, or a piece of it.
        ended: Whether it is the last piece.
        request: Whether it is the request's; else the response's.
    """
    starts: Sequence[int] = range(0, len(body), _CHUNK_BYTES) or (0,)
    for first in starts:
        piece = body[first : first + _CHUNK_BYTES]
        response = pb.ProcessingResponse()
        part = response.request_body if request else response.response_body
        streamed = part.response.body_mutation.streamed_response
        streamed.body, streamed.end_of_stream = piece, ended and first == starts[-1]
        yield response


def go_on(message: pb.ProcessingRequest) -> pb.ProcessingResponse:
    """The answer to a message that changes nothing."""
    response, kind = pb.ProcessingResponse(), message.WhichOneof("request")
    getattr(response, kind).SetInParent()
    return response


def refusal(status: int, reason: str) -> pb.ProcessingResponse:
    """An answer to the client in place of a server's.

    Args:
        status: HTTP status.
        reason: One sentence.
    """
    response = pb.ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = status
    immediate.body = json.dumps({"error": {"message": reason, "code": status}}).encode()
    immediate.details = reason
    option = immediate.headers.set_headers.add()
    option.header.key, option.header.raw_value = "content-type", b"application/json"
    option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    return response


def _name(common: pb.CommonResponse, endpoint: str, content_length: int | None) -> None:
    common.clear_route_cache = True
    values = {DESTINATION: endpoint}
    if content_length is not None:
        values["content-length"] = str(content_length)
    for key, value in values.items():
        option = common.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = key, value.encode()
        option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def _add_metadata(response: pb.ProcessingResponse, endpoint: str) -> None:
    response.dynamic_metadata.get_or_create_struct(NAMESPACE).update({DESTINATION: endpoint})
