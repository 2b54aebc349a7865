"""Electric power of GPUs that idle, decode and prefill.

Power limits: NVIDIA data sheets, as in aiconfigurator's system table (`gpu_power`); A40 from its own data sheet, the
power-capped H100 at half of its limit (Splitwise, ISCA'24).

Shares of the limit while decoding and while prefilling: Splitwise's measurements of Llama-2-70B on A100-80GB with 2, 4
and 8 GPUs, whose `average_power_rel` is average power over an unstated base. We take the base to be the power limit,
because `peak_power_rel` saturates at 0.98 to 1.06 for prompts of 1024 tokens and more whatever the number of GPUs, as
power does at its limit. Energy adds up, so the shares are the least-squares solution of

    average_power_rel * e2e_time = prefill * prompt_time + decode * (e2e_time - prompt_time)

over runs with 128 output tokens (longer ones stopped early) and prompts up to 4096 tokens; `calibration.fitting.power`
does it. A GPU of a wider engine draws less, as it waits for the others. The table has no power of H100; BLOOM-176B on 8
GPUs, which has more to read on each, draws 0.63 while decoding instead of 0.43.

Idle, a replica loaded and nothing running: 80.3 W of an H200 (published measurement of Serial Alice, 2026), 11.5 % of
its limit. It does not depend on how much memory is filled (arXiv 2605.23918).

Assumed: other GPUs draw the same shares of their limits, engines of other widths those of the nearest measured one.
CPU, memory, network and cooling of a server are not counted.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

POWER_LIMIT_W: Mapping[str, float] = MappingProxyType(
    {
        "A40": 300.0,
        "A100-80GB": 400.0,
        "H100": 700.0,
        "H100-pcap": 350.0,
        "H200": 700.0,
        "L40S": 350.0,
        "B200": 1000.0,
        "B300": 1100.0,
    }
)
IDLE_SHARE = 80.3 / 700.0
PREFILL_SHARE: Mapping[int, float] = MappingProxyType({2: 0.82, 4: 0.75, 8: 0.49})  # by GPUs of the engine
DECODE_SHARE: Mapping[int, float] = MappingProxyType({2: 0.73, 4: 0.59, 8: 0.43})


@dataclass(frozen=True)
class Power:
    """Power of one GPU, W.

    Args:
        idle_w: A replica is loaded, nothing runs.
        decode_w: In iterations of decoding requests only.
        prefill_w: In iterations that contain prefill.
    """

    idle_w: float
    decode_w: float
    prefill_w: float


def power_of(gpu: str, num_gpus: int) -> Power:
    """Power of each GPU of an engine; NaN where the GPU has no power limit on record.

    Args:
        gpu: Name of the GPU.
        num_gpus: GPUs that work on one iteration together: the tensor-parallel degree.
    """
    limit_w = POWER_LIMIT_W.get(gpu, math.nan)
    nearest = min(DECODE_SHARE, key=lambda measured: abs(math.log2(measured / num_gpus)))
    return Power(IDLE_SHARE * limit_w, DECODE_SHARE[nearest] * limit_w, PREFILL_SHARE[nearest] * limit_w)
