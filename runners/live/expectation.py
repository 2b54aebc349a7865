"""Says how long a live run will take before it begins, as servers serve in real time."""

from __future__ import annotations

import numpy as np

from serving_gym.envs.workload.registry import WorkloadSource
from serving_gym.envs.workload.schema import Workload
from serving_gym.runners.configuration.schema import RunConfig

_MINUTE_S, _HOUR_S = 60.0, 3600.0
_LONG_S = 1800.0  # from which the line says what shortens the run


def say_expected(config: RunConfig, episodes: int, shorten: str) -> None:
    """Prints a line with the requests and the duration of a command's live episodes.

    Args:
        config: The command's configuration.
        episodes: Number of episodes on live servers.
        shorten: Settings that shorten the run.
    """
    split, seed = config.split, config.first_seed
    if config.env["name"] == "autoscaling":
        length_s = float(config.env["episode_s"])
        stream = WorkloadSource(config.workload).stream(seed, split, 0.0, length_s)
        count = sum(len(stream.piece(number)) for number in range(stream.num_pieces))
    else:
        workload = WorkloadSource(config.workload).sample(seed, split)
        count, length_s = len(workload), traffic_s(workload, config.backend.speed)
    each = f"{episodes} episode{'s' * (episodes > 1)} of about {count:,} requests in {duration(length_s)}"
    print(expectation(each, episodes * length_s, shorten), flush=True)


def expectation(what: str, total_s: float, shorten: str) -> str:
    """The line.

    Args:
        what: What is served.
        total_s: Duration of the traffic, seconds.
        shorten: Settings that shorten the run.
    """
    line = f"live: {what}: {duration(total_s)} of traffic, besides starts of servers and the last answers"
    return f"{line}; {shorten} shorten it" if total_s > _LONG_S else line


def traffic_s(workload: Workload, speed: float) -> float:
    """From the beginning to the last arrival that is known beforehand, seconds of real time."""
    return float(np.nanmax(workload.arrival_s)) / speed if len(workload) else 0.0


def duration(seconds: float) -> str:
    """A duration in words."""
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h"
