"""What changes cost: live switch, cold start, communicator pool, loading weights, migration, resizing a KV pool.

Source of the first three: Flying Serving, Table 2 (Llama-3-70B on H200) and Section 4.3. The paper states 15 ms for a
live switch and a cold start of 292.38, 211.97 and 146.54 s with 2, 4 and 8 GPUs per engine.
"""

from dataclasses import dataclass

LIVE_SWITCH_S = 0.015
COLD_START_S = {2: 292.38, 4: 211.97, 8: 146.54}
COLD_START_WEIGHT_BYTES = 140e9  # Llama-3-70B in 16 bits, the model of Table 2
COMMUNICATOR_START_S = 1.0  # per process group; source: ours, the paper gives no number

# Loading weights from local NVMe (29 GB/s) to an H100, bytes/s, by format: least squares through the origin over 90
# loads of distinct copies of Llama-3.1-8B, Qwen3-32B and DeepSeek-R1-Distill-Qwen-32B (16.1, 65.5 and 65.5 GB) each,
# published by ServerlessLLM (`loading_time_s`). Single models reach 3.2-3.6 and 20.3-23.7 GB/s.
STORAGE_BYTES_PER_S = {"safetensors": 3.31e9, "serverlessllm": 20.4e9}

# A node's network, bytes/s each way: 200 Gbit/s, the lower `node_inter_node_bw` of aiconfigurator's system table.
LINK_BYTES_PER_S = 25e9

# A stage of a live migration, besides the copy, s. Llumnix (OSDI 24, section 6.2) reports a downtime of some 20 to 30
# ms whatever the length of the sequence. Its last stage copies a few tokens, which takes less than a millisecond, so
# what it reports is what a stage takes to set up: pre-allocation, acknowledgement, launch. This is the lower end.
MIGRATION_STAGE_S = 0.02

# A stage that copies no fewer tokens than the one before is the last one, unless it is of more blocks than these, which
# is a link too slow to follow: `migration_last_stage_max_blocks` of Llumnix's released defaults.
MIGRATION_LAST_STAGE_MAX_BLOCKS = 16

# LLM-Mesh, section 6.2: "scaling the original 32GB KV-cache space down to 16GB or up to 64GB requires 0.3 s and 1.9 s,
# respectively" (A100-80GB). Two numbers give two rates: what is kept is copied, what is added is created.
KV_COPY_S_PER_BYTE = 0.3 / 16e9
KV_CREATE_S_PER_BYTE = (1.9 - 0.3 * 32 / 16) / 32e9


@dataclass(frozen=True)
class ColdStartRule:
    """Cold start as a fixed part and a load time proportional to the weights on each GPU.

    Args:
        fixed_s: Process start, collectives, graph capture, s.
        s_per_byte: Load time per byte of weights on one GPU, s.
    """

    fixed_s: float
    s_per_byte: float

    def seconds(self, weight_bytes: float, width: int) -> float:
        """Cold start of an engine of `width` GPUs, s."""
        return self.fixed_s + self.s_per_byte * weight_bytes / width


def fit_cold_start() -> ColdStartRule:
    """Least-squares line through the paper's three cold starts against weight bytes per GPU.

    The three points are not quite on a line (residuals up to 14 s). Width 1 and every other model are extrapolations.
    """
    loads = [COLD_START_WEIGHT_BYTES / width for width in COLD_START_S]
    times = list(COLD_START_S.values())
    mean_load, mean_time = sum(loads) / len(loads), sum(times) / len(times)
    covariance = sum((x - mean_load) * (y - mean_time) for x, y in zip(loads, times, strict=True))
    slope = covariance / sum((x - mean_load) ** 2 for x in loads)
    return ColdStartRule(fixed_s=mean_time - slope * mean_load, s_per_byte=slope)


COLD_START_RULE = fit_cold_start()


def cold_start_s(weight_bytes: float, width: int) -> float:
    """Cold start of an engine, s: the paper's number where it has one, the fitted rule elsewhere.

    Args:
        weight_bytes: All weights of the model, bytes.
        width: GPUs of the engine.

    Raises:
        ValueError: The width is not positive.
    """
    if width < 1:
        raise ValueError(f"width={width} is not allowed; it must be at least 1")
    if weight_bytes == COLD_START_WEIGHT_BYTES and width in COLD_START_S:
        return COLD_START_S[width]
    return COLD_START_RULE.seconds(weight_bytes, width)


def kv_resize_s(old_bytes: float, new_bytes: float) -> float:
    """Time for which an engine stands still while its KV pool is resized, s.

    "Scaling it requires creating new blocks, and copy the original KV-cache from old blocks to new blocks" (LLM-Mesh,
    section 6.2). The pool counts, not what of it is used, as in the measurement.

    Args:
        old_bytes: Pool on each GPU before, bytes.
        new_bytes: Pool on each GPU after, bytes.
    """
    kept, added = min(old_bytes, new_bytes), max(new_bytes - old_bytes, 0.0)
    return kept * KV_COPY_S_PER_BYTE + added * KV_CREATE_S_PER_BYTE


def communicator_pool_s(num_groups: int) -> float:
    """Time that building a communicator pool adds to a start, s.

    Flying Serving, Section 4.3: groups are built once at start-up, for physically contiguous devices only.

    Args:
        num_groups: Groups of two or more base engines.
    """
    return num_groups * COMMUNICATOR_START_S
