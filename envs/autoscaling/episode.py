"""One autoscaling episode: a simulated fleet, what a policy may know of it, and what its decisions cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.autoscaling.action import Action, Levers, is_changes
from serving_gym.envs.autoscaling.capacity import measure_capacity
from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.observation import Encoder, Observation
from serving_gym.envs.autoscaling.state import AutoscalingSpec, AutoscalingState
from serving_gym.envs.autoscaling.state_reader import StateReader
from serving_gym.envs.base.episode import SteppedEpisode
from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.envs.interface.reward import Interval, Outcome
from serving_gym.envs.interface.scaling import Endpoint, Held, Release, ScaleChange
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.simulator.autoscaling.bins import LATENCIES, latency_percentile
from serving_gym.envs.simulator.autoscaling.simulator import AutoscalingSimulator
from serving_gym.envs.simulator.fleet.build import profile_of
from serving_gym.envs.simulator.fleet.nominal import nominal_engines
from serving_gym.envs.simulator.kernel.state import PS_PER_S
from serving_gym.envs.simulator.scheduling import to_ps
from serving_gym.envs.workload.schema import TokenArray
from serving_gym.envs.workload.streams import RequestStream

FloatArray = NDArray[np.float64]

_NS_PER_H = 3600 * 1_000_000_000
_DRAIN_STEP_S = 10.0  # how often one looks whether all requests have ended
_SAMPLE_SEED = 0
MONEY_TERMS = ("gpu_usd", "startup_usd", "spot_rent_usd", "spot_revenue_usd", "backlog_usd")  # of the reward


@dataclass(frozen=True, eq=False)
class Closing:
    """A fleet at the end of the arrivals, before what is left is served.

    Attributes:
        instance_hours: As `AutoscalingEpisode.instance_hours`, until then.
        niw_queued: (P,) non-interactive requests that the queue manager still holds.
        niw_queued_tokens: (P,) their tokens, prompt and predicted answer.
    """

    instance_hours: dict[str, FloatArray]
    niw_queued: NDArray[np.int64]
    niw_queued_tokens: NDArray[np.int64]


class AutoscalingEpisode(SteppedEpisode[AutoscalingConfig]):
    """Runs episodes of one configuration.

    Attributes:
        spec: What policies know before an episode.
        closing: The fleet at the end of the arrivals; None before it.

    Args:
        config: What the environment is made of.

    Raises:
        ValueError: Something in it is unknown or impossible.
    """

    simulator: AutoscalingSimulator
    closing: Closing | None = None

    def __init__(self, config: AutoscalingConfig) -> None:
        super().__init__(config)
        self.interactive = tuple(name not in config.queue.classes for name in self.classes)
        self.simulator = AutoscalingSimulator(
            config.cluster, self.slos, config.machines, config.queue, self.interactive
        )
        self.simulator.levels = config.randomise.levels
        self._check_front_end(len(self.simulator.tables.fronts) > 0)
        self.spec = self._make_spec()
        self.levers = Levers(config, self.simulator)
        self.encoder = Encoder(config, self.spec, self.simulator)
        self.reader = StateReader(self.spec)
        self._state: AutoscalingState | None = None

    def _make_spec(self) -> AutoscalingSpec:
        config, fleet, layout = self.config, self.simulator.fleet, self.simulator.layout
        models = list(dict.fromkeys(model for model, _ in fleet.endpoints))
        shape = (len(models), len(layout.kinds))
        start_s, capacity_tps = np.zeros(shape), np.zeros(shape)
        lengths = self.lengths(models)
        for place, group in enumerate(fleet.places):
            cell = models.index(group.replica.model), int(layout.kind_of[place])
            if not start_s[cell]:
                start_s[cell] = self.simulator.machines.start_s(group.replica)
                given_tps = config.capacity_tps.get(group.replica.model)
                capacity_tps[cell] = (
                    measure_capacity(group.replica, *lengths[cell[0]], self.strictest)
                    if given_tps is None
                    else given_tps
                )
        return AutoscalingSpec(
            endpoints=tuple(Endpoint(*endpoint) for endpoint in fleet.endpoints),
            gpus=layout.names,
            classes=self.classes,
            interactive=self.interactive,
            slos=self.slos,
            capacity_tps=capacity_tps,
            start_s=start_s,
            gpu_usd_per_h=np.array([count * self._gpu_usd(gpu) for gpu, count in layout.kinds]),
            min_instances=config.min_instances,
            max_instances=int(layout.by_kind().sum(axis=1).max()),
            decision_interval_s=config.decision_interval_s,
            places=layout.by_kind(),
            max_change=config.max_change,
            num_levels=len(config.queue.levels),
        )

    def lengths(self, models: list[str]) -> list[tuple[TokenArray, TokenArray]]:
        """Prompt and output tokens, (N,) each, of interactive requests of each model, as they came in training."""
        sample = self._stream(_SAMPLE_SEED, "train").piece(0)
        wanted = np.array(self.interactive)[sample.class_id]
        wanted |= not wanted.any()
        lengths = []
        for model in models:
            asked = [number for number, name in enumerate(sample.models) if name in ("", model)]
            rows = wanted & np.isin(sample.model_id, asked)
            lengths.append((sample.input_tokens[rows], sample.output_tokens[rows]))
        return lengths

    @property
    def strictest(self) -> SLO:
        """The strictest SLO of the interactive classes; of all classes if none is interactive."""
        slos = [slo for slo, interactive in zip(self.slos, self.interactive, strict=True) if interactive]
        chosen = slos or list(self.slos)
        return SLO(min(slo.ttft_s for slo in chosen), min(slo.tpot_s for slo in chosen))

    def _gpu_usd(self, gpu: str) -> float:
        price = self.config.machines.gpu_usd_per_h.get(gpu)
        if price is None:
            own = next(group.replica for group in self.config.cluster.groups if group.replica.gpu == gpu)
            price = profile_of(own).gpu.price_usd_per_hour if own.profile else get_gpu(gpu).price_usd_per_hour
        return 1.0 if price is None else price

    def _stream(self, seed: int, split: str | None) -> RequestStream:
        config = self.config
        before = self._bins_before * config.history_bin_s
        return self.source.stream(seed, split or config.split, before, config.episode_s)

    @property
    def _bins_before(self) -> int:
        return round(self.config.history_s / self.config.history_bin_s)

    # -- an episode ----------------------------------------------------------------------------------------------------

    def reset(self, seed: int, split: str | None = None) -> None:
        """Begins the episode of a seed.

        Args:
            seed: Which episode.
            split: Where it is drawn from; None: the configuration's split.
        """
        config = self.config
        self.stream = self._stream(seed, split)
        after = round((self.stream.duration_s + config.drain_limit_s) / config.history_bin_s) + 2
        self.simulator.open(
            self.stream,
            seed,
            (config.recent_bin_s, round(config.recent_s / config.recent_bin_s)),
            (config.history_bin_s, self._bins_before, after),
            config.prediction,
            config.keep_records,
            config.cluster.faults,
            config.randomise.draw(seed, len(config.cluster.groups)),
        )
        self.reader.begin(self.simulator, self.stream, config)
        self._start()
        self._machines_usd = np.zeros(3)
        self.closing = None
        self._look()

    @property
    def decides_until_s(self) -> float:
        """Time of the last decision's end: when requests cease to arrive."""
        return self.stream.duration_s

    def mask(self) -> NDArray[np.bool_]:
        """(sum of nvec,), which entries of the action space are possible now."""
        return self.levers.mask(self.simulator)

    def step(self, action: Action, interval_s: float | None = None) -> Outcome:
        """Carries out a decision and lets time pass to the next one, or after the last one to the end.

        Args:
            action: A vector of the action space, changes, or None (leave all as it is).
            interval_s: Time to the next decision; None: the configuration's.
        """
        simulator = self.simulator
        switched, refused = self._apply(action)
        before_ps = simulator.now_ps
        span_s = self.config.decision_interval_s if interval_s is None else interval_s
        until_s = min(simulator.now_s + span_s, self.decides_until_s)
        simulator.advance(until_s)
        truncated, backlog_usd = False, 0.0
        if simulator.now_ps >= to_ps(self.decides_until_s):
            backlog_usd = self._backlog_usd()
            self.closing = self._closing()
            truncated = not self._drain()
            self.done = True
        interval = self.meter.measure(
            simulator.world.stats,
            simulator.latency_cost,
            switched,
            self.unfinished() if truncated else None,
        )
        self._look()
        usd = {**self._usd_since(), "backlog_usd": -backlog_usd}  # MONEY_TERMS
        dt_s = (simulator.now_ps - before_ps) / PS_PER_S
        return Outcome(
            self._reward(interval, usd),
            interval.terms(self.classes) | usd,
            dt_s,
            self.done and not truncated,
            truncated,
            refused,
        )

    def _drain(self) -> bool:
        """Lets what is inside end, with the instances there are. Returns whether all did within the limit."""
        simulator = self.simulator
        simulator.flush()
        limit_s = self.decides_until_s + self.config.drain_limit_s
        while not simulator.empty and simulator.now_s < limit_s:
            simulator.advance(min(simulator.now_s + _DRAIN_STEP_S, limit_s))
        return simulator.empty

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _apply(self, action: Action) -> tuple[int, str]:
        """Instances that begin to come or go, and what could not be carried out."""
        if action is None:
            return 0, ""
        reasons: list[str] = []
        switched = 0
        changes: Iterable[ScaleChange | Release]
        if is_changes(action):
            changes = action
        else:
            changes = self.levers.changes(self.simulator, np.asarray(action), reasons)
        for change in changes:
            receipt = self.simulator.change(change)
            if not receipt.accepted:
                reasons.append(receipt.reason)
            elif isinstance(change, ScaleChange):
                switched += change.count
        self.num_refused += len(reasons)
        return switched, "; ".join(reasons)

    # -- what it costs -------------------------------------------------------------------------------------------------

    def _usd_since(self) -> dict[str, float]:
        """Money since the last call, by term."""
        hours = self.simulator.plane.inventory.held_ns.sum(axis=0) / _NS_PER_H
        usd = hours * self.spec.gpu_usd_per_h[:, None]
        spot, starting = usd[:, Held.SPOT].sum(), usd[:, Held.STARTING].sum()
        totals = np.array([usd.sum() - spot, starting, spot])
        internal, starting, spot = (totals - self._machines_usd).tolist()
        self._machines_usd = totals
        return {
            "gpu_usd": -internal,
            "startup_usd": -starting,
            "spot_rent_usd": -spot,
            "spot_revenue_usd": self.config.machines.spot_revenue_ratio * spot,
        }

    @property
    def standing_reward(self) -> float:
        """Charge of the reward for queued requests if the episode ended now; 0 after its end."""
        objective = self.config.objective
        return 0.0 if self.done else -objective.scale * objective.backlog_usd * self._backlog_usd()

    def _closing(self) -> Closing:
        """What there is when the last request has arrived."""
        gate = self.simulator.gate
        assert gate is not None
        return Closing(
            self.instance_hours, gate.lines["count"].astype(np.int64), gate.lines["tokens"].astype(np.int64)
        )

    def _backlog_usd(self) -> float:
        """Price of the machine time of queued requests, at the benchmarked capacity."""
        spec, layout = self.spec, self.simulator.layout
        assert self.simulator.gate is not None
        total = 0.0
        for number, endpoint in enumerate(spec.endpoints):
            kind = int(layout.kind_of[layout.places(number)[0]])
            tps = spec.capacity_tps[spec.models.index(endpoint.model), kind]
            tokens = int(self.simulator.gate.lines["tokens"][number])
            total += tokens / tps / 3600.0 * float(spec.gpu_usd_per_h[kind]) if tokens and tps else 0.0
        return float(total)

    @property
    def term_weights(self) -> dict[str, float]:
        """As of every environment, and those of money."""
        objective = self.config.objective
        return super().term_weights | {name: getattr(objective, name) for name in MONEY_TERMS}

    def _reward(self, interval: Interval, usd: dict[str, float]) -> float:
        objective = self.config.objective
        money = sum(getattr(objective, name) * value for name, value in usd.items())
        return interval.reward(objective) + objective.scale * money

    @property
    def instance_hours(self) -> dict[str, FloatArray]:
        """By what machines are held for: (P, G) machine-hours so far."""
        hours = self.simulator.plane.inventory.held_ns / _NS_PER_H
        return {held.name.lower(): hours[:, :, held] for held in Held}

    def latency(
        self, name: str, percent: float, classes: Collection[str] = (), endpoint: int | None = None
    ) -> float:
        """Percentile of a latency over requests that have left, seconds, to within 1 %, records kept or not.

        Args:
            name: "ttft", "tpot" or "e2e".
            percent: 0 to 100.
            classes: Request classes; none: all.
            endpoint: Number of the endpoint that requests came for; None: all.

        Raises:
            ValueError: There is no such latency or class.
        """
        check_choice("latency", name, LATENCIES)
        for wanted in classes:
            check_choice("class", wanted, self.classes)
        rows = [c for c, own in enumerate(self.classes) if not classes or own in classes]
        counts = self.simulator.books.latencies[rows, :, LATENCIES.index(name)]
        return latency_percentile(
            counts.sum(axis=(0, 1)) if endpoint is None else counts[:, endpoint].sum(axis=0), percent
        )

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that instances have been kept, spot instances left out."""
        hours = self.simulator.plane.inventory.held_ns.sum(axis=0) / _NS_PER_H
        gpus = np.array([count for _, count in self.simulator.layout.kinds])
        internal = hours.sum(axis=1) - hours[:, Held.SPOT]
        return float(3600.0 * (internal * gpus).sum())

    # -- the observation -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._state = None

    @property
    def state(self) -> AutoscalingState:
        """State that a policy may read at this decision; built on first access."""
        if self._state is None:
            self._state = self.reader.read(self.simulator)
        return self._state

    def observe(self) -> Observation:
        """The observation of the present moment."""
        return self.encoder.encode(self.simulator, self.stream.clock_s)

    @property
    def policy_spec(self) -> PolicySpec:
        """What a policy knows before an episode."""
        return self._make_policy_spec(
            self.config.decision_interval_s, engines=nominal_engines(self.simulator), setting=self.spec
        )

    def fork(self) -> Self:
        """A copy of the episode that continues to the same numbers."""
        copy = self._copy()
        copy.reader, copy._machines_usd = replace(self.reader), self._machines_usd.copy()
        return copy
