"""The DP/TP observation, encoded from the cluster's state with fixed physical scales.

Counts and rates are shown as log1p(value / scale), so they are neither clipped nor dominated by bursts; the scales are
the values at which a quantity becomes noticeable and live in the environment's config. No running normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from serving_gym.envs.dp_tp.features import PARTS
from serving_gym.envs.interface.commands import SwitchMode
from serving_gym.envs.interface.layout import Layout
from serving_gym.envs.interface.state import TOTALS, ClusterState, EngineStatus

HIGH = 64.0  # no log1p of a float64 is larger than this for values below e^64

# Features of a base engine; those of its group are repeated on every member.
ENGINE_FEATURES = PARTS[0].names()

CLUSTER_FEATURES = PARTS[1].names()

CLASS_FEATURES = tuple(feature.name for feature in PARTS[1].repeated)


@dataclass(frozen=True)
class ObservationScales:
    """Where each kind of quantity becomes noticeable, and how far back averages look.

    Attributes:
        requests: Requests.
        tokens: KV or pending prompt tokens.
        backlog_s: Seconds of prefill work.
        iteration_s: Seconds of an iteration.
        request_rate: Requests per second.
        token_rate: Prompt tokens per second.
        switch_s: Seconds.
        short_s: Time constant of the short averages, seconds.
        long_s: Time constant of the long averages, seconds.
    """

    requests: float = 8.0
    tokens: float = 20_000.0
    backlog_s: float = 0.1
    iteration_s: float = 0.005
    request_rate: float = 2.0
    token_rate: float = 2_000.0
    switch_s: float = 1.0
    short_s: float = 5.0
    long_s: float = 30.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"scales.{name} must be positive, got {getattr(self, name)}")


class Encoder:
    """Turns successive `ClusterState`s into observations; remembers what rates and averages need.

    Args:
        num_base: Base engines of the node.
        base_width: GPUs of a base engine.
        num_classes: Request classes.
        prefill_s_per_token: (num_widths,), seconds per prompt token of a group, by log2 of its length.
        decode_s: (num_widths, max_num_seqs + 1), seconds of a decode iteration without its context.
        kv_s_per_token: (num_widths,), seconds a token of context adds.
        scales: Fixed scales.
    """

    def __init__(
        self,
        num_base: int,
        base_width: int,
        num_classes: int,
        prefill_s_per_token: NDArray[np.float64],
        decode_s: NDArray[np.float64],
        kv_s_per_token: NDArray[np.float64],
        scales: ObservationScales,
    ) -> None:
        self.num_base, self.base_width, self.num_classes = num_base, base_width, num_classes
        self.prefill_s_per_token = prefill_s_per_token
        self.decode_s = decode_s
        self.kv_s_per_token = kv_s_per_token
        self.scales = scales
        self._scales = np.array([getattr(scales, name) for name in scales.__dataclass_fields__])
        self.reset()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the observation's parts."""
        length = len(CLUSTER_FEATURES) + self.num_classes * len(CLASS_FEATURES)
        return {"engines": (self.num_base, len(ENGINE_FEATURES)), "cluster": (length,)}

    def reset(self) -> None:
        """Forgets the past."""
        self._previous = np.zeros((self.num_classes, len(TOTALS)))
        self._averages = np.zeros((self.num_classes, _NUM_AVERAGES))
        self._last_s = 0.0
        self._switched_s = 0.0

    def fork(self) -> Encoder:
        """A copy with a memory of its own."""
        copy = Encoder.__new__(Encoder)
        copy.__dict__.update(self.__dict__)
        copy._previous = self._previous.copy()
        copy._averages = self._averages.copy()
        return copy

    def encode(
        self, state: ClusterState, engines_out: NDArray[np.float32], cluster_out: NDArray[np.float32]
    ) -> None:
        """Writes the observation of a state that is later than the one before.

        Args:
            state: What the cluster shows.
            engines_out: (num_base, len(ENGINE_FEATURES)), filled.
            cluster_out: (cluster_size,), filled.
        """
        transition = np.zeros(5)
        for item in state.transitions:
            transition[0] += item.region.length / self.num_base
            transition[1] = max(transition[1], state.now_s - item.started_s)
            if item.mode is not None:
                transition[2 + int(item.mode)] = 1.0
        if state.transitions:
            self._switched_s = state.now_s
        self._encode(
            state.now_s,
            state.engines,
            (state.layout, state.target_layout),
            (state.num_pooled, state.pooled_tokens),
            state.totals,
            transition,
            engines_out,
            cluster_out,
        )

    def encode_settled(
        self,
        now_s: float,
        engines: NDArray[np.void],
        layout: Layout,
        pooled: tuple[int, int],
        totals: NDArray[np.float64],
        engines_out: NDArray[np.float32],
        cluster_out: NDArray[np.float32],
    ) -> None:
        """`encode` of a state in which nothing is being reconfigured, from its parts.

        Args:
            now_s: Time, seconds.
            engines: (num_slots,) ENGINE_STATE_DTYPE.
            layout: Groups of the node.
            pooled: Requests that no engine could take yet, and their tokens to prefill.
            totals: (num_classes, len(TOTALS) or more), running.
            engines_out: (num_base, len(ENGINE_FEATURES)), filled.
            cluster_out: (cluster_size,), filled.
        """
        self._encode(now_s, engines, (layout, layout), pooled, totals, _SETTLED, engines_out, cluster_out)

    def _encode(
        self,
        now_s: float,
        engines: NDArray[np.void],
        layouts: tuple[Layout, Layout],
        pooled: tuple[int, int],
        totals: NDArray[np.float64],
        transition: NDArray[np.float64],
        engines_out: NDArray[np.float32],
        cluster_out: NDArray[np.float32],
    ) -> None:
        _encode_engines(
            engines,
            _as_array(layouts[0]),
            _as_array(layouts[1]),
            self.base_width,
            self.prefill_s_per_token,
            self.decode_s,
            self.kv_s_per_token,
            self._scales,
            engines_out,
        )
        _encode_cluster(
            totals,
            self._previous,
            self._averages,
            now_s - self._last_s,
            float(pooled[0]),
            float(pooled[1]),
            now_s - self._switched_s,
            transition,
            self._scales,
            cluster_out,
        )
        self._last_s = now_s


@lru_cache(maxsize=4096)
def _as_array(layout: Layout) -> NDArray[np.int64]:
    return np.array(layout)


_SETTLED = np.zeros(5)
(_REQUESTS, _TOKENS, _BACKLOG, _ITERATION, _REQUEST_RATE, _TOKEN_RATE, _SWITCH, _SHORT, _LONG) = range(9)
_ARRIVED, _ARRIVED_TOKENS = TOTALS.index("arrived"), TOTALS.index("arrived_tokens")
_REFUSED, _FAILED = TOTALS.index("refused"), TOTALS.index("failed")
_FIRST, _TTFT_MET = TOTALS.index("first_tokens"), TOTALS.index("ttft_met")
_FINISHED, _TPOT_MET = TOTALS.index("finished"), TOTALS.index("tpot_met")
_NUM_AVERAGES = 6
(_AVG_RATE_SHORT, _AVG_RATE_LONG, _AVG_TOKENS_SHORT, _AVG_TOKENS_LONG, _AVG_TTFT, _AVG_TPOT) = range(
    _NUM_AVERAGES
)
_ACTIVE, _DRAINING = int(EngineStatus.ACTIVE), int(EngineStatus.DRAINING)
_SPECULATIVE, _PAUSED, _DOWN = int(EngineStatus.SPECULATIVE), int(EngineStatus.PAUSED), int(EngineStatus.DOWN)
assert len(SwitchMode) == 3


@njit(cache=True)
def _log_length(length: int) -> int:
    rank = 0
    while length > 1:
        length //= 2
        rank += 1
    return rank


@njit(cache=True)
def _encode_engines(
    engines: NDArray[np.void],
    layout: NDArray[np.int64],
    target: NDArray[np.int64],
    base_width: int,
    prefill_s: NDArray[np.float64],
    decode_s: NDArray[np.float64],
    kv_s: NDArray[np.float64],
    scales: NDArray[np.float64],
    out: NDArray[np.float32],
) -> None:
    num_base = out.shape[0]
    log_node = max(_log_length(num_base), 1)
    out[:] = 0.0
    first = 0
    for length in target:
        out[first : first + length, 1] = _log_length(length) / log_node
        first += length
    first = 0
    for length in layout:
        out[first : first + length, 0] = _log_length(length) / log_node
        out[first, 2] = 1.0
        first += length
    for e in range(len(engines)):
        row = engines[e]
        begin, length = row.first_gpu // base_width, row.width // base_width
        if row.status == _PAUSED:
            out[begin : begin + length, 12] += row.num_running
            continue
        if (
            row.status != _ACTIVE
            and row.status != _DRAINING
            and row.status != _SPECULATIVE
            and row.status != _DOWN
        ):
            continue
        rank = _log_length(length)
        decoding = row.num_running - row.num_prefilling
        iteration_s = decode_s[rank, decoding] + kv_s[rank] * row.context_tokens if decoding > 0 else 0.0
        for base in range(begin, begin + length):
            out[base, 3] = row.status == _DRAINING
            out[base, 4] = row.status == _SPECULATIVE
            out[base, 5] = row.status == _DOWN
            out[base, 6] = np.log1p(row.num_running / scales[_REQUESTS])
            out[base, 7] = np.log1p(row.num_waiting / scales[_REQUESTS])
            out[base, 8] = np.log1p(row.pending_prefill_tokens * prefill_s[rank] / scales[_BACKLOG])
            out[base, 9] = row.kv_used_blocks / max(row.kv_capacity_blocks, 1)
            out[base, 10] = np.log1p(row.context_tokens / scales[_TOKENS])
            out[base, 11] = np.log1p(iteration_s / scales[_ITERATION])
    for base in range(num_base):
        out[base, 12] = np.log1p(out[base, 12] / scales[_REQUESTS])


@njit(cache=True)
def _blend(old: float, new: float, dt: float, constant: float) -> float:
    """Exponential average over irregular intervals."""
    keep = np.exp(-dt / constant)
    return keep * old + (1.0 - keep) * new


@njit(cache=True)
def _encode_cluster(
    totals: NDArray[np.float64],
    previous: NDArray[np.float64],
    averages: NDArray[np.float64],
    dt: float,
    num_pooled: float,
    pooled_tokens: float,
    since_switch_s: float,
    transition: NDArray[np.float64],
    scales: NDArray[np.float64],
    out: NDArray[np.float32],
) -> None:
    out[:] = 0.0
    in_flight = 0.0
    rate, tokens = 0.0, 0.0
    span = max(dt, 1e-9)
    offset = 15
    for c in range(len(totals)):
        row, before, average = totals[c], previous[c], averages[c]
        in_flight += row[_ARRIVED] - row[_REFUSED] - row[_FAILED] - row[_FINISHED]
        if dt > 0:
            class_rate = (row[_ARRIVED] - before[_ARRIVED]) / span
            class_tokens = (row[_ARRIVED_TOKENS] - before[_ARRIVED_TOKENS]) / span
            rate += class_rate
            tokens += class_tokens
            average[_AVG_RATE_SHORT] = _blend(average[_AVG_RATE_SHORT], class_rate, dt, scales[_SHORT])
            average[_AVG_RATE_LONG] = _blend(average[_AVG_RATE_LONG], class_rate, dt, scales[_LONG])
            average[_AVG_TOKENS_SHORT] = _blend(average[_AVG_TOKENS_SHORT], class_tokens, dt, scales[_SHORT])
            average[_AVG_TOKENS_LONG] = _blend(average[_AVG_TOKENS_LONG], class_tokens, dt, scales[_LONG])
            first = row[_FIRST] - before[_FIRST]
            if first > 0:
                missed = 1.0 - (row[_TTFT_MET] - before[_TTFT_MET]) / first
                average[_AVG_TTFT] = _blend(average[_AVG_TTFT], missed, dt, scales[_SHORT])
            done = row[_FINISHED] - before[_FINISHED]
            if done > 0:
                missed = 1.0 - (row[_TPOT_MET] - before[_TPOT_MET]) / done
                average[_AVG_TPOT] = _blend(average[_AVG_TPOT], missed, dt, scales[_SHORT])
            before[:] = row[: len(before)]
        out[4] += average[_AVG_RATE_SHORT]
        out[5] += average[_AVG_RATE_LONG]
        out[7] += average[_AVG_TOKENS_SHORT]
        out[8] += average[_AVG_TOKENS_LONG]
        out[offset] = np.log1p(average[_AVG_RATE_SHORT] / scales[_REQUEST_RATE])
        out[offset + 1] = average[_AVG_TTFT]
        out[offset + 2] = average[_AVG_TPOT]
        offset += 3
    out[0] = np.log1p(num_pooled / scales[_REQUESTS])
    out[1] = np.log1p(pooled_tokens / scales[_TOKENS])
    out[2] = np.log1p(in_flight / scales[_REQUESTS])
    out[3] = np.log1p(rate / scales[_REQUEST_RATE])
    out[4] = np.log1p(out[4] / scales[_REQUEST_RATE])
    out[5] = np.log1p(out[5] / scales[_REQUEST_RATE])
    out[6] = np.log1p(tokens / scales[_TOKEN_RATE])
    out[7] = np.log1p(out[7] / scales[_TOKEN_RATE])
    out[8] = np.log1p(out[8] / scales[_TOKEN_RATE])
    out[9] = transition[0]
    out[10] = np.log1p(transition[1] / scales[_SWITCH])
    out[11:14] = transition[2:5]
    out[14] = np.log1p(since_switch_s / scales[_SWITCH])
