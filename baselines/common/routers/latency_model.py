"""TTFT and TPOT that a request would see on each engine, by what the router knows."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.routing.state import RoutedRequest, RoutingState


class LatencyModel:
    """Predicts latencies from nominal speeds and the requests in flight. Ours.

    llm-d trains a gradient-boosted model on features of past requests instead.

    Args:
        engines: What is known of the engines.
    """

    def __init__(self, engines: NominalEngines) -> None:
        self._engines = engines
        self._columns = (
            engines.decode_s,
            engines.prefill_s_per_token,
            engines.kv_s_per_token,
            engines.kv_capacity_tokens,
            engines.max_num_seqs,
            engines.max_num_batched_tokens,
        )

    def predict(
        self, state: RoutingState, request: RoutedRequest, cached_tokens: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """TTFT from now, and TPOT, of a request on each engine.

        Of a request in flight the whole prompt is still to be prefilled before its first token; afterwards its prompt
        and what it has generated are context. With the request itself added:

        * TPOT is the nominal decode iteration with all of them, at most `max_num_seqs`, and their context, at most the
          KV capacity; the request counts half its predicted output.
        * TTFT is a decode iteration, for the one under way, and the prefill of the prompts before it and of its own
          less what is cached, at nominal speed, in iterations of the token budget less one token for each that
          decodes, each as much longer as the decoding context makes it. Where requests, or prompts and predicted
          outputs, exceed what the engine holds, the excess share of the mean time that its requests need to end
          comes on top.

        Args:
            state: As the router observes it.
            request: The request.
            cached_tokens: (P,) of its prompt that need no prefill.

        Returns:
            (2, P) seconds: TTFT, TPOT.
        """
        return self.predict_from(
            state.in_flight, request.input_tokens, request.predicted_tokens, cached_tokens
        )

    def predict_from(
        self,
        in_flight: NDArray[np.void],
        input_tokens: int,
        predicted_tokens: int,
        cached_tokens: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """As `predict`, from the parts of a state that count.

        Args:
            in_flight: (M,) IN_FLIGHT_DTYPE.
            input_tokens: Prompt of the request.
            predicted_tokens: Its predicted output.
            cached_tokens: (P,) of its prompt that need no prefill.

        Returns:
            (2, P) seconds: TTFT, TPOT.
        """
        latency = np.empty((2, len(self._engines)))
        _predict(
            in_flight, float(input_tokens), float(predicted_tokens), cached_tokens, *self._columns, latency
        )
        return latency


@njit(cache=True)
def _predict(
    flights: NDArray[np.void],
    input_tokens: float,
    output_tokens: float,
    cached_tokens: NDArray[np.int64],
    decode_s: NDArray[np.float64],
    prefill_s_per_token: NDArray[np.float64],
    kv_s_per_token: NDArray[np.float64],
    kv_capacity_tokens: NDArray[np.int64],
    max_num_seqs: NDArray[np.int64],
    max_num_batched_tokens: NDArray[np.int64],
    latency: NDArray[np.float64],
) -> None:
    num_places = len(max_num_seqs)
    num_prefilling = np.zeros(num_places, np.int64)
    num_decoding = np.zeros(num_places, np.int64)
    prompt_tokens = np.zeros(num_places)  # not prefilled
    context_tokens = np.zeros(num_places)
    left_tokens = np.zeros(num_places)  # of predicted output; one where the prediction has been outgrown
    for flight in flights:
        place, generated = flight.place, flight.generated_tokens
        if flight.first_token_s < 0:
            num_prefilling[place] += 1
            prompt_tokens[place] += flight.input_tokens
        else:
            num_decoding[place] += 1
            context_tokens[place] += flight.input_tokens + generated
        left_tokens[place] += max(flight.predicted_tokens - generated, 1)

    for p in range(num_places):
        num_requests = num_prefilling[p] + num_decoding[p]
        held_tokens = prompt_tokens[p] + context_tokens[p] + input_tokens
        batch = min(num_requests + 1, max_num_seqs[p])
        kv_tokens = min(held_tokens + 0.5 * output_tokens, kv_capacity_tokens[p])
        tpot_s = decode_s[p, batch] + kv_s_per_token[p] * kv_tokens

        to_prefill = prompt_tokens[p] + max(input_tokens - cached_tokens[p], 1.0)
        iterations = np.ceil(to_prefill / max(max_num_batched_tokens[p] - num_decoding[p], 1))
        ttft_s = decode_s[p, min(num_decoding[p], max_num_seqs[p])] + to_prefill * prefill_s_per_token[p]
        ttft_s += (1.0 + iterations) * kv_s_per_token[p] * context_tokens[p]
        fill = max(
            (num_requests + 1) / max_num_seqs[p],
            (held_tokens + left_tokens[p] + output_tokens) / kv_capacity_tokens[p],
        )
        if fill > 1.0:
            ttft_s += (fill - 1.0) * left_tokens[p] / max(num_requests, 1) * tpot_s
        latency[0, p], latency[1, p] = ttft_s, tpot_s
