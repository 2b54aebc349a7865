"""Observable state of a cluster: rows of engines and of requests in flight, totals, and the state of a node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.interface.layout import Group, Layout


class EngineStatus(IntEnum):
    """Status of an engine slot."""

    INACTIVE = 0  # a group that is not part of the layout
    ACTIVE = 1
    DRAINING = 2  # finishes its requests, takes no new ones
    SPECULATIVE = 3  # drained early in a soft switch and serving in DP until the others are done
    PAUSED = 4  # paused, KV resident
    DOWN = 5  # failed or starting


# One row per engine slot. All values are available from a real engine or its router.
ENGINE_STATE_DTYPE = np.dtype(
    [
        ("status", np.int32),  # EngineStatus
        ("first_gpu", np.int32),
        ("width", np.int32),  # GPUs: the engine's TP degree
        ("num_running", np.int32),
        ("num_prefilling", np.int32),  # of the running requests
        ("num_waiting", np.int32),
        ("pending_prefill_tokens", np.int64),
        ("context_tokens", np.int64),  # KV tokens of decoding requests
        ("kv_used_blocks", np.int64),
        ("kv_capacity_blocks", np.int64),  # the pool without blocks of paused requests of other groups
        ("kv_capacity_tokens", np.int64),
        ("preemptions", np.int64),  # since the episode began, as the next three
        ("generated_tokens", np.int64),
        ("prefilled_tokens", np.int64),
        ("busy_s", np.float64),
    ],
    align=True,
)


# One row per request in flight. All values are the router's own records.
IN_FLIGHT_DTYPE = np.dtype(
    [
        ("arrival_s", np.float64),
        ("first_token_s", np.float64),  # -1 before it
        ("index", np.int32),  # row of the workload
        ("place", np.int32),  # its engine
        ("input_tokens", np.int32),
        ("predicted_tokens", np.int32),  # predicted output length
        ("generated_tokens", np.int32),  # output tokens streamed so far
        ("max_output_tokens", np.int32),  # declared by its client
        ("class_id", np.int32),
        ("priority", np.int32),
    ],
    align=True,
)


# Columns of ClusterState.totals, one row per request class, counted since the episode began.
TOTALS = (
    "arrived",
    "arrived_tokens",  # prompt tokens
    "refused",
    "failed",
    "first_tokens",
    "ttft_met",
    "ttft_sum_s",
    "finished",
    "tpot_met",
    "tpot_sum_s",
    "good",  # finished within both SLOs
    "generated_tokens",  # of finished requests
)


@dataclass(frozen=True, slots=True)
class Transition:
    """A reconfiguration in flight."""

    region: Group  # base engines concerned
    target: tuple[Group, ...]
    mode: SwitchMode | None  # None: a cold restart
    started_s: float
    due_s: float | None  # None: still waiting for requests to drain


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A waiting request as the router observes it, without its true output length."""

    index: int
    arrival_s: float
    input_tokens: int
    max_output_tokens: int
    priority: int
    class_id: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """State that a policy may read at a decision.

    Attributes:
        now_s: Time, s.
        engines: (num_slots,) ENGINE_STATE_DTYPE.
        layout: Groups that serve or are being drained, left to right.
        target_layout: Layout after all transitions.
        transitions: Reconfigurations under way.
        num_pooled: Requests that no engine could take yet.
        pooled_tokens: Their tokens.
        totals: (num_classes, len(TOTALS)).
        waiting: Requests whose arrival triggered this decision, oldest first.
        stale: Engine slots with stale gauges; none in simulation.
    """

    now_s: float
    engines: NDArray[np.void]
    layout: Layout
    target_layout: Layout
    transitions: tuple[Transition, ...]
    num_pooled: int
    pooled_tokens: int
    totals: NDArray[np.float64]
    waiting: tuple[WaitingRequest, ...]
    stale: tuple[int, ...] = ()

    @property
    def active(self) -> NDArray[np.void]:
        """Rows of the engines that take requests."""
        status = self.engines["status"]
        return self.engines[(status == EngineStatus.ACTIVE) | (status == EngineStatus.SPECULATIVE)]
