"""KV Cache Adaptor (Flying Serving, section 4.2): one block pool for every degree of tensor parallelism.

A block of B tokens and H heads in DP is one of B * p tokens and H / p heads in a group of p: the same bytes (equations
2 and 3), read through another shape. vLLM makes the shape; here it is given the buffer that is there already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, create_kv_cache_views

from . import NAME


def check_kv(config: KVCacheConfig, layout: Any) -> None:
    """Raises ValueError where a block is not one run of bytes that can be read in another shape."""
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    if len(specs) != 1 or type(specs[0]) is not FullAttentionSpec:
        kinds = ", ".join(type(spec).__name__ for spec in specs)
        raise ValueError(f"{NAME} needs full attention in every layer, got {kinds}")
    if layout is not None and not layout.is_block_compact:
        raise ValueError(f"{NAME} needs a KV layout whose blocks are one run of bytes, got {layout.name}")


def config_of(widest: KVCacheConfig, degree: int, degree_of_widest: int) -> KVCacheConfig:
    """The KV cache as groups of a degree see it: the same blocks, B * p tokens of H / p heads.

    Args:
        widest: as the widest group sees it.
        degree: ranks of a group, p.
        degree_of_widest: ranks of the widest group.
    """
    (group,) = widest.kv_cache_groups
    wider, spec = degree_of_widest // degree, group.kv_cache_spec
    seen = replace(spec, block_size=spec.block_size // wider, num_kv_heads=spec.num_kv_heads * wider)
    assert seen.page_size_bytes == spec.page_size_bytes  # equation (2): M_block is constant
    return replace(widest, kv_cache_groups=[replace(group, kv_cache_spec=seen)])


def buffer_of(kv_cache: Tensor) -> Tensor:
    """The bytes that a layer's KV cache is a view of."""
    return torch.empty(0, dtype=torch.int8, device=kv_cache.device).set_(kv_cache.untyped_storage())


def view_kv_cache(
    buffer: Tensor, config: KVCacheConfig, layout: Any, kernel_block_sizes: list[int] | None
) -> dict[str, Tensor]:
    """`allocate_kv_cache` of vLLM without the allocation.

    Args:
        buffer: bytes of the whole KV cache.
        config: shape of the blocks.
        layout: order of the dimensions.
        kernel_block_sizes: tokens of a block as the attention kernel sees it, by KV cache group.
    """
    (group,) = config.kv_cache_groups
    kernel_block_size = kernel_block_sizes[0] if kernel_block_sizes else None
    views: dict[str, Tensor] = {}
    for tensor in config.kv_cache_tensors:
        blocks = config.num_blocks_of(tensor)
        seen = create_kv_cache_views(
            buffer, group.kv_cache_spec, blocks, layout, tensor, kernel_block_size=kernel_block_size
        )
        views.update(zip(tensor.layers, seen, strict=True))
    return views
