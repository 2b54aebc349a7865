"""vLLM's own balancing of data-parallel engines behind one API server."""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.common.router import Router, in_flight_counts
from serving_gym.baselines.common.routers.least_kv import kv_usage
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState

KV_FREE = 0.5  # usage below which a queue is no worse than running requests
WAITING_PENALTY = 6.0  # of a waiting request at full KV usage, per half of the usage


class VLLMDataParallelPolicy(Router):
    """The lowest of max(in flight, waiting + running) + 6 x waiting x max(0, KV usage - 0.5).

    vLLM 0.33.0, `DPLBAsyncMPClient.get_core_engine_for_request` with one client. Waiting, running and KV usage are
    the engines' last report, which vLLM's coordinator publishes every 100 ms and the router here polls; between two
    reports each request sent adds one to its engine's waiting. Requests in flight are the router's own count. The
    scan begins one engine further at each decision and the first of the lowest wins, so that ties are taken in
    turns.
    """

    name = "vllm_data_parallel"

    def begin(self) -> None:
        """No report yet; the scan begins at the first engine."""
        self._reported_s = -np.inf
        self._sent = np.zeros(len(self.engines), np.int64)  # since the report
        self._start = 0

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """The lowest score, from where the scan begins."""
        if state.gauges_s != self._reported_s:
            self._reported_s = state.gauges_s
            self._sent[:] = 0
        waiting = state.engines["num_waiting"] + self._sent
        load = np.maximum(in_flight_counts(state), waiting + state.engines["num_running"])
        score = load + WAITING_PENALTY * waiting * np.maximum(kv_usage(state) - KV_FREE, 0.0)
        score = np.where(state.can_take, score, np.inf)
        lowest = np.flatnonzero(score == score.min())
        place = int(lowest[np.argmin((lowest - self._start) % len(score))])
        self._sent[place] += 1
        self._start = (self._start + 1) % len(score)
        return place
