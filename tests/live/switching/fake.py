"""A server that speaks as vLLM with the plugin does, over the plugin's own book; its tokens are made up."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from serving_gym.envs.live.switching.plugin.book import Mode, RefusedError, SwitchBook
from serving_gym.envs.live.switching.plugin.endpoint import PATH, authorised, parse
from serving_gym.envs.live.switching.plugin.groups import Group, all_groups
from tests.live.fake_server import FakeServer

FIGURES = (
    "num_running", "num_prefilling", "num_waiting", "pending_prefill_tokens", "context_tokens", "kv_used_blocks",
    "preemptions", "generated_tokens", "prefilled_tokens", "busy_s",
)  # fmt: skip


class FakeSwitchingServer(FakeServer):
    """The server; use it in a `with` block.

    Attributes:
        drain_s: How long a switch that is not hard takes to drain, seconds.
        keys: API keys.
        figures: What it says of a group, beside zeros.
        orders: Every POST, in order.
    """

    world = 2
    drain_s = 0.0
    keys: tuple[str, ...] = ()

    async def _start(self) -> None:
        self.book = SwitchBook(self.world, (self.world,))
        self.figures: dict[Group, dict[str, Any]] = {}
        self.orders: list[dict[str, Any]] = []
        front_port, self.port = self.port, 0
        await super()._start()
        app = web.Application()
        app.router.add_get(PATH, self._show)
        app.router.add_post(PATH, self._switch)
        app.router.add_route("*", "/{rest:.*}", self._elsewhere)
        self._front = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._front.setup()
        await web.TCPSite(self._front, "127.0.0.1", front_port).start()
        self.behind, self.url = self.url, f"http://127.0.0.1:{self._front.addresses[0][1]}"

    async def _elsewhere(self, request: web.Request) -> web.StreamResponse:
        handlers = {
            "/v1/models": self._models, "/version": self._version, "/metrics": self._metrics,
            "/v1/completions": self._completions, "/health": self._health,
        }  # fmt: skip
        return await handlers[request.path](request)

    async def _show(self, request: web.Request) -> web.Response:
        if not authorised(request.headers.get("Authorization", ""), self.keys):
            return web.json_response(
                {"accepted": False, "reason": "Unauthorized", "switches": []}, status=401
            )
        self._let_time_pass()
        book = self.book
        rows = [
            dict.fromkeys(FIGURES, 0)
            | {"first": group.first, "length": group.length, "block_size": 16 * group.length}
            | {"kv_capacity_blocks": 100, "status": self._status_of(group)}
            | self.figures.get(group, {})
            for group in all_groups(self.world)
        ]
        return web.json_response(
            {
                "world": self.world,
                "layout": list(book.layout),
                "target_layout": [group.length for group in book.target],
                "now_s": time.monotonic(),
                "open": [switch.report() for switch in book.open],
                "done": [switch.report() for switch in book.done],
                "num_pooled": 0,
                "pooled_tokens": 0,
                "groups": rows,
            }
        )

    def _status_of(self, group: Group) -> str:
        if group not in self.book.groups:
            return "inactive"
        return "active" if self.book.draining(group) is None else "draining"

    async def _switch(self, request: web.Request) -> web.Response:
        words = await request.json()
        self.orders.append(words)
        layout, mode = parse(words)
        now_s = time.monotonic()
        try:
            begun = self.book.ask(
                tuple(layout), mode, now_s, {group: ["someone"] for group in self.book.groups}
            )
        except (RefusedError, ValueError) as error:
            return web.json_response({"accepted": False, "reason": str(error), "switches": []}, status=409)
        return web.json_response({"accepted": True, "reason": "", "switches": [s.number for s in begun]})

    def _let_time_pass(self) -> None:
        now_s = time.monotonic()
        for switch in list(self.book.open):
            if switch.mode != Mode.HARD and now_s - switch.asked_s < self.drain_s:
                continue
            self.book.over("someone")
            self.book.wait_for_entry(switch, now_s)
            for rank in switch.region.ranks:
                self.book.confirm(switch.number, rank, 0.5, now_s)
