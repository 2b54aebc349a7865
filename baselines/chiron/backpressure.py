"""Backpressure of interactive and of batch requests.

Both follow SageServe's public re-implementation (`ChironArbiter`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.scaling import Pool


def interactive_backpressure(rows: NDArray[np.void]) -> float:
    """Share of the interactive and mixed instances that have an interactive request; infinite where there is none.

    Args:
        rows: (I,) INSTANCE_DTYPE, those that run.
    """
    takes = np.isin(rows["pool"], (Pool.INTERACTIVE, Pool.MIXED))
    busy = takes & (rows["num_interactive"] > 0)
    return float(busy.sum() / takes.sum()) if takes.any() else float("inf")


def batch_waiting_s(requests: int, tokens: int, instances: int, prompt_s: float, decode_tps: float) -> float:
    """Estimated time until the last of the waiting batch requests is served; infinite without instances to serve them.

    Prompts one after the other, answers at the throughput of all instances.

    Args:
        requests: Batch requests that wait.
        tokens: Their tokens that are yet to be generated or worked on.
        instances: Batch instances.
        prompt_s: What the prompt of one takes, by an offline profile.
        decode_tps: Tokens/s of an instance, by an offline profile.
    """
    if not requests:
        return 0.0
    return requests * prompt_s + tokens / (decode_tps * instances) if instances else float("inf")
