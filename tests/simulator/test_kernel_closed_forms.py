"""Queueing theory: with one constant iteration time the kernel is a queue whose waiting time is known.

A request of one prompt token and a geometric number of output tokens takes a geometric number of equal iterations,
which is exponential but for its grain: 2,000 iterations on average. Waiting is from arrival to first scheduling.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from serving_gym.envs.simulator.kernel import state
from serving_gym.envs.simulator.kernel.state import CLASS_DTYPE, KIND_DTYPE, Tables, Traffic, rows_of
from serving_gym.envs.simulator.kernel.world import advance
from tests.tiers import full_except

ITERATION_PS = 1_000_000
MEAN_TOKENS = 2_000
SERVICE_PS = ITERATION_PS * MEAN_TOKENS


def poisson_load(utilization: float, servers: int, count: int, seed: int) -> Traffic:
    """Poisson arrivals of one-token prompts with geometric outputs."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(SERVICE_PS / (utilization * servers), count)
    output = random.geometric(1 / MEAN_TOKENS, count).astype(np.int32)
    return Traffic(
        arrival_ps=np.cumsum(gaps).astype(np.int64),
        prompt=np.ones(count, np.int32),
        output=output,
        max_output=output,
        level=np.zeros(count, np.int32),
        class_id=np.zeros(count, np.int32),
        endpoint=np.zeros(count, np.int32),
        trigger=np.zeros(count, np.int8),
    )


def waiting_times_ps(traffic: Traffic, engines: int, servers: int, router: int) -> NDArray[np.int64]:
    """Serves the load on engines of `servers` sequences each; returns waiting times in order of arrival."""
    tables = Tables(
        decode_ps=np.full((1, servers + 1), ITERATION_PS, np.int64),
        mixed_ps=np.full((1, servers + 1), ITERATION_PS, np.int64),
        kinds=rows_of(
            KIND_DTYPE,
            sequence_ps=np.zeros(1, np.int64),
            kv_ps=np.zeros(1, np.int64),
            attn_fs=np.zeros(1, np.int64),
            stages=1,
            block_size=np.full(1, 16, np.int64),
            block_rank=np.zeros(1, np.int64),
            max_num_seqs=np.full(1, servers, np.int64),
            max_batched_tokens=np.full(1, servers, np.int64),
            transfer_ps=np.zeros(1, np.int64),
            transfer_fixed_ps=np.zeros(1, np.int64),
            load_ps=0,
            async_scheduling=0,
            scheduler=0,
            swap_blocks=0,
            speed=np.ones(1),
        ),
        classes=rows_of(
            CLASS_DTYPE,
            ttft_slo_ps=np.full(1, SERVICE_PS, np.int64),
            tpot_slo_ps=np.full(1, ITERATION_PS, np.int64),
        ),
    )
    count = len(traffic.prompt)
    world = state.new_world(engines, servers, 16, num_classes=1, request_slots=count)
    world.engines["status"] = state.ACTIVE
    world.engines["capacity_blocks"] = 1 << 40
    world.cluster["router"] = router
    world.endpoints["max_request_tokens"] = 1 << 40
    world = state.with_more_log(world)
    assert advance(world, traffic, tables, state.NEVER - 1) == state.REACHED
    log = np.sort(world.log[:count], order="index")
    return log["first_scheduled_ps"] - log["arrival_ps"]


def check_mean(waiting_ps: NDArray[np.int64], theory_ps: float, bias_ps: float = 0.0) -> None:
    """The mean is within four standard errors (by batch means, as waits are correlated), and these are small."""
    batches = waiting_ps[len(waiting_ps) // 50 :]
    means = np.array([batch.mean() for batch in np.array_split(batches, 40)])
    error = means.std(ddof=1) / math.sqrt(len(means))
    assert error < 0.04 * theory_ps
    assert means.mean() == pytest.approx(theory_ps, abs=4 * error + bias_ps)


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival finds all servers busy."""
    blocking = 1.0
    for n in range(1, servers + 1):
        blocking = load * blocking / (n + load * blocking)
    return blocking / (1 - load / servers * (1 - blocking))


@pytest.mark.parametrize("utilization", full_except([0.5, 0.8], 0.5))
def test_one_engine_of_one_sequence_is_m_m_1(utilization: float) -> None:
    """Waiting time rho / (mu - lambda); in full, Pollaczek and Khinchine with a geometric service time."""
    waiting = waiting_times_ps(poisson_load(utilization, 1, 1_000_000, seed=1), 1, 1, state.ROUND_ROBIN)
    check_mean(waiting, utilization / (1 - utilization) * SERVICE_PS * (1 - 0.5 / MEAN_TOKENS))


@pytest.mark.parametrize(("servers", "utilization"), [(2, 0.7), pytest.param(8, 0.9, marks=pytest.mark.full)])
def test_one_engine_of_c_sequences_is_m_m_c(servers: int, utilization: float) -> None:
    """Erlang C. A request also waits for the iteration in flight to end: one iteration at most."""
    waiting = waiting_times_ps(
        poisson_load(utilization, servers, 1_000_000, seed=2), 1, servers, state.ROUND_ROBIN
    )
    theory = erlang_c(servers, servers * utilization) * SERVICE_PS / (servers * (1 - utilization))
    check_mean(waiting, theory, bias_ps=ITERATION_PS)


@pytest.mark.full
def test_round_robin_over_two_engines_is_a_queue_with_erlang_arrivals() -> None:
    """Every second arrival of a Poisson stream: E2/M/1, whose waiting time follows from the root of its transform."""
    utilization = 0.8
    waiting = waiting_times_ps(poisson_load(utilization, 2, 1_000_000, seed=3), 2, 1, state.ROUND_ROBIN)
    root = 0.5
    for _ in range(200):  # sigma = A*(mu (1 - sigma)) with A* = (2 lambda / (2 lambda + s))^2
        root = (2 * utilization / (2 * utilization + 1 - root)) ** 2
    check_mean(waiting, root / (1 - root) * SERVICE_PS)
