from collections.abc import Callable

import numpy as np
import pytest

from serving_gym.envs.interface.metrics import FINISHED, RequestRecords
from serving_gym.runners.rollouts.rollout import Episode

MakeEpisode = Callable[..., Episode]


def _records(ttft_s: list[float]) -> RequestRecords:
    rows = len(ttft_s)
    arrival = np.arange(rows, dtype=np.float64)
    first = arrival + ttft_s
    zeros, ten = np.zeros(rows, np.int32), np.full(rows, 10, np.int32)
    return RequestRecords(
        index=np.arange(rows),
        arrival_s=arrival,
        input_tokens=ten,
        output_tokens=ten,
        class_id=zeros,
        priority=zeros,
        first_scheduled_s=arrival,
        first_token_s=first,
        finish_s=first + 1.0,
        generated_tokens=ten,
        preemptions=zeros,
        engine=zeros,
        outcome=np.full(rows, FINISHED, np.int8),
    )


@pytest.fixture
def make_episode() -> MakeEpisode:
    """An episode with the figures that comparisons read."""

    def make(policy: str, seed: int, **metrics: float) -> Episode:
        plain = {
            "return": 0.0, "ttft_p99_s": 1.0, "slo_attainment": 1.0, "slowdown/standard": 1.0, "goodput_rps": 1.0,
            "tpot_p50_s": 0.1, "gpu_hours": 1.0, "refused": 0.0, "failed": 0.0, "unfinished": 0.0,
        }  # fmt: skip
        return Episode(policy, seed, plain | metrics, [], 1.0, 60.0, _records([0.1, 0.2, 0.3]))

    return make
