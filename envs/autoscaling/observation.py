"""What a learned policy sees: a row an endpoint, and the clock.

Counts, rates and times are log(1 + value / scale), shares and log ratios as they are; all lie in [0, HIGH]. What is
true of an endpoint follows from `AutoscalingState`, save for the environment's own forecast. The set of endpoints has
no order that means anything. `Encoder` reads the simulator's arrays, `StateEncoder` the typed state, for fleets that
are not simulated; both come to the same figures.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from serving_gym.envs.autoscaling.config import AutoscalingConfig
from serving_gym.envs.autoscaling.features import PARTS
from serving_gym.envs.autoscaling.forecast import HOUR_S, forecast_tps, unrest, usual_tps
from serving_gym.envs.autoscaling.slowness import first_places, slowness_of
from serving_gym.envs.autoscaling.state import (
    AutoscalingSpec,
    AutoscalingState,
    EndpointState,
    InstanceStatus,
)
from serving_gym.envs.interface.nominal import NominalEngines
from serving_gym.envs.interface.scaling import TRAFFIC_DTYPE, Held
from serving_gym.envs.interface.state import EngineStatus
from serving_gym.envs.simulator.autoscaling.simulator import AutoscalingSimulator
from serving_gym.envs.simulator.fleet.nominal import nominal_engines
from serving_gym.envs.simulator.kernel.state import PS_PER_S

FloatArray = NDArray[np.float64]
Observation = dict[str, NDArray[np.float32]]

HIGH = 64.0
DAY_S, WEEK_S = 86_400.0, 7 * 86_400.0
_COLUMN = {name: number for number, name in enumerate(TRAFFIC_DTYPE.names or ())}

ENDPOINT_FEATURES = PARTS[0].names()
CLOCK_FEATURES = PARTS[1].names()


def shapes_of(spec: AutoscalingSpec) -> dict[str, tuple[int, ...]]:
    """Shapes of the observation's parts."""
    return {
        "endpoints": (len(spec.endpoints), len(ENDPOINT_FEATURES)),
        "clock": (len(CLOCK_FEATURES),),
    }


def observation_of(features: dict[str, FloatArray], now_s: float, left: float) -> Observation:
    """Puts an observation together.

    Args:
        features: (P,) each, by name.
        now_s: Time on the clock, seconds since Monday, 0:00.
        left: Share of the episode that is left.
    """
    rows = np.stack([features[name] for name in ENDPOINT_FEATURES], axis=1)
    day, week = 2 * np.pi * now_s / DAY_S, 2 * np.pi * now_s / WEEK_S
    waves = (np.sin(day), np.cos(day), np.sin(week), np.cos(week))
    clock = [*((1.0 + wave) / 2.0 for wave in waves), max(left, 0.0)]
    return {"endpoints": np.asarray(rows, np.float32), "clock": np.asarray(clock, np.float32)}


class Constants:
    """What of an endpoint does not change, and what follows from its traffic by it.

    Args:
        config: What the environment is made of.
        spec: What policies know before an episode.
        kinds: (P,) first kind of machine of each endpoint.
        local: (P,) whether its region's storage holds the model's weights.
        engines: What is known of the fleet's places before an episode.
    """

    def __init__(
        self,
        config: AutoscalingConfig,
        spec: AutoscalingSpec,
        kinds: NDArray[np.int64],
        local: NDArray[np.bool_],
        engines: NominalEngines,
    ) -> None:
        self.config, self.scales = config, config.scales
        self.engines, self._places = engines, first_places(engines, spec.endpoints)
        models = np.array([spec.models.index(endpoint.model) for endpoint in spec.endpoints])
        self.capacity = np.maximum(spec.capacity_tps[models, kinds], 1e-9)
        machines = config.machines
        self.start_s = np.where(local, spec.start_s[models, kinds], machines.remote_s)
        self.redeploy_s = np.where(local, machines.redeploy_s, machines.remote_s)
        promised = [slo for slo, own in zip(spec.slos, spec.interactive, strict=True) if own] or list(
            spec.slos
        )
        self.ttft_s = min(slo.ttft_s for slo in promised)
        self.tpot_s = min(slo.tpot_s for slo in promised)

    def fixed(self) -> dict[str, FloatArray]:
        """Features that do not change."""
        return {
            "capacity": log_of(self.capacity, self.scales.token_rate),
            "start_time": log_of(self.start_s, self.scales.seconds),
            "redeploy_time": log_of(self.redeploy_s, self.scales.seconds),
        }

    def traffic(self, known: FloatArray) -> dict[str, FloatArray]:
        """Features of traffic.

        Args:
            known: (P, T, columns of TRAFFIC_DTYPE), bins of `history_bin_s` that end now.
        """
        config, capacity, bin_s = self.config, self.capacity, self.config.history_bin_s
        prompts = known[:, :, _COLUMN["input_tokens"]]

        def rate(name: str, seconds: float) -> FloatArray:
            of = known[:, -max(1, round(seconds / bin_s)) :, _COLUMN[name]]
            return np.asarray(of.mean(axis=1) / bin_s, np.float64)

        last = known[:, -max(1, round(config.decision_interval_s / bin_s)) :].sum(axis=1)
        first, finished = last[:, _COLUMN["first_tokens"]], last[:, _COLUMN["finished"]]
        arrived = np.maximum(last[:, _COLUMN["requests"]], 1.0)
        ahead = {"forecast_interval": config.decision_interval_s, "forecast_hour": HOUR_S}
        return {
            "load_minute": log_of(rate("input_tokens", 60.0), capacity),
            "load_interval": log_of(rate("input_tokens", config.decision_interval_s), capacity),
            "load_hour": log_of(rate("input_tokens", HOUR_S), capacity),
            **{
                name: log_of(forecast_tps(prompts, bin_s, seconds), capacity)
                for name, seconds in ahead.items()
            },
            "usual": log_of(usual_tps(prompts, bin_s), capacity),
            "niw_load_hour": log_of(rate("niw_input_tokens", HOUR_S), capacity),
            "unrest": unrest(prompts, bin_s),
            "output_rate": log_of(rate("output_tokens", config.decision_interval_s), self.scales.token_rate),
            "late": np.minimum(last[:, _COLUMN["violations"]] / arrived, 1.0),
            "ttft": log_of(last[:, _COLUMN["ttft_sum_s"]] / np.maximum(first, 1.0), self.ttft_s),
            "tpot": log_of(last[:, _COLUMN["tpot_sum_s"]] / np.maximum(finished, 1.0), self.tpot_s),
            "slowness": np.minimum(
                slowness_of(known[:, -max(1, round(HOUR_S / bin_s)) :], bin_s, self.engines, self._places),
                HIGH,
            ),
        }


class Encoder:
    """Encodes what is seen of a simulated fleet.

    Args:
        config: What the environment is made of.
        spec: What policies know before an episode.
        simulator: The fleet.
    """

    def __init__(
        self, config: AutoscalingConfig, spec: AutoscalingSpec, simulator: AutoscalingSimulator
    ) -> None:
        self.config, self.spec, self.scales = config, spec, config.scales
        self.shapes = shapes_of(spec)
        layout = simulator.layout
        self.constants = Constants(
            config,
            spec,
            kinds=np.array([layout.kind_of[layout.places(p)[0]] for p in range(len(spec.endpoints))]),
            local=np.array([simulator.machines.weights_local(p) for p in range(len(spec.endpoints))]),
            engines=nominal_engines(simulator),
        )

    def encode(self, simulator: AutoscalingSimulator, clock_s: float) -> Observation:
        """The observation now.

        Args:
            simulator: The fleet.
            clock_s: Time on the clock when the episode began.
        """
        features = {
            **self._machines(simulator),
            **self._requests(simulator),
            **self._traffic(simulator),
            **self.constants.fixed(),
        }
        left = 1.0 - simulator.now_s / simulator.stream.duration_s
        return observation_of(features, clock_s + simulator.now_s, left)

    def _machines(self, simulator: AutoscalingSimulator) -> dict[str, FloatArray]:
        layout, plane, scale = simulator.layout, simulator.plane, self.scales.instances
        held = simulator.held().sum(axis=1)
        region = layout.region_of
        spot = np.bincount(region, held[:, Held.SPOT], len(layout.regions))[region]
        next_s = np.zeros(len(region))
        starting = np.flatnonzero(simulator.world.engines["status"] == EngineStatus.DOWN)
        for place in starting.tolist():
            number = int(layout.endpoint_of[place])
            left = max(plane.due_s(place) - simulator.now_s, 0.0)
            next_s[number] = left if next_s[number] == 0.0 else min(left, next_s[number])
        return {
            "running": log_of(held[:, Held.RUNNING], scale),
            "starting": log_of(held[:, Held.STARTING], scale),
            "draining": log_of(held[:, Held.DRAINING], scale),
            "spot": log_of(held[:, Held.SPOT], scale),
            "spot_of_others": log_of(spot - held[:, Held.SPOT], scale),
            "vacant": log_of(plane.inventory.vacant.sum(axis=1)[region], scale),
            "next_ready": log_of(np.nan_to_num(next_s), self.scales.seconds),
            "no_instance": (held[:, Held.RUNNING] == 0).astype(np.float64),
            "places_left": 1.0 - held[:, : Held.SPOT].sum(axis=1) / layout.by_kind().sum(axis=1),
        }

    def _requests(self, simulator: AutoscalingSimulator) -> dict[str, FloatArray]:
        shown, layout, scales = simulator.shown(), simulator.layout, self.scales
        assert simulator.gate is not None
        lines = simulator.gate.lines[: layout.num_endpoints]
        serving = shown["status"] == EngineStatus.ACTIVE

        def total(name: str, which: NDArray[np.bool_] | None = None) -> FloatArray:
            values = shown[name] if which is None else np.where(which, shown[name], 0)
            return np.asarray(np.bincount(layout.endpoint_of, values, layout.num_endpoints), np.float64)

        arrived = np.where(
            lines["count"] > 0, simulator.world.requests["arrival_ps"][lines["first"]], simulator.now_ps
        )
        due_s = max(self.config.queue.deadline_s, 1e-9)
        levels = max(len(self.config.queue.levels) - 1, 1)
        return {
            "kv_usage": total("kv_used_blocks", serving)
            / np.maximum(total("kv_capacity_blocks", serving), 1),
            "running_requests": log_of(total("num_running"), scales.requests),
            "waiting_requests": log_of(total("num_waiting"), scales.requests),
            "waiting_tokens": log_of(total("pending_prefill_tokens"), scales.tokens),
            "held_requests": log_of(simulator.held_by_gateway()[: layout.num_endpoints], scales.requests),
            "niw_queued": log_of(lines["count"], scales.requests),
            "niw_queued_tokens": log_of(lines["tokens"], scales.tokens),
            "niw_oldest": np.minimum((simulator.now_ps - arrived) / PS_PER_S / due_s, HIGH),
            "release_level": simulator.release_level[: layout.num_endpoints] / levels,
        }

    def _traffic(self, simulator: AutoscalingSimulator) -> dict[str, FloatArray]:
        bins = simulator.books.history
        ended = (simulator.now_ps - bins.begin_ps) // bins.bin_ps
        return self.constants.traffic(bins.rows[: self.shapes["endpoints"][0], :ended])


def log_of(values: NDArray[np.number] | FloatArray, scale: float | FloatArray) -> FloatArray:
    """log(1 + value / scale)."""
    return np.asarray(np.log1p(np.asarray(values, np.float64) / scale), np.float64)


class StateEncoder:
    """Encodes states, simulated or not.

    Args:
        config: What the environment is made of.
        spec: What policies know before an episode.
        engines: What is known of the fleet's places before an episode.
    """

    def __init__(self, config: AutoscalingConfig, spec: AutoscalingSpec, engines: NominalEngines) -> None:
        if spec.places is None:
            raise ValueError("spec.places must say how many instances each endpoint may have")
        self.config, self.spec, self.scales = config, spec, config.scales
        self.engines = engines
        self.shapes = shapes_of(spec)
        self._most = spec.places.sum(axis=1)
        self._kinds = np.argmax(spec.places > 0, axis=1)

    def encode(self, state: AutoscalingState, left: float) -> Observation:
        """The observation of a state.

        Args:
            state: What is known.
            left: Share of the episode that is left.
        """
        local = np.array([own.weights_local for own in state.endpoints])
        constants = Constants(self.config, self.spec, self._kinds, local, self.engines)
        known = np.stack(
            [own.history.rows.view(np.float64).reshape(-1, len(_COLUMN)) for own in state.endpoints]
        )
        features = {
            **self._machines(state),
            **self._requests(state),
            **constants.traffic(known),
            **constants.fixed(),
        }
        return observation_of(features, state.clock_s, left)

    def _machines(self, state: AutoscalingState) -> dict[str, FloatArray]:
        scale = self.scales.instances

        def count(status: InstanceStatus) -> FloatArray:
            return np.array([float(len(own.with_status(status))) for own in state.endpoints])

        spot = np.array([float(own.spot.sum()) for own in state.endpoints])
        regions = [own.endpoint.region for own in state.endpoints]
        of_region = np.array([sum(spot[np.array(regions) == region]) for region in regions])
        vacant = np.array([float(state.vacant[region].sum()) for region in regions])
        taken = np.array([float(len(own.instances)) for own in state.endpoints])
        running = count(InstanceStatus.RUNNING)
        return {
            "running": log_of(running, scale),
            "starting": log_of(count(InstanceStatus.STARTING), scale),
            "draining": log_of(count(InstanceStatus.DRAINING), scale),
            "spot": log_of(spot, scale),
            "spot_of_others": log_of(of_region - spot, scale),
            "vacant": log_of(vacant, scale),
            "next_ready": log_of(
                np.array([_next_ready_s(own, state.now_s) for own in state.endpoints]), self.scales.seconds
            ),
            "no_instance": (running == 0).astype(np.float64),
            "places_left": 1.0 - taken / self._most,
        }

    def _requests(self, state: AutoscalingState) -> dict[str, FloatArray]:
        scales, due_s = self.scales, max(self.config.queue.deadline_s, 1e-9)
        levels = max(len(self.config.queue.levels) - 1, 1)

        def each(value: Callable[[EndpointState], float]) -> FloatArray:
            return np.array([float(value(own)) for own in state.endpoints])

        return {
            "kv_usage": each(lambda own: own.utilization() if len(own.running) else 0.0),
            "running_requests": log_of(each(lambda own: own.instances["num_running"].sum()), scales.requests),
            "waiting_requests": log_of(each(lambda own: own.instances["num_waiting"].sum()), scales.requests),
            "waiting_tokens": log_of(each(lambda own: own.instances["waiting_tokens"].sum()), scales.tokens),
            "held_requests": log_of(each(lambda own: own.num_held), scales.requests),
            "niw_queued": log_of(each(lambda own: own.niw_queued), scales.requests),
            "niw_queued_tokens": log_of(each(lambda own: own.niw_queued_tokens), scales.tokens),
            "niw_oldest": np.minimum(each(lambda own: own.niw_oldest_s) / due_s, HIGH),
            "release_level": each(lambda own: own.release_level) / levels,
        }


def _next_ready_s(own: EndpointState, now_s: float) -> float:
    """Time until the first starting instance serves, seconds; 0 if there is none or the time is unknown."""
    left = np.maximum(own.starting["due_s"] - now_s, 0.0)
    known = left[np.isfinite(left)]
    return float(known.min()) if known.size else 0.0
