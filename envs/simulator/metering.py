"""Energy and cost from provisioned GPU time and busy engine time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.power import Power
from serving_gym.envs.interface.usage import Usage
from serving_gym.envs.simulator.kernel.state import PS_PER_S, World

_J_PER_KWH = 3.6e6
_S_PER_H = 3600.0


def busy_s(world: World) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Time that engines have spent in iterations, and of this in such with prefill, (E,) seconds each.

    An iteration is counted when it begins; its remaining time is subtracted.
    """
    engines = world.engines
    ahead_ps = np.maximum(engines["step_end_ps"] - world.cluster["now_ps"][0], 0)
    busy_ps = engines["busy_ps"] - ahead_ps
    prefill_ps = engines["prefill_ps"] - ahead_ps * engines["prefills"]
    return busy_ps / PS_PER_S, prefill_ps / PS_PER_S


def work_j(world: World, powers: Sequence[Power]) -> NDArray[np.float64]:
    """Energy of engines above their GPUs' idle power, (E,) J.

    Args:
        world: The cluster.
        powers: (E,) power of one GPU of each engine.
    """
    busy, prefill = busy_s(world)
    decode_w = np.array([power.decode_w - power.idle_w for power in powers])
    prefill_w = np.array([power.prefill_w - power.idle_w for power in powers])
    return np.asarray(
        (decode_w * (busy - prefill) + prefill_w * prefill) * world.engines["width"], np.float64
    )


def usage(
    gpus: Sequence[str], gpu_s: NDArray[np.float64], idle_w: NDArray[np.float64], work: NDArray[np.float64]
) -> Usage:
    """Running totals.

    Args:
        gpus: (places,) name of the GPU.
        gpu_s: (places,) provisioned GPU-seconds.
        idle_w: (places,) power of an idle GPU, W.
        work: (places,) energy above that, J.
    """
    prices = [get_gpu(name).price_usd_per_hour for name in gpus]
    price = np.array([np.nan if value is None else value for value in prices])
    kept = gpu_s > 0
    return Usage(
        gpu_hours=gpu_s / _S_PER_H,
        energy_kwh=np.where(kept, idle_w * gpu_s + work, 0.0) / _J_PER_KWH,
        cost_usd=np.where(kept, price * gpu_s / _S_PER_H, 0.0),
    )
