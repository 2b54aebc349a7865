"""What a language model's architecture says about serving it: weights, KV cache and work per token.

Nothing here is measured.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Amount = TypeVar("Amount", float, NDArray[np.float64])  # one number of tokens, or many at once


@dataclass(frozen=True)
class ModelSpec:
    """Architecture of a decoder-only transformer, as far as serving time and memory depend on it.

    Args:
        name: Name used in configurations and profiles.
        num_layers: Transformer layers.
        hidden: Width of the residual stream.
        num_heads: Query heads.
        num_kv_heads: Key/value heads (grouped-query attention when fewer than `num_heads`).
        head_dim: Width of a head.
        intermediate: Inner width of the dense feed-forward block (with experts: of the one every token visits, the
            shared expert); 0 when every layer has routed experts only.
        vocab: Vocabulary size.
        max_model_len: Longest context, tokens.
        num_experts: Experts per layer; 0 for a dense model.
        experts_per_token: Experts each token is sent to.
        expert_intermediate: Inner width of one expert.
        weight_dtype_bytes: Bytes per dense weight.
        expert_dtype_bytes: Bytes per expert weight, block scales included.
        kv_dtype_bytes: Bytes per KV-cache element.
        compute_dtype: Data type of the matrix products, a key of `GpuSpec.flops`.
        sliding_window: Window of the local-attention layers, tokens; 0 for none.
        window_layer_share: Share of the layers that attend only within the window.
        nominal_weight_bytes: Replaces the counted weight size, bytes, where a source states its own.
        mlp_matrices: Matrices of the dense feed-forward block: 3 with a gate, 2 without.
        latent_kv: Elements of the compressed key/value of one token and layer (multi-head latent attention), which
            every GPU of an engine keeps whole; 0 for ordinary heads.
    """

    name: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_model_len: int
    num_experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    weight_dtype_bytes: float = 2.0
    expert_dtype_bytes: float = 2.0
    kv_dtype_bytes: float = 2.0
    compute_dtype: str = "bf16"
    sliding_window: int = 0
    window_layer_share: float = 0.0
    nominal_weight_bytes: float | None = None
    mlp_matrices: int = 3
    latent_kv: int = 0

    @property
    def attention_params(self) -> int:
        """Weights of the query, key, value and output projections of all layers."""
        q_and_o = 2 * self.hidden * self.num_heads * self.head_dim
        k_and_v = 2 * self.hidden * self.num_kv_heads * self.head_dim
        return self.num_layers * (q_and_o + k_and_v)

    @property
    def dense_params(self) -> int:
        """Weights outside experts and vocabulary: attention, dense feed-forward, router."""
        per_layer = self.mlp_matrices * self.hidden * self.intermediate + self.hidden * self.num_experts
        return self.attention_params + self.num_layers * per_layer

    @property
    def expert_params(self) -> int:
        """Weights of one expert of one layer (gate, up and down projections)."""
        return 3 * self.hidden * self.expert_intermediate

    @property
    def head_params(self) -> int:
        """Weights of the output head; the input embedding has as many."""
        return self.vocab * self.hidden

    @property
    def weight_bytes(self) -> float:
        """Memory of all weights, bytes; embedding and head are held in 16 bits whatever the rest is."""
        if self.nominal_weight_bytes is not None:
            return self.nominal_weight_bytes
        experts = self.num_layers * self.num_experts * self.expert_params * self.expert_dtype_bytes
        return self.dense_weight_bytes + experts

    @property
    def dense_weight_bytes(self) -> float:
        """Memory of the weights outside experts, bytes."""
        return self.dense_params * self.weight_dtype_bytes + 2 * self.head_params * 2.0

    @property
    def dense_read_bytes(self) -> float:
        """Dense weights that every iteration reads, bytes: layers and head, not the input embedding."""
        return self.dense_params * self.weight_dtype_bytes + self.head_params * 2.0

    def expert_coverage(self, num_tokens: Amount) -> Amount:
        """Expected share of the experts touched by `num_tokens` tokens, ratio in [0, 1].

        Routing is taken as uniform and independent: 1 - (1 - k/E)^n.
        """
        if self.num_experts == 0:
            return 0.0 * num_tokens
        return 1.0 - (1.0 - self.experts_per_token / self.num_experts) ** num_tokens

    def expert_read_bytes(self, num_tokens: Amount) -> Amount:
        """Expected bytes of expert weights that an iteration of `num_tokens` tokens reads."""
        all_experts = self.num_layers * self.num_experts * self.expert_params * self.expert_dtype_bytes
        return all_experts * self.expert_coverage(num_tokens)

    @property
    def dense_flops_per_token(self) -> float:
        """Operations per token in dense matrices, FLOP; the head, needed once a sequence, is left out."""
        return 2.0 * self.dense_params

    @property
    def expert_flops_per_token(self) -> float:
        """Operations per token in its experts, FLOP."""
        return 2.0 * self.num_layers * self.experts_per_token * self.expert_params

    @property
    def full_attention_layers(self) -> float:
        """Layers that attend to the whole context."""
        return self.num_layers * (1.0 - self.window_layer_share)

    @property
    def window_layers(self) -> float:
        """Layers that attend only within the sliding window."""
        return self.num_layers * self.window_layer_share

    @property
    def kv_bytes_per_layer_token(self) -> float:
        """Key and value of one token in one layer, bytes."""
        elements = self.latent_kv or 2.0 * self.num_kv_heads * self.head_dim
        return elements * self.kv_dtype_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """KV cache that one more token of context needs, bytes.

        Sliding-window layers keep a constant amount per sequence, as in vLLM's hybrid KV cache manager, and do not
        count here.
        """
        return self.full_attention_layers * self.kv_bytes_per_layer_token

    @property
    def attention_flops_per_pair(self) -> float:
        """Work of one query-key pair over the full-attention layers, FLOP (scores and weighted sum)."""
        return 4.0 * self.num_heads * self.head_dim * self.full_attention_layers
