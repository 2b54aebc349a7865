"""Data-sheet numbers of the GPUs, and of one CPU that serves.

Source: NVIDIA data sheets of the SXM parts (A40 and L40S: PCIe), dense rates without sparsity. What a kernel reaches of
them is a fitted coefficient of the latency model, never a number here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from serving_gym.calibration.lookup import nearest


@dataclass(frozen=True)
class GpuSpec:
    """One GPU.

    Args:
        name: Name used in configurations and profiles.
        memory_bytes: Device memory as advertised (1 GB = 1e9 bytes), bytes.
        bandwidth: Peak memory bandwidth, bytes/s.
        flops: Peak dense rate by data type (`bf16`, `fp8`, `fp4`), FLOP/s; a type the GPU lacks runs at the bf16 rate.
        nvlink_bandwidth: Interconnect bandwidth, both directions together, bytes/s (PCIe where there is no NVLink).
        pcie_bandwidth: Link to host memory, one direction, bytes/s. Source: ai-dynamo/aiconfigurator's system tables
            (`node_pcie_bw`); of A40 and Xeon the data sheets.
        price_usd_per_hour: Rental price, USD per hour; None where no price is assumed. Source: AWS on demand, November
            2026, p4de.24xlarge and p5.48xlarge over their 8 GPUs (SageServe counts 98.32 / 8 for an H100 on Azure).
    """

    name: str
    memory_bytes: float
    bandwidth: float
    flops: Mapping[str, float] = field(hash=False)
    nvlink_bandwidth: float
    price_usd_per_hour: float | None = None
    pcie_bandwidth: float = 32e9

    def peak_flops(self, dtype: str) -> float:
        """Peak dense rate for `dtype`, FLOP/s; types without hardware support fall back to bf16."""
        return self.flops.get(dtype, self.flops["bf16"])


GPUS: Mapping[str, GpuSpec] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            GpuSpec("A40", 48e9, 696e9, {"bf16": 149.7e12}, 112.5e9),
            GpuSpec("A100-80GB", 80e9, 2.039e12, {"bf16": 312e12}, 600e9, 3.43),
            GpuSpec("H100", 80e9, 3.35e12, {"bf16": 989e12, "fp8": 1979e12}, 900e9, 6.88, 64e9),
            GpuSpec("H200", 141e9, 4.8e12, {"bf16": 989e12, "fp8": 1979e12}, 900e9, None, 64e9),
            GpuSpec("L40S", 48e9, 864e9, {"bf16": 362e12, "fp8": 733e12}, 64e9),
            GpuSpec(
                "B200", 180e9, 8.0e12, {"bf16": 2250e12, "fp8": 4500e12, "fp4": 9000e12}, 1800e9, None, 128e9
            ),
            GpuSpec(
                "B300", 270e9, 8.0e12, {"bf16": 2250e12, "fp8": 4500e12, "fp4": 13500e12}, 1800e9, None, 128e9
            ),
            # Splitwise's power-capped H100 (ISCA'24): the same part at half of its power.
            GpuSpec("H100-pcap", 80e9, 3.35e12, {"bf16": 989e12, "fp8": 1979e12}, 900e9, None, 64e9),
            # One socket of a 32-core 4th-generation Xeon: 8 channels of DDR5-4800, AMX at 2.0 GHz (2048 operations a
            # core and cycle); `nvlink_bandwidth` is the link to a second socket. Nothing here was ever measured.
            GpuSpec("Xeon-32c-AMX", 512e9, 307.2e9, {"bf16": 131e12}, 96e9),
            # A core of the machine that servers are launched on (`runners.calibrate backend=vllm`). Nominal figures:
            # what is reached of them is in the profile.
            GpuSpec("cpu", 16e9, 40e9, {"bf16": 500e9}, 40e9),
        )
    }
)


def get_gpu(name: str) -> GpuSpec:
    """Looks a GPU up by name.

    Args:
        name: One of `GPUS`.

    Raises:
        ValueError: The GPU is unknown; the message names the nearest known one.
    """
    if name not in GPUS:
        raise ValueError(f"unknown GPU {name!r}{nearest(name, GPUS)}")
    return GPUS[name]
