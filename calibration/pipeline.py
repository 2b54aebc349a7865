"""Pipeline parallelism: an engine whose layers are spread over stages, each of which works on its own batch.

vLLM keeps as many batches in flight as there are stages, of different requests. With B requests each batch has B / pp
of them, takes every stage in turn, and a request gets a token each time its batch comes round. That is an engine with
one iteration for all B requests whose duration is that of one batch of B / pp through all stages: the form returned
here. Rounding up keeps the bubble of batches that cannot be filled: one request alone is no faster than without stages.
A prompt's chunk is in one batch, so an iteration with prefill lasts as long as its largest batch at least; the kernel
works that out from the chunks. Departure: the contexts of fewer requests than stages are read as if spread over all.
"""

from __future__ import annotations

import numpy as np

from serving_gym.calibration.latency import ACTIVATION_BYTES, PS_PER_S, LatencyTables
from serving_gym.calibration.models import ModelSpec

LINK_LATENCY_S = 10e-6  # of one send between stages; source: ours, small messages in NCCL tables take 5-20 us


def pipelined(tables: LatencyTables, stages: int, model: ModelSpec, link_bytes_per_s: float) -> LatencyTables:
    """Iteration times of an engine of `stages` pipeline stages, each as wide as the engine of `tables`.

    Those with prefill are by the tokens of the largest batch, not of all batches together.

    Source: ours, from the schedule above. Host work between iterations is counted once, as other batches keep the
    stages busy meanwhile; stages are taken to be equal.

    Args:
        tables: Of the engine with all layers on one stage.
        stages: Pipeline-parallel degree.
        model: The model, for the size of what is sent from stage to stage.
        link_bytes_per_s: Bandwidth between stages, bytes/s.

    Raises:
        ValueError: `stages` is below 1 or above the model's layers.
    """
    if not 1 <= stages <= model.num_layers:
        raise ValueError(
            f"pp_size={stages} is not allowed for {model.name}; choose 1 to {model.num_layers}, its layers"
        )
    if stages == 1:
        return tables
    per_token_s = model.hidden * ACTIVATION_BYTES / link_bytes_per_s

    def sent(times: np.ndarray, share: np.ndarray) -> np.ndarray:
        send_s = (stages - 1) * (LINK_LATENCY_S + share * per_token_s)
        return np.asarray(times[share] + np.rint(send_s * PS_PER_S), np.int64)

    sequences, tokens = np.arange(len(tables.decode_ps)), np.arange(len(tables.mixed_ps))
    return LatencyTables(
        decode_ps=sent(tables.decode_ps, -(-sequences // stages)),
        mixed_ps=sent(tables.mixed_ps, tokens),
        sequence_ps=-(-tables.sequence_ps // stages),
        kv_ps=-(-tables.kv_ps // stages),
        attn_fs=tables.attn_fs,
    )
