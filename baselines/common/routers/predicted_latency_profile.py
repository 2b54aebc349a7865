"""llm-d's routing by predicted latency, with latencies of the engines' profiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serving_gym.baselines.common.routers.headroom import HeadroomConfig, HeadroomRouter
from serving_gym.baselines.common.routers.latency_model import LatencyModel
from serving_gym.baselines.common.routers.llm_d_legacy import block_index, prefix_blocks
from serving_gym.baselines.policy import Action
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


@dataclass(frozen=True)
class PredictedLatencyProfileConfig(HeadroomConfig):
    """Constants of `PredictedLatencyProfilePolicy`; see `HeadroomConfig`."""


class PredictedLatencyProfilePolicy(HeadroomRouter[PredictedLatencyProfileConfig]):
    """Engines that would keep the SLO, by how little or how much they would have to spare.

    Departures from llm-d, whose model of latencies is trained on past requests (`PredictedLatencyPolicy` has one):
    latencies come from `LatencyModel`, and the filters read them (`ttftSource: latencyPredictor`). Prompts are
    remembered as in `LLMDLegacyPolicy`. See `HeadroomRouter`.
    """

    name = "predicted_latency_profile"
    config_class = PredictedLatencyProfileConfig

    def begin(self) -> None:
        """Nothing has been sent anywhere."""
        self._index = block_index(self.engines)
        self._model = LatencyModel(self.engines)

    def choose(self, state: RoutingState, request: RoutedRequest) -> Action:
        """Predicts, filters, scores and draws."""
        blocks = prefix_blocks(request)
        held = self._index.match(blocks)
        cached = np.minimum(held * request.hash_block_tokens, request.input_tokens)
        latency_s = self._model.predict(state, request, cached)
        place = self.by_headroom(state, request, held / max(len(blocks), 1), latency_s)
        self._index.insert(blocks, place)
        return place
