"""A Llama small enough for two CPU cores: a configuration alone, as vLLM makes the weights up."""

from __future__ import annotations

import json
from pathlib import Path

LONGEST = 4096  # tokens of a request
# 5.3 million parameters; its KV cache takes 4 KiB a token.
TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "use_cache": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KV_BYTES_PER_TOKEN = 2 * 4 * 64 * 2 * 4  # key and value, heads, head_dim, bytes, layers


def write_tiny_model(folder: Path) -> Path:
    """Writes the model's folder, which any vLLM can serve with made-up weights and without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA, indent=1) + "\n", encoding="utf-8")
    return folder
