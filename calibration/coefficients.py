"""The coefficients of the latency model, and their values before any measurement."""

from dataclasses import dataclass

from serving_gym.calibration.hardware import GpuSpec

# vLLM captures graphs up to the smaller of 512 tokens and twice `max_num_seqs`, which measured runs set to 128.
CAPTURED_TOKENS = 256
# Tokens of an iteration at which `matrix_ratios` are given; between them they are interpolated in the logarithm.
RATIO_TOKENS = tuple(2**power for power in range(16))


@dataclass(frozen=True)
class LatencyCoefficients:
    """What separates a real engine from the data sheet, at one tensor-parallel width.

    Args:
        fixed_s: Host work of an iteration that the GPU waits for, s.
        layer_s: Small kernels and gaps of one layer, s.
        sequence_s: Work per decoding sequence of an iteration, s: host work and decode attention beyond its context.
        token_s: Element-wise work and prefill attention per token of an iteration that contains prefill, s.
        dense_bandwidth_ratio: Achieved share of memory bandwidth reading dense weights.
        dense_flops_ratio: Achieved share of peak arithmetic in dense matrices.
        roofline_sharpness: Exponent of the smooth maximum between the two.
        expert_bandwidth_ratio: As `dense_bandwidth_ratio`, experts.
        expert_flops_ratio: As `dense_flops_ratio`, experts.
        expert_sharpness: As `roofline_sharpness`, experts.
        kv_bandwidth_ratio: Achieved share of memory bandwidth reading the KV cache in decode attention.
        attention_flops_ratio: Achieved share of the bf16 peak in prefill attention.
        all_reduce_s: Latency of one all-reduce, s.
        all_reduce_bandwidth: Message bytes over time of a large all-reduce, bytes/s.
        all_to_all_s: Latency of one all-to-all, s.
        all_to_all_bandwidth: Message bytes over time of a large all-to-all, bytes/s.
        prefill_s: Work of an iteration with prefill that a decode iteration is spared, s.
        eager_layer_s: Launches of one layer in an iteration with prefill of more than `CAPTURED_TOKENS`, for which no
            graph was captured, s.
        matrix_ratios: Time of all matrices over what the smooth maximum gives, at each of `RATIO_TOKENS`; kernels of
            one size class do not follow any smooth form closer than a few per cent. Empty: 1 everywhere.
    """

    fixed_s: float
    layer_s: float
    sequence_s: float
    token_s: float
    dense_bandwidth_ratio: float
    dense_flops_ratio: float
    roofline_sharpness: float
    expert_bandwidth_ratio: float
    expert_flops_ratio: float
    expert_sharpness: float
    kv_bandwidth_ratio: float
    attention_flops_ratio: float
    all_reduce_s: float
    all_reduce_bandwidth: float
    all_to_all_s: float
    all_to_all_bandwidth: float
    prefill_s: float = 0.0
    eager_layer_s: float = 0.0
    matrix_ratios: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.matrix_ratios) not in (0, len(RATIO_TOKENS)):
            raise ValueError(
                f"matrix_ratios has {len(self.matrix_ratios)} entries; allowed: none or {len(RATIO_TOKENS)}"
            )


def roofline_coefficients(gpu: GpuSpec) -> LatencyCoefficients:
    """Coefficients assumed where nothing was measured (source: ours, typical of the fitted profiles)."""
    return LatencyCoefficients(
        fixed_s=0.5e-3,
        layer_s=15e-6,
        sequence_s=20e-6,
        token_s=1e-6,
        dense_bandwidth_ratio=0.7,
        dense_flops_ratio=0.75,
        roofline_sharpness=3.0,
        expert_bandwidth_ratio=0.8,
        expert_flops_ratio=0.5,
        expert_sharpness=0.7,
        kv_bandwidth_ratio=0.85,
        attention_flops_ratio=0.65,
        all_reduce_s=12e-6,
        all_reduce_bandwidth=0.25 * gpu.nvlink_bandwidth,
        all_to_all_s=10e-6,
        all_to_all_bandwidth=0.25 * gpu.nvlink_bandwidth,
    )
