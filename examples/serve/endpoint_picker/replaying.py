"""A record of exchanges, and the proxy's side of it played again, as ext_proc messages alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc

from serving_gym.runners.serving import ext_proc
from serving_gym.runners.serving.proto import ext_proc_pb2 as pb


def recorded(summary: dict[str, Any], exchanges: list[dict[str, Any]]) -> dict[str, Any]:
    """A record: bodies without the prompts' tokens, which are drawn anew, and the times at which tokens came.

    Args:
        summary: Of the run.
        exchanges: Of the proxy.
    """
    kept = []
    for exchange in exchanges:
        body = json.loads(exchange["body"])
        kept.append(
            {
                "arrival_s": round(exchange["arrival_s"], 4),
                "picked_s": round(exchange["picked_s"], 4),
                "endpoint": exchange["endpoint"],
                "status": exchange["status"],
                "prompt_tokens": len(body["prompt"]),
                "max_tokens": body["max_tokens"],
                "chunks": [[round(at_s, 4), text.count("data:")] for at_s, text in exchange["chunks"]],
            }
        )
    return {"summary": summary, "endpoints": summary["endpoints"], "exchanges": kept}


async def play(picker: str, exchanges: list[dict[str, Any]], speed: float) -> list[str]:
    """Sends the messages of a record in its time; returns the endpoint that each request is given, empty: none.

    Args:
        picker: Address of the endpoint picker.
        exchanges: Of the record.
        speed: Factor on its time.
    """
    begun_s = exchanges[0]["arrival_s"]
    async with grpc.aio.insecure_channel(picker) as channel:
        process: Any = channel.stream_stream(
            f"/{ext_proc.SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        loop = asyncio.get_running_loop()
        zero_s = loop.time()

        async def until(at_s: float) -> None:
            await asyncio.sleep(max(zero_s + (at_s - begun_s) / speed - loop.time(), 0.0))

        async def one(number: int, exchange: dict[str, Any]) -> str:
            await until(exchange["arrival_s"])
            call = process()
            for message in _request(number, exchange):
                await call.write(message)
            answer = await call.read()
            if answer.HasField("immediate_response"):
                return ""
            picked = str(answer.dynamic_metadata[ext_proc.NAMESPACE][ext_proc.DESTINATION])
            while not answer.request_body.response.body_mutation.streamed_response.end_of_stream:
                answer = await call.read()
            tokens = 0
            for at_s, events in exchange["chunks"]:
                await until(at_s)
                tokens += events
                await call.write(_chunk(tokens))
                await call.read()
            await call.write(_chunk(tokens, ended=True))
            await call.read()
            await call.done_writing()
            return picked

        return list(await asyncio.gather(*(one(n, exchange) for n, exchange in enumerate(exchanges))))


def _request(number: int, exchange: dict[str, Any]) -> list[pb.ProcessingRequest]:
    body = {
        "model": "tiny",
        "prompt": [number + 1] * exchange["prompt_tokens"],
        "max_tokens": exchange["max_tokens"],
        "stream": True,
    }
    first, second = pb.ProcessingRequest(), pb.ProcessingRequest()
    first.protocol_config.request_body_mode = first.protocol_config.response_body_mode = (
        pb.FULL_DUPLEX_STREAMED
    )
    for key, value in ((":method", "POST"), (":path", "/v1/completions")):
        first.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    second.request_body.body, second.request_body.end_of_stream = json.dumps(body).encode(), True
    return [first, second]


def _chunk(tokens: int, ended: bool = False) -> pb.ProcessingRequest:
    event = json.dumps({"choices": [{}], "usage": {"completion_tokens": tokens}})
    message = pb.ProcessingRequest()
    message.response_body.body = f"data: {event}\n\n".encode()
    message.response_body.end_of_stream = ended
    return message
