"""Nominal properties of engines: hardware, limits, and speed by their profile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class NominalEngines:
    """The replica slots of a fleet, P rows. Speeds are those of the calibrated profile, without disturbances.

    Attributes:
        models: Model of each.
        regions: Region of each.
        gpus: GPU of each.
        num_gpus: (P,) GPUs of each.
        block_size: (P,) tokens per KV block.
        kv_capacity_tokens: (P,) capacity of the KV pool, tokens.
        max_num_seqs: (P,) most running requests.
        max_num_batched_tokens: (P,) token budget of an iteration.
        prefill_s_per_token: (P,) seconds a prompt token takes in an iteration full of them.
        decode_s: (P, S + 1) seconds of a decode iteration by number of requests, without the part of their context.
        kv_s_per_token: (P,) seconds per token of context in a decode iteration.
    """

    models: tuple[str, ...]
    regions: tuple[str, ...]
    gpus: tuple[str, ...]
    num_gpus: NDArray[np.int64]
    block_size: NDArray[np.int64]
    kv_capacity_tokens: NDArray[np.int64]
    max_num_seqs: NDArray[np.int64]
    max_num_batched_tokens: NDArray[np.int64]
    prefill_s_per_token: NDArray[np.float64]
    decode_s: NDArray[np.float64]
    kv_s_per_token: NDArray[np.float64]

    def __len__(self) -> int:
        """Number of places."""
        return len(self.models)

    def decode_iteration_s(
        self, num_running: NDArray[np.int64], context_tokens: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Seconds of a decode iteration on each place, (P,).

        Args:
            num_running: (P,) decoding requests; more than an engine may run count as that many.
            context_tokens: (P,) their tokens of context.
        """
        batch = np.clip(num_running, 0, self.decode_s.shape[1] - 1)
        iteration: NDArray[np.float64] = (
            self.decode_s[np.arange(len(self)), batch] + self.kv_s_per_token * context_tokens
        )
        return iteration
