"""The language models this project knows.

Every number follows from the published model configuration (`config.json` of the checkpoint). A name with `-fp8`,
`-fp4` or `-int4` behind it is the same model with its matrices in that type; with `-kv8`, with its KV cache in 8 bits.
"""

from dataclasses import replace

from serving_gym.calibration.architecture import ModelSpec
from serving_gym.calibration.lookup import nearest

__all__ = ["MODELS", "ModelSpec", "get_model", "quantised"]

LLAMA_3_1_8B = ModelSpec(
    name="llama-3.1-8b",
    num_layers=32,
    hidden=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab=128256,
    max_model_len=131072,
)

LLAMA_3_1_70B = ModelSpec(
    name="llama-3.1-70b",
    num_layers=80,
    hidden=8192,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    intermediate=28672,
    vocab=128256,
    max_model_len=131072,
)

GPT_OSS_120B = ModelSpec(
    name="gpt-oss-120b",
    num_layers=36,
    hidden=2880,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    intermediate=0,
    vocab=201088,
    max_model_len=131072,
    num_experts=128,
    experts_per_token=4,
    expert_intermediate=2880,
    expert_dtype_bytes=4.25 / 8,  # MXFP4: 4 bits and an 8-bit scale for each block of 32
    sliding_window=128,
    window_layer_share=0.5,
)

LLAMA_2_7B = ModelSpec(
    name="llama-2-7b",
    num_layers=32,
    hidden=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    intermediate=11008,
    vocab=32000,
    max_model_len=4096,
)

LLAMA_2_13B = replace(
    LLAMA_2_7B,
    name="llama-2-13b",
    num_layers=40,
    hidden=5120,
    num_heads=40,
    num_kv_heads=40,
    intermediate=13824,
)

CODESTRAL_22B = ModelSpec(
    name="codestral-22b",
    num_layers=56,
    hidden=6144,
    num_heads=48,
    num_kv_heads=8,
    head_dim=128,
    intermediate=16384,
    vocab=32768,
    max_model_len=32768,
)

LLAMA_2_70B = replace(LLAMA_3_1_70B, name="llama-2-70b", vocab=32000, max_model_len=4096)

CODELLAMA_34B = replace(
    LLAMA_2_70B, name="codellama-34b", num_layers=48, intermediate=22016, max_model_len=16384
)

YI_34B = replace(
    LLAMA_2_70B,
    name="yi-34b",
    num_layers=60,
    hidden=7168,
    num_heads=56,
    intermediate=20480,
    vocab=64000,
    max_model_len=4096,
)

LLAMA_30B = replace(
    LLAMA_2_7B,
    name="llama-30b",
    num_layers=60,
    hidden=6656,
    num_heads=52,
    num_kv_heads=52,
    intermediate=17920,
    max_model_len=2048,
)

OPT_30B = ModelSpec(
    name="opt-30b",
    num_layers=48,
    hidden=7168,
    num_heads=56,
    num_kv_heads=56,
    head_dim=128,
    intermediate=28672,
    vocab=50272,
    max_model_len=2048,
    mlp_matrices=2,
)

OPT_66B = replace(
    OPT_30B, name="opt-66b", num_layers=64, hidden=9216, num_heads=72, num_kv_heads=72, intermediate=36864
)

BLOOM_176B = ModelSpec(
    name="bloom-176b",
    num_layers=70,
    hidden=14336,
    num_heads=112,
    num_kv_heads=112,
    head_dim=128,
    intermediate=57344,
    vocab=250880,
    max_model_len=2048,
    mlp_matrices=2,
)

LLAMA_3_2_3B = replace(
    LLAMA_3_1_8B, name="llama-3.2-3b", num_layers=28, hidden=3072, num_heads=24, intermediate=8192
)

QWEN3_32B = ModelSpec(
    name="qwen3-32b",
    num_layers=64,
    hidden=5120,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    intermediate=25600,
    vocab=151936,
    max_model_len=40960,
)

QWEN2_5_7B = ModelSpec(
    name="qwen2.5-7b",
    num_layers=28,
    hidden=3584,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    intermediate=18944,
    vocab=152064,
    max_model_len=32768,
)

MISTRAL_NEMO = ModelSpec(
    name="mistral-nemo",
    num_layers=40,
    hidden=5120,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab=131072,
    max_model_len=131072,
)

MISTRAL_LARGE = replace(
    MISTRAL_NEMO,
    name="mistral-large",
    num_layers=88,
    hidden=12288,
    num_heads=96,
    intermediate=28672,
    vocab=32768,
)

MIXTRAL_8X7B = ModelSpec(
    name="mixtral-8x7b",
    num_layers=32,
    hidden=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate=0,
    vocab=32000,
    max_model_len=32768,
    num_experts=8,
    experts_per_token=2,
    expert_intermediate=14336,
)

QWEN3_235B = ModelSpec(
    name="qwen3-235b-a22b",
    num_layers=94,
    hidden=4096,
    num_heads=64,
    num_kv_heads=4,
    head_dim=128,
    intermediate=0,
    vocab=151936,
    max_model_len=40960,
    num_experts=128,
    experts_per_token=8,
    expert_intermediate=1536,
)

MINIMAX_M2_5 = ModelSpec(
    name="minimax-m2.5",
    num_layers=62,
    hidden=3072,
    num_heads=48,
    num_kv_heads=8,
    head_dim=128,
    intermediate=0,
    vocab=200064,
    max_model_len=196608,
    num_experts=256,
    experts_per_token=8,
    expert_intermediate=1536,
)

# Three layers of four attend within chunks of 8192 tokens; counted as full attention, as contexts served are shorter.
LLAMA_4_SCOUT = ModelSpec(
    name="llama-4-scout",
    num_layers=48,
    hidden=5120,
    num_heads=40,
    num_kv_heads=8,
    head_dim=128,
    intermediate=8192,
    vocab=202048,
    max_model_len=10 * 1024 * 1024,
    num_experts=16,
    experts_per_token=1,
    expert_intermediate=8192,
)

# Latent attention is counted with heads of 128 and the low-rank projections as one matrix each of about their size.
DEEPSEEK_V3 = ModelSpec(
    name="deepseek-v3",
    num_layers=61,
    hidden=7168,
    num_heads=128,
    num_kv_heads=1,
    head_dim=128,
    intermediate=2048,
    vocab=129280,
    max_model_len=163840,
    num_experts=256,
    experts_per_token=8,
    expert_intermediate=2048,
    latent_kv=576,
)

KIMI_K2_5 = replace(
    DEEPSEEK_V3, name="kimi-k2.5", num_heads=64, vocab=163840, max_model_len=262144, num_experts=384
)

# What `backend.launch=true` starts on a CPU where no model is named (`envs.live.tiny_model`).
TINY_LLAMA = ModelSpec(
    name="tiny-llama",
    num_layers=4,
    hidden=256,
    num_heads=4,
    num_kv_heads=4,
    head_dim=64,
    intermediate=688,
    vocab=4096,
    max_model_len=4096,
)

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        TINY_LLAMA,
        GPT_OSS_120B,
        replace(GPT_OSS_120B, name="gpt-oss-20b", num_layers=24, num_experts=32),
        replace(LLAMA_3_1_8B, name="nemotron-8b-ultralong", max_model_len=4 * 1024 * 1024),
        replace(LLAMA_3_1_70B, name="llama-3-70b", max_model_len=8192, nominal_weight_bytes=140e9),
        LLAMA_3_2_3B,
        LLAMA_3_1_8B,
        LLAMA_3_1_70B,
        LLAMA_2_7B,
        LLAMA_2_13B,
        LLAMA_2_70B,
        CODESTRAL_22B,
        CODELLAMA_34B,
        YI_34B,
        LLAMA_30B,
        OPT_30B,
        OPT_66B,
        BLOOM_176B,
        QWEN3_32B,
        replace(QWEN3_32B, name="qwen3-14b", num_layers=40, num_heads=40, intermediate=17408),
        replace(QWEN3_32B, name="qwen3-8b", num_layers=36, hidden=4096, num_heads=32, intermediate=12288),
        QWEN2_5_7B,
        replace(QWEN3_32B, name="qwen2.5-32b", num_heads=40, intermediate=27648, vocab=152064),
        replace(LLAMA_3_1_70B, name="qwen2.5-72b", intermediate=29568, vocab=152064, max_model_len=32768),
        replace(LLAMA_3_1_8B, name="mistral-7b", vocab=32768, max_model_len=32768),
        MISTRAL_NEMO,
        MISTRAL_LARGE,
        MIXTRAL_8X7B,
        replace(
            MIXTRAL_8X7B,
            name="mixtral-8x22b",
            num_layers=56,
            hidden=6144,
            num_heads=48,
            vocab=32768,
            max_model_len=65536,
            expert_intermediate=16384,
        ),
        QWEN3_235B,
        replace(
            QWEN3_235B,
            name="qwen3-30b-a3b",
            num_layers=48,
            hidden=2048,
            num_heads=32,
            expert_intermediate=768,
        ),
        MINIMAX_M2_5,
        LLAMA_4_SCOUT,
        DEEPSEEK_V3,
        KIMI_K2_5,
    )
}

# Bytes per weight, block scales included, and the type of the arithmetic; weight-only int4 multiplies in 16 bits.
PRECISIONS = ("fp8", "fp4", "int4", "kv8")
_FP4_BYTES, _INT4_BYTES = 4.5 / 8, 4.25 / 8


def quantised(model: ModelSpec, precision: str) -> ModelSpec:
    """The same model with its matrices in another type.

    Args:
        model: The model in 16 bits.
        precision: `fp8`, `fp4` (both, attention included), `int4` (experts only) or `kv8` (KV cache only).

    Raises:
        ValueError: The precision is none of these.
    """
    name = f"{model.name}-{precision}"
    if precision == "fp8":
        return replace(model, name=name, weight_dtype_bytes=1.0, expert_dtype_bytes=1.0, compute_dtype="fp8")
    if precision == "fp4":
        size = _FP4_BYTES
        return replace(
            model, name=name, weight_dtype_bytes=size, expert_dtype_bytes=size, compute_dtype="fp4"
        )
    if precision == "int4":
        return replace(model, name=name, expert_dtype_bytes=_INT4_BYTES)
    if precision == "kv8":
        return replace(model, name=name, kv_dtype_bytes=1.0)
    raise ValueError(f"precision={precision!r} is not allowed; choose one of {', '.join(PRECISIONS)}")


def get_model(name: str) -> ModelSpec:
    """Looks a model up by name.

    Args:
        name: One of `MODELS`, perhaps with a precision behind it (`llama-3.1-70b-fp8`).

    Raises:
        ValueError: The model is unknown; the message names the nearest known one.
    """
    base, _, precision = name.rpartition("-")
    if name not in MODELS and precision in PRECISIONS:
        return quantised(get_model(base), precision)
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}{nearest(name, MODELS)}")
    return MODELS[name]
