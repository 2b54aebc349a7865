"""SageServe's four schedulers (section 6.5) by hand-made queues.

One engine runs one request at a time. A first request keeps it busy until second 10; what has come by then is served in
an order that tells the schedulers apart. Every other request takes one iteration of a millisecond, so that all are
served while the clock stands, as good as, at 10 s.
"""

from __future__ import annotations

import numpy as np
import pytest

from serving_gym.envs.simulator.kernel import state
from serving_gym.envs.simulator.kernel.state import (
    CLASS_DTYPE,
    KIND_DTYPE,
    PS_PER_S,
    Tables,
    Traffic,
    rows_of,
)
from serving_gym.envs.simulator.kernel.world import advance

ITERATION_PS = PS_PER_S // 1000
F, N = 0, 1  # the tiers: class and priority level
TTFT_S = (4.0, 8.0)  # their promises
EXPIRED_S, URGENT_S = 5.0, 2.0  # tau_n and tau_p


def served(arrivals: list[tuple[float, int]], order: int) -> list[float]:
    """Arrival times, seconds, in the order in which requests are served once the engine is free.

    Args:
        arrivals: Arrival, seconds, and tier of each request, in order of arrival.
        order: Queue order of the engine.
    """
    output = np.array([10_000, *(1 for _ in arrivals)], np.int32)
    tiers = np.array([N, *(tier for _, tier in arrivals)], np.int32)
    count = len(output)
    traffic = Traffic(
        arrival_ps=np.array([0, *(round(at_s * PS_PER_S) for at_s, _ in arrivals)], np.int64),
        prompt=np.ones(count, np.int32),
        output=output,
        max_output=output,
        level=tiers,
        class_id=tiers,
        endpoint=np.zeros(count, np.int32),
        trigger=np.zeros(count, np.int8),
    )
    tables = Tables(
        decode_ps=np.full((1, 2), ITERATION_PS, np.int64),
        mixed_ps=np.full((1, 2), ITERATION_PS, np.int64),
        kinds=rows_of(
            KIND_DTYPE, sequence_ps=0, kv_ps=0, attn_fs=0, stages=1, block_size=16, block_rank=0, max_num_seqs=[1],
            max_batched_tokens=1, transfer_ps=0, transfer_fixed_ps=0, load_ps=0,
            async_scheduling=0, scheduler=0, swap_blocks=0, speed=1.0,
        ),
        classes=rows_of(
            CLASS_DTYPE, ttft_slo_ps=[round(ttft_s * PS_PER_S) for ttft_s in TTFT_S], tpot_slo_ps=ITERATION_PS
        ),
    )  # fmt: skip
    world = state.new_world(1, 1, 16, num_classes=2, request_slots=count)
    world.engines["status"] = state.ACTIVE
    world.engines["capacity_blocks"] = 1 << 20
    world.endpoints["max_request_tokens"] = 1 << 20
    cluster = world.cluster[0]
    cluster["order"], cluster["chunked_prefill"] = order, 1
    cluster["expired_ps"], cluster["urgent_ps"] = EXPIRED_S * PS_PER_S, URGENT_S * PS_PER_S
    world = state.with_more_log(world)
    assert advance(world, traffic, tables, state.NEVER - 1) == state.REACHED
    log = np.sort(world.log[1:count], order="first_scheduled_ps")
    assert log["first_scheduled_ps"][0] == 10 * PS_PER_S
    return (log["arrival_ps"] / PS_PER_S).tolist()


# arrival and tier; deadline = arrival + 4 s (F) or 8 s (N); d_r = deadline - 10 s
ONE_OF_EACH = [
    (0.5, F),  # d_r = -5.5 s: severely expired
    (1.0, N),  # -1.0: recently expired
    (2.5, N),  # 0.5: urgent
    (4.2, N),  # 2.2: not urgent
    (7.0, F),  # 1.0: urgent
    (9.0, F),  # 3.0: not urgent
]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (state.FCFS, [0.5, 1.0, 2.5, 4.2, 7.0, 9.0]),
        (state.EDF, [0.5, 1.0, 2.5, 7.0, 4.2, 9.0]),  # by d_r, so that expired ones come first
        (state.PRIORITY, [0.5, 7.0, 9.0, 1.0, 2.5, 4.2]),  # all of IW-F by arrival, then IW-N
        (state.DPA, [0.5, 7.0, 2.5, 9.0, 4.2, 1.0]),  # categories (1) to (6)
    ],
    ids=["fcfs", "edf", "priority first", "dpa"],
)
def test_a_queue_with_one_request_of_each_category(order: int, expected: list[float]) -> None:
    assert served(ONE_OF_EACH, order) == expected


def test_edf_places_the_stricter_tier_ahead_of_one_that_came_a_little_earlier() -> None:
    """IW-F is due at 13.0 and 13.5 s, IW-N at 16.9 s."""
    assert served([(8.9, N), (9.0, F), (9.5, F)], state.EDF) == [9.0, 9.5, 8.9]


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        pytest.param([(2.0, N), (9.0, F)], [2.0, 9.0], id="d_r = 0 is urgent, not expired"),
        pytest.param([(2.5, N), (8.0, F)], [8.0, 2.5], id="d_r = tau_p is urgent"),
        pytest.param([(2.5, N), (8.001, F)], [2.5, 8.001], id="d_r > tau_p is not"),
        pytest.param([(1.0, F), (5.0, N)], [5.0, 1.0], id="d_r = -tau_n is recently expired"),
        pytest.param([(0.999, F), (5.0, N)], [0.999, 5.0], id="d_r < -tau_n is severely expired"),
        pytest.param([(0.1, F), (0.2, F), (9.0, F)], [0.1, 0.2, 9.0], id="severely expired by deadline"),
        pytest.param([(1.0, N), (3.0, F), (9.0, N)], [9.0, 3.0, 1.0], id="recently expired by deadline"),
        pytest.param([(8.1, F), (8.2, F), (4.1, N)], [8.1, 8.2, 4.1], id="tier before deadline"),
    ],
)
def test_categories_of_dpa(arrivals: list[tuple[float, int]], expected: list[float]) -> None:
    assert served(sorted(arrivals), state.DPA) == expected
