"""The autoscaling environment on launched servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.autoscaling.action import LEVERS, MACHINE, Action, is_changes, mask_from_state
from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.episode import AutoscalingEpisode
from serving_gym.envs.autoscaling.live.fleet import ScaledFleet
from serving_gym.envs.autoscaling.live.traffic import traffic_of, with_past
from serving_gym.envs.autoscaling.observation import Observation, StateEncoder
from serving_gym.envs.autoscaling.render import Renderer
from serving_gym.envs.autoscaling.spaces import make_spaces
from serving_gym.envs.autoscaling.state import (
    INSTANCE_DTYPE,
    AutoscalingState,
    EndpointState,
    InstanceStatus,
)
from serving_gym.envs.base.env import BaseEnv
from serving_gym.envs.base.validation import check_running
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, Held, Operation, Release, ScaleChange, Traffic
from serving_gym.envs.live.control import ControlDeadline, ControlOverride, NoDecision
from serving_gym.envs.live.launched import HELD
from serving_gym.envs.live.observation import in_flight_rows
from serving_gym.envs.live.run import DrivesServers
from serving_gym.envs.live.transitions import SlotState
from serving_gym.envs.simulator.autoscaling.bins import PAST_COLUMNS
from serving_gym.envs.simulator.autoscaling.simulator import piece_seed
from serving_gym.envs.simulator.fleet.nominal import nominal_engines
from serving_gym.envs.workload.predictions import predict_lengths
from serving_gym.envs.workload.schema import Workload

_STATUS = {
    Held.STARTING: InstanceStatus.STARTING,
    Held.RUNNING: InstanceStatus.RUNNING,
    Held.DRAINING: InstanceStatus.DRAINING,
}


class LiveAutoscalingEnv(DrivesServers, BaseEnv[AutoscalingConfig, AutoscalingState]):
    """`Serving/Autoscaling-v1` with servers of this machine: same spaces, state, reward and records.

    One model in one region: a place is a slot, an instance a launched server. START launches one and STOP drains it and
    ends it; DONATE puts it to sleep and RECLAIM wakes it, where it was launched with sleep mode. What differs is what
    reality differs in. The clock is real and goes on while a policy thinks; one that takes longer than
    `control_within_s`, or fails, leaves all as it is (`info["overrides"]`). The envelope refuses what could do harm
    (`EnvelopeSettings`). There is no queue manager, hence no `Release`, and nobody knows what is to come. `close()`
    stops the servers.

    Args:
        fleet: The slots, one a place.
        control_within_s: Longest time a policy may take, s.
        config: As of `AutoscalingEnv`.

    Raises:
        ValueError: something in the configuration is impossible on live servers.
    """

    fleet: ScaledFleet
    make_spaces = staticmethod(make_spaces)
    renderer_class = Renderer
    commands = (NoDecision,)
    has_clock = True

    def __init__(self, fleet: ScaledFleet, control_within_s: float, **config: Any) -> None:
        self._set_up(AutoscalingEpisode(AutoscalingConfig(**config)), None)
        check_scaled(self.core, len(fleet.slots))
        self.fleet, self._deadline = fleet, ControlDeadline(control_within_s)
        fleet.end_requests_after(self.config.cluster.request_timeout_s)
        self._engines = nominal_engines(self.core.simulator)
        self._encoder = StateEncoder(self.config, self.core.spec, self._engines)
        self._meter = self.core.meter
        self._interactive = np.array(self.core.interactive, bool)
        self._pools = np.zeros(len(fleet.slots), np.int32)
        self._state: AutoscalingState | None = None
        self._ended = True

    @property
    def _begun(self) -> bool:
        return self._state is not None

    @property
    def _over(self) -> bool:
        return self._ended

    def _read_state(self) -> AutoscalingState:
        assert self._state is not None
        return self._state

    def _checked(self, action: Any) -> Any:
        if not is_changes(action):
            return super()._checked(action)
        check_running(self._begun, self._over)
        return action

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins the episode of a seed: the arrivals, lengths and predictions it has in simulation."""
        (chosen, split), config = self._next_episode(seed, options), self.config
        before = round(config.history_s / config.history_bin_s)
        source = self.core.source
        self._stream = source.stream(
            chosen, split or config.split, before * config.history_bin_s, config.episode_s
        )
        self._past = self._past_of(before)
        pieces = [self._stream.piece(number) for number in range(self._stream.num_pieces)]
        self._predicted = np.concatenate(
            [
                predict_lengths(config.prediction, piece, piece_seed(chosen, number))
                for number, piece in enumerate(pieces)
            ]
        )
        workload = Workload.merge(*pieces)
        self._meter.reset()
        self._usd = np.zeros(3)
        self._num_refused = 0
        self._pools[:] = 0
        self._ended = False
        self.fleet.reset(workload, self.core.slos, len(self.core.simulator.fleet.running))
        self._look()
        return self._observation(), self._info(0.0, {}, "", [], [])

    def step(self, action: Action | NoDecision) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes a decision and waits for the next one."""
        action = self._checked(action)
        begun_s = self.state.now_s
        overrides = self._deadline.overrides(action, self.fleet.now_s)
        executed, refused = ([], "") if overrides else self._carry_out(action)
        span_s = self.config.decision_interval_s if self.period_s is None else self.period_s
        self.fleet.advance(min(begun_s + span_s, self._stream.duration_s))
        truncated = False
        if self.fleet.now_s >= self._stream.duration_s:
            self.fleet.advance(self._stream.duration_s + self.config.drain_limit_s, lambda: self.fleet.idle)
            truncated, self._ended = not self.fleet.idle, True
        unfinished = self.fleet.unfinished() if truncated else None
        switched = sum(len(entry["places"]) for entry in executed)
        interval = self._meter.measure(*self.fleet.books(), switched, unfinished)
        usd = self._usd_since()
        self._look()
        money = sum(getattr(self.config.objective, name) * value for name, value in usd.items())
        reward = interval.reward(self.config.objective) + self.config.objective.scale * money
        terms = interval.terms(self.core.classes) | usd
        info = self._info(self.state.now_s - begun_s, terms, refused, executed, overrides)
        return self._observation(), reward, self._ended and not truncated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """(sum of entries,), which entries of the action space are possible now and within the envelope."""
        mask, most = mask_from_state(self.core.spec, self.state), self.config.max_change
        changes = np.arange(-most, most + 1)
        down, up = self.fleet.room()
        mask[: len(changes)] &= (changes >= -down) & (changes <= up)
        return mask

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that instances have been kept, sleeping ones left out."""
        held_s = self.fleet.held_s()
        return float((held_s.sum(axis=1) - held_s[:, Held.SPOT]) @ self._num_gpus())

    def transition_times(self) -> dict[str, list[float]]:
        """How long each start has taken, from the order to the answer to a request, s."""
        return {"start_s": self.fleet.start_times_s()}

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _carry_out(self, action: Any) -> tuple[list[dict[str, Any]], str]:
        """What of a decision has been begun, and what could not be."""
        if action is None:
            return [], ""
        changes: Iterable[ScaleChange | Release]
        changes = action if is_changes(action) else self._changes(np.asarray(action))
        executed, reasons = [], []
        for change in changes:
            begun, refused = self._change(change)
            if refused:
                reasons.append(refused)
            if begun and isinstance(change, ScaleChange):
                executed.append({"operation": str(change.operation), "places": begun})
        self._num_refused += len(reasons)
        return executed, "; ".join(reasons)

    def _change(self, change: ScaleChange | Release) -> tuple[list[int], str]:
        (own,) = self.core.spec.endpoints
        if isinstance(change, Release):
            return [], "release: live servers have no queue manager"
        if change.endpoint != own:
            return [], f"there is no endpoint {change.endpoint.model} in {change.endpoint.region}"
        if change.gpu != 0:
            return [], f"there is no kind of machine {change.gpu}; there is 1"
        begun, refused = self.fleet.change(change.operation, change.count, change.places)
        if change.signed > 0:
            self._pools[begun] = change.pool
        return begun, refused

    def _changes(self, vector: NDArray[np.int64]) -> Iterator[ScaleChange | Release]:
        """What a vector of the action space says."""
        change, lever, level = vector.reshape(-1, LEVERS)[0].tolist()
        (own,), spec = self.state.endpoints, self.core.spec
        wanted = change - spec.max_change
        if level != own.release_level:
            yield Release(own.endpoint, level)
        if wanted > 0:
            asleep = min(wanted, int(own.spot.sum()))
            first = (
                asleep
                if lever != MACHINE
                else max(wanted - int(self.state.vacant[own.endpoint.region].sum()), 0)
            )
            waking = min(asleep, first)
            if waking:
                yield ScaleChange(own.endpoint, Operation.RECLAIM, waking)
            if wanted > waking:
                yield ScaleChange(own.endpoint, Operation.START, wanted - waking)
        elif wanted < 0:
            going = min(-wanted, max(len(own.present) - spec.min_instances, 0))
            sleeps = lever != MACHINE and self.fleet.slots[0].server.settings.sleep_mode
            if going:
                yield ScaleChange(own.endpoint, Operation.DONATE if sleeps else Operation.STOP, going)

    # -- what it costs -------------------------------------------------------------------------------------------------

    def _num_gpus(self) -> NDArray[np.float64]:
        return np.array([group.replica.num_gpus for group in self.core.simulator.fleet.places], float)

    def _usd_since(self) -> dict[str, float]:
        """Money since the last call, by term; a machine that sleeps is as one that is leased to others."""
        usd_per_h = float(self.core.spec.gpu_usd_per_h[0])
        usd = self.fleet.held_s().sum(axis=0) / 3600.0 * usd_per_h
        totals = np.array([usd.sum() - usd[Held.SPOT], usd[Held.STARTING], usd[Held.SPOT]])
        internal, starting, spot = (totals - self._usd).tolist()
        self._usd = totals
        return {
            "gpu_usd": -internal,
            "startup_usd": -starting,
            "spot_rent_usd": -spot,
            "spot_revenue_usd": self.config.machines.spot_revenue_ratio * spot,
            "backlog_usd": 0.0,
        }

    # -- the observation -----------------------------------------------------------------------------------------------

    def _past_of(self, bins: int) -> NDArray[np.void]:
        """(T,) TRAFFIC_DTYPE, the days before the episode."""
        past = self._stream.past(self.config.history_bin_s, bins).sum(axis=(1, 2))  # (C, T, 3)
        table = np.zeros((bins, len(TRAFFIC_DTYPE.names or ())))
        for c, interactive in enumerate(self.core.interactive):
            table[:, PAST_COLUMNS[interactive]] += past[c]
        return table.view(TRAFFIC_DTYPE).reshape(-1)

    def _look(self) -> None:
        """Reads the state anew."""
        fleet, config, spec = self.fleet, self.config, self.core.spec
        now_s = fleet.now_s

        def traffic(bin_s: float) -> Traffic:
            return fleet.ask_ledger(
                lambda ledger: traffic_of(ledger, self._interactive, fleet.running, bin_s, now_s)
            )

        recent = traffic(config.recent_bin_s)
        most = round(config.recent_s / config.recent_bin_s)
        rows = self._instances(now_s)
        held = [HELD.get(slot.state) for slot in fleet.slots]
        self._state = AutoscalingState(
            now_s=now_s,
            clock_s=self._stream.clock_s + now_s,
            endpoints=(
                EndpointState(
                    endpoint=spec.endpoints[0],
                    instances=rows,
                    spot=np.array([held.count(Held.SPOT)]),
                    num_held=len(fleet.pooled()),
                    niw_queued=0,
                    niw_queued_tokens=0,
                    niw_oldest_s=0.0,
                    recent=Traffic(recent.bin_s, recent.end_s, recent.rows[-most:]),
                    history=with_past(self._past, traffic(config.history_bin_s)),
                    release_level=config.queue.level,
                ),
            ),
            vacant={spec.endpoints[0].region: np.array([held.count(None)])},
            in_flight=fleet.ask_ledger(lambda ledger: in_flight_rows(ledger, self._predicted)),
        )
        self._deadline.shown()

    def _instances(self, now_s: float) -> NDArray[np.void]:
        """(I,) INSTANCE_DTYPE, servers that start, serve or drain."""
        fleet, engines = self.fleet, self.fleet.engines()
        start_s = float(self.core.spec.start_s[0, 0])
        rows = np.zeros(len(fleet.slots), INSTANCE_DTYPE)
        rows["place"], rows["pool"], rows["status"] = np.arange(len(rows)), self._pools, -1
        rows["due_s"] = np.nan
        for number, slot in enumerate(fleet.slots):
            status = _STATUS.get(HELD.get(slot.state, Held.SPOT))
            if status is None:
                continue
            since_s = max(slot.since_s - fleet.begun_s, 0.0)
            rows["status"][number], rows["since_s"][number] = status, since_s
            if slot.state is SlotState.STARTING:
                rows["due_s"][number] = since_s + start_s
            elif status is InstanceStatus.STARTING:
                rows["due_s"][number] = now_s
        for name in ("num_running", "num_waiting", "kv_capacity_tokens"):
            rows[name] = engines[name]
        rows["waiting_tokens"] = engines["pending_prefill_tokens"]
        blocks = np.maximum(engines["kv_capacity_blocks"], 1)
        rows["kv_used_tokens"] = engines["kv_used_blocks"] * (engines["kv_capacity_tokens"] // blocks)
        rows["num_interactive"] = fleet.ask_ledger(
            lambda ledger: [
                int(self._interactive[ledger.workload.class_id[list(load.in_flight)]].sum())
                for load in ledger.engines
            ]
        )
        return rows[rows["status"] >= 0]

    def _observation(self) -> Observation:
        return self._encoder.encode(self.state, 1.0 - self.state.now_s / self._stream.duration_s)

    def _info(
        self,
        dt_s: float,
        terms: dict[str, float],
        refused: str,
        executed: list[dict[str, Any]],
        overrides: list[ControlOverride],
    ) -> dict[str, Any]:
        return {
            "dt": dt_s,
            "reward_terms": terms,
            "refused": refused,
            "num_refused": self._num_refused,
            "executed": executed,
            "overrides": overrides,
            "action_mask": self.action_masks(),
        }


def check_scaled(episode: AutoscalingEpisode, num_slots: int) -> None:
    """Refuses what launched servers cannot be.

    Raises:
        ValueError: there is more than one endpoint or kind of machine, spot instances at the start, a class for the
            queue manager, faults, an unknown queue order, or not as many slots as places.
    """
    config, spec = episode.config, episode.spec
    config.randomise.check_live()
    if len(spec.endpoints) > 1 or len(spec.gpus) > 1:
        raise ValueError(
            f"cluster.groups: live servers are scaled as one model in one region on one kind of machine, got "
            f"{len(spec.endpoints)} endpoints on {len(spec.gpus)} kinds"
        )
    if num_slots != int(episode.simulator.layout.by_kind().sum()):
        raise ValueError(f"cluster.groups has {spec.max_instances} places, but there are {num_slots} slots")
    if config.machines.spot:
        raise ValueError("machines.spot must be 0: no launched server sleeps when an episode begins")
    held = [name for name, own in zip(spec.classes, spec.interactive, strict=True) if not own]
    if held and config.queue.hold:
        raise ValueError(
            f"class {held[0]!r} is for the queue manager, which live servers do not have; set env.queue.hold=false"
        )
    if config.cluster.faults:
        raise ValueError("cluster.crashes and cluster.slow_nodes cannot be injected into live servers")
    if config.cluster.order not in ("fcfs", "priority"):
        raise ValueError(
            f"cluster.order must be fcfs or priority on servers of vLLM, got {config.cluster.order!r}"
        )
