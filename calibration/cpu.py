"""Iteration times of a CPU that serves: a roofline, held against the little that a paper says of one.

LLM-Mesh (section 3.1) ran vLLM with OpenVINO on a 32-core Xeon 6462C with AMX and 16-bit weights. No table of its
measurements is public, and its figures are not at hand; the text says:

1. Llama-2-7B, 1k tokens: a batch of 16 takes 69 % longer a token than a batch of 1.
2. Llama-2-13B, batch of 32: 2k tokens take 2.0 times as long a token as 512, and more than 0.25 s.
3. 7B and 13B have their first token within max(2, input / 512) s, a model of 22B does not "as the input length
   increased": between 14 and 22.7 TFLOP/s are reached (13B at 4096 tokens, 22B at 1024).

Two of the concurrencies that section 8.1 tailors to the CPU, 15 for 7B and 6 for 13B, are what these times allow within
0.25 s if every sequence has 4096 tokens; for 3B they allow 81 where the paper has 59.

The form is `calibration.latency`'s. Its ratio of arithmetic is the geometric mean of what 3 allows, the one of KV
bandwidth follows from 1, and 2 is what remains to check it by; the rest is ours, for want of anything better: memory
bandwidth as GPUs reach it, and a soft corner between memory and arithmetic. Whatever rests on these times rests on a
roofline and must say so.
"""

from serving_gym.calibration.coefficients import LatencyCoefficients
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.latency import LatencyModel
from serving_gym.calibration.lookup import check_choice
from serving_gym.calibration.models import get_model

CPU_NAMES = ("Xeon-32c-AMX",)
REACHED_FLOPS = (14.0e12, 22.7e12)  # between these, by 3


def cpu_latency_model(model: str, cpu: str = CPU_NAMES[0]) -> LatencyModel:
    """Latency of a model on a CPU of one socket.

    Args:
        model: Name of the model.
        cpu: Name of the CPU in `calibration.hardware`.

    Raises:
        ValueError: the model is unknown, or `cpu` is none.
    """
    check_choice("cpu", cpu, CPU_NAMES)
    return LatencyModel(get_model(model), get_gpu(cpu), 1, CPU_COEFFICIENTS)


CPU_COEFFICIENTS = LatencyCoefficients(
    fixed_s=1e-3,  # source: ours
    layer_s=15e-6,  # source: ours, as GPUs
    sequence_s=0.0,
    token_s=0.0,
    dense_bandwidth_ratio=0.7,  # source: ours, as GPUs
    dense_flops_ratio=(REACHED_FLOPS[0] * REACHED_FLOPS[1]) ** 0.5 / get_gpu(CPU_NAMES[0]).flops["bf16"],
    roofline_sharpness=2.0,  # source: ours
    expert_bandwidth_ratio=0.7,
    expert_flops_ratio=0.1,
    expert_sharpness=2.0,
    kv_bandwidth_ratio=0.594,  # by 1
    attention_flops_ratio=(REACHED_FLOPS[0] * REACHED_FLOPS[1]) ** 0.5 / get_gpu(CPU_NAMES[0]).flops["bf16"],
    all_reduce_s=0.0,
    all_reduce_bandwidth=get_gpu(CPU_NAMES[0]).nvlink_bandwidth,
    all_to_all_s=0.0,
    all_to_all_bandwidth=get_gpu(CPU_NAMES[0]).nvlink_bandwidth,
)
