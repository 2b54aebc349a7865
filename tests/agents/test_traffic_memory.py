"""What a DP/TP policy remembers of the traffic."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving_gym.agents.environments.dp_tp.memory import FEATURES, TrafficMemory
from serving_gym.agents.learners.api.config import APIConfig
from serving_gym.envs.interface.state import TOTALS


class Traffic:
    """Totals of classes that count up as told."""

    def __init__(self, num_classes: int = 2) -> None:
        self.now_s, self.totals = 0.0, np.zeros((num_classes, len(TOTALS)))

    def come(self, requests: float, prompt: float, of: int = 0, answer: float = 0.0) -> None:
        counts = {
            "arrived": requests,
            "arrived_tokens": requests * prompt,
            "finished": requests * (answer > 0),
            "generated_tokens": requests * answer,
        }
        for name, number in counts.items():
            self.totals[of, TOTALS.index(name)] += number

    def after(self, seconds: float, layout: tuple[int, ...] = (8,)) -> Any:
        self.now_s += seconds
        return SimpleNamespace(now_s=self.now_s, totals=self.totals.copy(), target_layout=layout)


def named(remembered: np.ndarray, constant: int = 0) -> dict[str, float]:
    own = remembered.reshape(-1, len(FEATURES))[constant]
    return dict(zip(FEATURES, own.tolist(), strict=True))


def test_steady_traffic() -> None:
    memory, traffic = TrafficMemory([60.0]), Traffic()
    assert not memory.follow(traffic.after(0.0)).any()
    for _ in range(30):
        traffic.come(10, 500.0, answer=100.0)
        found = named(memory.follow(traffic.after(1.0)))
    assert found == pytest.approx(
        {
            "known": 1.0 - math.exp(-0.5),
            "rate": math.log1p(5.0),
            "bursts": math.log(0.9),  # ten arrivals each second are fewer surprises than chance would bring
            "prompt": math.log(0.5),
            "answer": math.log(101.0 / 200.0),
            "long_prompt": math.log(0.5),
            "long_share": 1.0,
            "other_classes": 0.0,
        },
        abs=1e-6,
    )


def test_a_long_prompt_is_remembered_for_minutes() -> None:
    memory, traffic = TrafficMemory([5.0, 240.0]), Traffic()
    traffic.come(1, 130_000.0, of=1)
    for _ in range(60):
        traffic.come(6, 1000.0)
        remembered = memory.follow(traffic.after(1.0))
    short, long = named(remembered, 0), named(remembered, 1)
    assert long["long_prompt"] == pytest.approx(math.log(130.0), abs=1e-6)
    assert long["long_share"] > 0.15
    assert 0.0 < long["other_classes"] < 0.01
    assert short["long_share"] < 1e-3 * long["long_share"]


def test_bursts_show_in_the_mean_square_of_the_rate() -> None:
    found = {}
    for name, counts in {"steady": [10] * 40, "bursts": [4, 4, 4, 28] * 10}.items():
        memory, traffic = TrafficMemory([1000.0]), Traffic()
        for count in counts:
            traffic.come(count, 100.0)
            found[name] = named(memory.follow(traffic.after(1.0)))
    assert found["steady"]["rate"] == pytest.approx(found["bursts"]["rate"], abs=0.02)
    assert found["bursts"]["bursts"] - found["steady"]["bursts"] == pytest.approx(
        math.log(198 / 90), abs=0.05
    )


def test_forks_go_on_by_themselves() -> None:
    memory, traffic = TrafficMemory([10.0]), Traffic()
    traffic.come(5, 100.0)
    memory.follow(traffic.after(1.0))
    twin = memory.fork()
    now = traffic.after(1.0)
    np.testing.assert_array_equal(twin.follow(now), memory.follow(now))
    traffic.come(50, 100.0)
    twin.follow(traffic.after(1.0))
    without = named(
        memory.follow(SimpleNamespace(now_s=traffic.now_s, totals=now.totals, target_layout=(8,)))
    )
    assert without["rate"] < math.log1p(5.0)
    memory.reset()
    assert not memory.follow(Traffic().after(0.0)).any()


def test_when_engines_were_last_split() -> None:
    memory, traffic = TrafficMemory(()), Traffic()
    memory.follow(traffic.after(0.0, (1,) * 8))
    assert memory.since_split_s(0.0) == math.inf, "it began so"
    memory.follow(traffic.after(10.0, (4, 4)))
    assert memory.since_split_s(10.0) == math.inf, "that was a merge"
    memory.follow(traffic.after(5.0, (2, 2, 4)))
    twin = memory.fork()
    memory.follow(traffic.after(20.0, (1,) * 8))
    assert memory.since_split_s(traffic.now_s) == 0.0
    assert twin.since_split_s(traffic.now_s) == 20.0
    memory.reset()
    assert memory.since_split_s(0.0) == math.inf


@pytest.mark.parametrize("constants", [(0.0,), (60.0, -1.0), (float("inf"),)])
def test_time_constants_are_positive(constants: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"agent.memory_s must be positive numbers of seconds"):
        APIConfig(memory_s=constants)
