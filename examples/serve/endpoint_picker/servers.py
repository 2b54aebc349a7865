"""A small server that speaks as vLLM does: streamed completions, and the gauges that a router reads."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
OTHERS = (
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
)


class SimulatedServer:
    """The server.

    Args:
        token_s: Time of a token, seconds.
        max_num_seqs: Requests at once.
    """

    def __init__(self, token_s: float = 0.002, max_num_seqs: int = 8) -> None:
        self.token_s, self._slots = token_s, asyncio.Semaphore(max_num_seqs)
        self.served = 0
        self.url = ""
        self._gauges = dict.fromkeys((RUNNING, WAITING, *OTHERS), 0.0)

    async def __aenter__(self) -> SimulatedServer:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 4096}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = [f'{name}{{engine="0"}} {value}' for name, value in self._gauges.items()]
        lines.append('vllm:cache_config_info{block_size="32",num_gpu_blocks="512"} 1.0')
        return web.Response(text="\n".join(lines) + "\n")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self._gauges[WAITING] += 1
        async with self._slots:
            self._gauges[WAITING] -= 1
            self._gauges[RUNNING] += 1
            try:
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
                for token in range(1, int(body["max_tokens"]) + 1):
                    await asyncio.sleep(self.token_s)
                    chunk = {"choices": [{"text": "x"}], "usage": {"completion_tokens": token}}
                    await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
                await response.write(b"data: [DONE]\n\n")
                self.served += 1
                return response
            finally:
                self._gauges[RUNNING] -= 1
