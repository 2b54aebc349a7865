"""How much KV cache fits beside the weights."""

from serving_gym.calibration.hardware import GpuSpec
from serving_gym.calibration.models import ModelSpec

WEIGHT_LAYOUTS = ("sharded", "whole")


def check_fits(model: ModelSpec, gpu: GpuSpec, width: int, memory_utilization: float = 1.0) -> None:
    """Refuses an engine whose weights do not fit its GPUs.

    Args:
        model: The model.
        gpu: The GPU.
        width: GPUs that share one copy of the weights.
        memory_utilization: Share of device memory that may be used, ratio.

    Raises:
        ValueError: The width is not positive or the model does not fit; the message names needed and available memory.
    """
    if width < 1:
        raise ValueError(f"width={width} is not allowed; it must be at least 1")
    available = width * gpu.memory_bytes * memory_utilization
    if model.weight_bytes >= available:
        raise ValueError(
            f"{model.name} does not fit {width} x {gpu.name}: its weights need {model.weight_bytes / 1e9:.1f} GB, "
            f"available are {available / 1e9:.1f} GB (memory_utilization={memory_utilization:g})"
        )


def kv_capacity_tokens(
    model: ModelSpec,
    gpu: GpuSpec,
    width: int,
    memory_utilization: float = 0.8,
    weights: str = "sharded",
    base_width: int | None = None,
    attention_ranks: int = 1,
) -> int:
    """Tokens of KV cache that fit an engine, as Flying Serving counts them (Section 6.4.1, Table 2).

    Static engines shard one copy of the weights over `width` GPUs. A merged engine pools the memory of
    `width / base_width` base engines, each of which keeps a whole copy over its own `base_width` GPUs.

    Args:
        model: The model.
        gpu: The GPU.
        width: GPUs of the engine.
        memory_utilization: Share of device memory that may be used, ratio.
        weights: `sharded` over all GPUs, or `whole` in every base engine.
        base_width: With `whole`, GPUs of a base engine; None means `width`.
        attention_ranks: With `sharded`, ranks of data-parallel attention, each of which holds all dense weights.

    Raises:
        ValueError: The layout is unknown, the widths do not divide, or the model does not fit.
    """
    if weights not in WEIGHT_LAYOUTS:
        raise ValueError(f"weights={weights!r} is not allowed; choose one of {', '.join(WEIGHT_LAYOUTS)}")
    copy_width = width if weights == "sharded" or base_width is None else base_width
    if copy_width < 1 or width % copy_width:
        raise ValueError(f"base_width={copy_width} does not divide width={width}")
    check_fits(model, gpu, copy_width, memory_utilization)
    copies_bytes = (attention_ranks - 1) * model.dense_weight_bytes
    free_bytes = copy_width * gpu.memory_bytes * memory_utilization - model.weight_bytes - copies_bytes
    if free_bytes <= 0.0:
        raise ValueError(
            f"{model.name} does not fit {width} x {gpu.name} with {attention_ranks} copies of its dense weights, of "
            f"{model.dense_weight_bytes / 1e9:.1f} GB each"
        )
    return int(width // copy_width * free_bytes / model.kv_bytes_per_token)


def num_blocks(
    model: ModelSpec, gpu: GpuSpec, base_width: int, block_size: int = 16, memory_utilization: float = 0.8
) -> int:
    """KV blocks of one base engine that can hold KV: vLLM sets one more aside, its null block.

    The number does not change when engines merge: under merge degree p one block id stands for the same memory on p
    engines and holds `block_size * p` tokens (Flying Serving, Section 4.2).

    Args:
        model: The model.
        gpu: The GPU.
        base_width: GPUs of the base engine.
        block_size: Tokens per block in an engine on its own.
        memory_utilization: Share of device memory that may be used, ratio.

    Raises:
        ValueError: The block size is not positive or the model does not fit.
    """
    if block_size < 1:
        raise ValueError(f"block_size={block_size} is not allowed; it must be at least 1")
    return kv_capacity_tokens(model, gpu, base_width, memory_utilization) // block_size - 1


def block_capacity_tokens(block_size: int, merge_degree: int) -> int:
    """Tokens that one block id holds when `merge_degree` base engines work as one.

    Each of p engines keeps 1/p of a token's KV, so the bytes of a block hold p times the tokens: B(p) = B_base * p
    (Flying Serving, Section 4.2, equation 3).

    Args:
        block_size: Tokens per block in an engine on its own.
        merge_degree: p, base engines that work as one.
    """
    return block_size * merge_degree
