"""How long one iteration of an engine takes.

Two forms of the same thing. `LatencyModel` is physical: overheads, weights read, arithmetic, KV cache read, attention
and collectives, with fitted coefficients. `LatencyTables` is what the simulator kernel consumes: integers in
picoseconds, affine in the context, so that a run of identical decode iterations has an exact closed form.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.architecture import Amount, ModelSpec
from serving_gym.calibration.coefficients import CAPTURED_TOKENS, RATIO_TOKENS, LatencyCoefficients
from serving_gym.calibration.hardware import GpuSpec

PS_PER_S = 1e12
FS_PER_S = 1e15
SMALLEST_TIME = 1e-300  # s; keeps a ratio of two absent times defined
ACTIVATION_BYTES = 2.0  # the residual stream travels in 16 bits whatever the weights are


@dataclass(frozen=True)
class LatencyTables:
    """Iteration time in the simulator kernel's integer form.

    A pure decode iteration of B sequences with C tokens of context together takes `decode_ps[B] + kv_ps * C`. One that
    contains prefill and schedules n tokens in all, B of them decoding, takes
    `mixed_ps[n] + sequence_ps * B + kv_ps * C + (attn_fs * pairs) // 1000`, with C
    the decode context and `pairs` the query-key pairs of the prefill chunks.

    Args:
        decode_ps: (max_num_seqs + 1,), picoseconds by number of decoding sequences, int64.
        mixed_ps: (max_num_batched_tokens + 1,), picoseconds by number of scheduled tokens, int64.
        sequence_ps: Picoseconds per decoding sequence beside prefill; a pure decode iteration has it in `decode_ps`.
        kv_ps: Picoseconds per token of decode context.
        attn_fs: Femtoseconds per query-key pair of prefill.
    """

    decode_ps: NDArray[np.int64]
    mixed_ps: NDArray[np.int64]
    sequence_ps: int
    kv_ps: int
    attn_fs: int


def attention_pairs(prefill_chunks: Iterable[tuple[int, int]]) -> int:
    """Query-key pairs of causal prefill chunks: each token attends to all before it and to itself.

    Args:
        prefill_chunks: (start, length) of each chunk, tokens.
    """
    return sum(length * start + length * (length + 1) // 2 for start, length in prefill_chunks)


def smooth_max(first: Amount, second: Amount, sharpness: float) -> Amount:
    """p-norm of two times, s: their sum at sharpness 1, their maximum as it grows."""
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    share = smaller / np.maximum(larger, SMALLEST_TIME)
    return larger * (1.0 + share**sharpness) ** (1.0 / sharpness)


@dataclass(frozen=True)
class LatencyModel:
    """Iteration time of one engine: a model on `tp` GPUs with fitted coefficients.

    With `execution="tp"` every iteration runs tensor parallel. With `execution="shift"` (Shift Parallelism, arXiv
    2509.16495) the engine holds `base` engines of a smaller width with whole weights and runs iterations of more than
    `shift_threshold_tokens` tokens sequence parallel: the tokens are split over the base engines and attention
    exchanges heads by all-to-all, so the KV cache stays as tensor parallelism lays it out.

    Args:
        model: The model.
        gpu: The GPU.
        tp: GPUs of the engine.
        coefficients: Fitted coefficients at this width.
        execution: `tp` or `shift`.
        base: The engine of smaller width that sequence parallelism replicates; needed for `shift` only.
        shift_threshold_tokens: Scheduled tokens above which sequence parallelism runs; None runs whichever is faster
            (source: ours, an ideal threshold).
        attention_ranks: Ranks of data-parallel attention: each of `tp / attention_ranks` GPUs holds all dense weights
            and computes its own requests, and the experts are split over all `tp` GPUs. An iteration lasts as long as
            on the rank with the most tokens; sequences and their contexts are spread evenly.
    """

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    coefficients: LatencyCoefficients
    execution: str = "tp"
    base: "LatencyModel | None" = None
    shift_threshold_tokens: int | None = None
    attention_ranks: int = 1

    def __post_init__(self) -> None:
        if self.execution not in ("tp", "shift"):
            raise ValueError(f"execution={self.execution!r} is not allowed; choose 'tp' or 'shift'")
        if self.execution == "shift" and (self.base is None or self.tp % self.base.tp):
            raise ValueError(
                f"execution='shift' on {self.tp} GPUs needs a base engine whose width divides it"
            )
        if self.attention_ranks < 1 or self.tp % self.attention_ranks:
            raise ValueError(
                f"attention_ranks={self.attention_ranks} is not allowed; it must divide the engine's {self.tp} GPUs"
            )
        if self.attention_ranks > 1 and self.execution == "shift":
            raise ValueError("execution='shift' is not allowed with attention_ranks above 1")

    def matrices_s(self, num_tokens: Amount, rank_tokens: Amount | None = None) -> Amount:
        """Weights read and multiplied, s: dense and expert, each the smooth maximum of memory and arithmetic.

        Args:
            num_tokens: Tokens of the iteration.
            rank_tokens: Those of the attention rank with the most; None: all.
        """
        c, m = self.coefficients, self.model
        memory = self.tp * self.gpu.bandwidth
        peak = self.tp * self.gpu.peak_flops(m.compute_dtype)
        here = num_tokens if rank_tokens is None else rank_tokens
        dense = smooth_max(
            0.0 * here + m.dense_read_bytes * self.attention_ranks / (memory * c.dense_bandwidth_ratio),
            here * m.dense_flops_per_token * self.attention_ranks / (peak * c.dense_flops_ratio),
            c.roofline_sharpness,
        )
        experts = smooth_max(
            m.expert_read_bytes(num_tokens) / (memory * c.expert_bandwidth_ratio),
            num_tokens * m.expert_flops_per_token / (peak * c.expert_flops_ratio),
            c.expert_sharpness,
        )
        return (dense + experts) * self._matrix_ratio(num_tokens)

    def _matrix_ratio(self, num_tokens: Amount) -> Amount:
        """Measured matrix time over the smooth form, interpolated in the logarithm of the tokens."""
        ratios = self.coefficients.matrix_ratios
        if not ratios:
            return 1.0 + 0.0 * num_tokens
        return np.interp(np.log2(np.maximum(num_tokens, 1.0)), np.log2(RATIO_TOKENS), ratios)

    def all_reduce_s(self, num_tokens: Amount) -> Amount:
        """Two all-reduces a layer over the hidden state of `num_tokens` tokens, s."""
        if self.tp == 1:
            return 0.0 * num_tokens
        c, m = self.coefficients, self.model
        message_bytes = num_tokens * m.hidden * ACTIVATION_BYTES
        return 2.0 * m.num_layers * (c.all_reduce_s + message_bytes / c.all_reduce_bandwidth)

    def expert_exchange_s(self, num_tokens: Amount, rank_tokens: Amount) -> Amount:
        """Collectives of a layer with data-parallel attention, s.

        Every rank sends its tokens to all GPUs before the experts and gets their results back; within a rank of several
        GPUs attention ends with an all-reduce.
        """
        c, m = self.coefficients, self.model
        token_bytes = m.hidden * ACTIVATION_BYTES
        exchange = 2.0 * (c.all_to_all_s + num_tokens * token_bytes / c.all_to_all_bandwidth)
        if self.tp > self.attention_ranks:
            exchange = exchange + c.all_reduce_s + rank_tokens * token_bytes / c.all_reduce_bandwidth
        return m.num_layers * exchange

    def ranks_s(self, num_tokens: Amount, rank_tokens: Amount) -> Amount:
        """Matrices and collectives with data-parallel attention, s.

        Args:
            num_tokens: Tokens of the iteration.
            rank_tokens: Those of the rank with the most.
        """
        return self.matrices_s(num_tokens, rank_tokens) + self.expert_exchange_s(num_tokens, rank_tokens)

    def all_to_all_s(self, num_tokens: Amount) -> Amount:
        """Two all-to-alls a layer, before and after attention, when tokens are split over the base engines, s."""
        assert self.base is not None
        c, m = self.coefficients, self.model
        heads = 2 * (m.num_heads + m.num_kv_heads)  # queries, keys and values one way, attention output back
        message_bytes = num_tokens / self.tp * heads * m.head_dim * ACTIVATION_BYTES
        return m.num_layers * (2.0 * c.all_to_all_s + message_bytes / c.all_to_all_bandwidth)

    def tensor_parallel_s(self, num_tokens: Amount) -> Amount:
        """Matrices and collectives, tensor parallel, s."""
        return self.matrices_s(num_tokens) + self.all_reduce_s(num_tokens)

    def sequence_parallel_s(self, num_tokens: Amount) -> Amount:
        """Matrices and collectives, sequence parallel over the base engines, s."""
        assert self.base is not None
        share = -(-num_tokens // (self.tp // self.base.tp))
        return self.base.tensor_parallel_s(share) + self.all_to_all_s(num_tokens)

    def tokens_s(self, num_tokens: Amount) -> Amount:
        """Matrices and collectives of `num_tokens` tokens in the mode that runs, s."""
        if self.execution == "tp":
            return self.tensor_parallel_s(num_tokens)
        tensor, sequence = self.tensor_parallel_s(num_tokens), self.sequence_parallel_s(num_tokens)
        if self.shift_threshold_tokens is None:
            return np.minimum(tensor, sequence)
        return np.where(num_tokens > self.shift_threshold_tokens, sequence, tensor)  # type: ignore[return-value]

    @property
    def overhead_s(self) -> float:
        """Time of an empty iteration, s: host work and the launches of the small kernels of each layer."""
        return self.coefficients.fixed_s + self.model.num_layers * self.coefficients.layer_s

    @property
    def kv_s(self) -> float:
        """Reading one token of context, s."""
        memory = self.tp * self.gpu.bandwidth * self.coefficients.kv_bandwidth_ratio
        return self.model.kv_bytes_per_token / memory

    @property
    def pair_s(self) -> float:
        """Attention of one query-key pair of prefill, s: on the attention rank that has the whole prompt."""
        gpus = self.tp // self.attention_ranks
        peak = gpus * self.gpu.peak_flops("bf16") * self.coefficients.attention_flops_ratio
        return self.model.attention_flops_per_pair / peak

    @property
    def rank_sequence_s(self) -> float:
        """Work of a decoding sequence beyond its context, s, attention ranks working at once."""
        return self.coefficients.sequence_s / self.attention_ranks

    def decode_s(self, num_decode: Amount) -> Amount:
        """Pure decode iteration without the context term, s."""
        return self.overhead_s + self._decode_tokens_s(num_decode) + num_decode * self.rank_sequence_s

    def _decode_tokens_s(self, num_decode: Amount) -> Amount:
        if self.attention_ranks == 1:
            return self.tokens_s(num_decode)
        return self.ranks_s(num_decode, -(-num_decode // self.attention_ranks))

    def mixed_s(self, num_tokens: Amount, budget_tokens: float = np.inf) -> Amount:
        """Iteration that contains prefill, without the sequence, context and attention terms, s.

        Args:
            num_tokens: Tokens of the iteration.
            budget_tokens: Most tokens of an iteration, all attention ranks together. Prompts are taken to be on one
                rank as far as its share of them goes.
        """
        c = self.coefficients
        if self.attention_ranks == 1:
            here, tokens_s = num_tokens, self.tokens_s(num_tokens)
        else:
            share = budget_tokens / self.attention_ranks
            here = np.maximum(np.minimum(num_tokens, share), num_tokens / self.attention_ranks)
            tokens_s = self.ranks_s(num_tokens, here)
        eager_s = (here > CAPTURED_TOKENS) * self.model.num_layers * c.eager_layer_s
        return self.overhead_s + c.prefill_s + eager_s + tokens_s + here * c.token_s

    def iteration_s(
        self, num_decode: int, context_tokens: float, prefill_chunks: Iterable[tuple[int, int]] = ()
    ) -> float:
        """Time of one iteration, s.

        Args:
            num_decode: Decoding sequences.
            context_tokens: Their context together, tokens.
            prefill_chunks: (start, length) of each prefill chunk, tokens.
        """
        chunks = list(prefill_chunks)
        if not chunks:
            return self.decode_s(num_decode) + self.kv_s * context_tokens
        num_tokens = num_decode + sum(length for _, length in chunks)
        sequences = num_decode * self.rank_sequence_s
        attention = self.pair_s * attention_pairs(chunks)
        return self.mixed_s(num_tokens) + sequences + self.kv_s * context_tokens + attention

    def tables(self, max_num_seqs: int, max_num_batched_tokens: int) -> LatencyTables:
        """Rounds the model to the integers that the simulator kernel consumes.

        Args:
            max_num_seqs: Most sequences in an iteration.
            max_num_batched_tokens: Most tokens in an iteration.
        """
        sequences, tokens = np.arange(max_num_seqs + 1.0), np.arange(max_num_batched_tokens + 1.0)
        return LatencyTables(
            decode_ps=np.rint(self.decode_s(sequences) * PS_PER_S).astype(np.int64),
            mixed_ps=np.rint(self.mixed_s(tokens, max_num_batched_tokens) * PS_PER_S).astype(np.int64),
            sequence_ps=round(self.rank_sequence_s * PS_PER_S),
            kv_ps=round(self.kv_s * PS_PER_S),
            attn_fs=round(self.pair_s * FS_PER_S),
        )
