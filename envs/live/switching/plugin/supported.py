"""What the plugin can do: one pinned release of vLLM, and dense unquantised decoders on one node."""

from __future__ import annotations

from typing import Any

from . import NAME, VLLM_VERSION


def check_version(version: str) -> None:
    """Raises RuntimeError where vLLM is not the release that the plugin was written against."""
    if version.split("+", maxsplit=1)[0] != VLLM_VERSION:
        raise RuntimeError(
            f"{NAME} was written against vLLM {VLLM_VERSION}, whose internals it replaces; this is vLLM {version}"
        )


def check_config(config: Any) -> None:
    """Raises ValueError, in one sentence, where an engine is configured in a way that cannot switch.

    Args:
        config: a `VllmConfig`.
    """
    parallel, model, cache, scheduler = (
        config.parallel_config,
        config.model_config,
        config.cache_config,
        config.scheduler_config,
    )
    world = parallel.tensor_parallel_size
    kv_heads = model.get_total_num_kv_heads()
    demands = (
        (world >= 2 and not world & (world - 1), f"--tensor-parallel-size of 2, 4, 8, ..., not {world}"),
        (parallel.pipeline_parallel_size == 1, "--pipeline-parallel-size 1"),
        (parallel.data_parallel_size == 1, "--data-parallel-size 1: its ranks are the data parallelism"),
        (not parallel.enable_expert_parallel, "no --enable-expert-parallel"),
        (kv_heads % world == 0, f"a number of KV heads ({kv_heads}) that {world} ranks divide"),
        (model.enforce_eager, "--enforce-eager: graphs are not captured a mode"),
        (model.runner_type == "generate", "a model that generates"),
        (not model.is_encoder_decoder, "a decoder"),
        (not model.is_multimodal_model, "a model of text alone"),
        (not model.is_hybrid, "attention in every layer"),
        (config.quant_config is None, "weights without quantisation"),
        (config.lora_config is None, "no --enable-lora"),
        (config.speculative_config is None, "no speculative decoding"),
        (config.kv_transfer_config is None, "no --kv-transfer-config"),
        (cache.block_size is not None, "--block-size: tokens of a block in DP"),
        (
            not cache.enable_prefix_caching,
            "--no-enable-prefix-caching: blocks mean something else in each mode",
        ),
        (not scheduler.async_scheduling, "--no-async-scheduling"),
        (not config.use_v2_model_runner, "VLLM_USE_V2_MODEL_RUNNER=0"),
    )
    unmet = [demand for met, demand in demands if not met]
    if unmet:
        raise ValueError(f"{NAME} needs {'; '.join(unmet)}")
