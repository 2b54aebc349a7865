"""The setting of sections 4 and 7.2.1 to 7.2.7: endpoints whose instances are scaled for a day.

From the paper: eight GPUs an instance, 20 instances of a model in a region at the start and at most, two at least, spot
instances back within 1 min (median) and 5 min (most), NIW's queue manager at 60 % and 50 %, a cooldown of 15 s, the
performance model of Splitwise's simulator, a Tuesday.

Ours, because the paper does not say or does not publish it; the promise of section 4, its small models' load and how
siloed starts were settled after first runs, which were too long or began without room, the rest before any:

* Requests: the workload `week` with the shape of the tiers' week of November 2024. In July 2025 72 % of the requests
  are interactive (section 3), in November 2024 three of four.
* One region, with a third of the paper's instance-hours; three in `regions.py`.
* Load: the largest noiseless week of which the optimiser, were its forecast right, covers the Tuesday with LT-I's
  instance-hours of the paper; a seed's noise is then divided out, so that each day has as many interactive prompt
  tokens. So LT-I's hours are no result, and all others are.
* Memory: the simulator that the paper extends (Mutinifni/splitwise-sim) knows a model's hidden size alone and so keeps
  keys and values of all heads; with those of grouped queries, Llama-2's memory never fills to the thresholds before its
  compute is exhausted. Here a pool is as small as theirs.
* Llama 4 Scout has weights of 16 bits, its default, and vLLM's overheads, as Splitwise has no mixture of experts. With
  those of 8 bits an instance would have exhausted its compute at 60 % of its memory, and policies that go by memory
  would hardly have scaled it out.
* Instances are benchmarked by IW-F's second to the first token; section 4, which does not tell tiers apart, by IW-N's
  minute. The two small models of section 4, which stay at their fewest instances, get a twentieth of what those serve.
* Decisions every 15 s, the cooldown, in place of with each request.
* Siloed starts with half of the instances, of neither pool: two of each come within minutes, and those go.
* Bursts last an hour, so that they reach the last 20 minutes of one, in which alone LT-UA goes beyond its plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from serving_gym.baselines.registry import make_policy
from serving_gym.calibration.hardware import get_gpu
from serving_gym.calibration.memory import num_blocks
from serving_gym.calibration.models import get_model
from serving_gym.envs.autoscaling.capacity import measure_capacity
from serving_gym.envs.autoscaling.env import AutoscalingEnv
from serving_gym.envs.interface.fleet import FleetConfig, GroupSpec, ReplicaSpec
from serving_gym.envs.interface.metrics import FloatArray, RequestRecords
from serving_gym.envs.interface.scaling import QueueSpec
from serving_gym.envs.interface.slo import SLO
from serving_gym.envs.workload.registry import WorkloadSource, WorkloadSpec
from serving_gym.envs.workload.seeding import seed_sequence
from serving_gym.envs.workload.streams import RequestStream
from serving_gym.envs.workload.tiers import IW_F, IW_N, NIW, TIERS
from serving_gym.envs.workload.week import WeekTraffic
from serving_gym.runners.reporting.progress import say
from serving_gym.runners.reproduction.measures import percentile
from serving_gym.runners.reproduction.parts import TRACE_MODEL_LEN, PaperStudy
from serving_gym.runners.reproduction.sageserve.choices import SageServeChoices

REACTIVE, SILOED, CHIRON = "Reactive", "Siloed", "Chiron"
LT_I, LT_U, LT_UA = "LT-I", "LT-U", "LT-UA"
JULY, NOVEMBER = 72 / 28, 3.0  # interactive requests for each that is not; sections 3 and 7.2.7
PRIORITIES = {"one": (0, 0, 1), "by tier": (0, 1, 2)}  # of IW-F, IW-N, NIW
REGION = "east"
REGIONS = 3  # of the paper, of which one is served
MOST, FEWEST, GPUS = 20, 2, 8

_DAY_H, _QUICK_H = (24.0, 24.0), (32.0, 4.0)  # begin in the week, length: a Tuesday; its ramp up
_LEAST_H = 0.1
_UNIT_WEEK = 1e6
BETA = 0.1  # section 6.3; the load is set with the paper's, whatever the policies' is
CALM: tuple[tuple[str, Any], ...] = (("noise", 0.0), ("bursts_per_day", 0))
A100_RATIO = 0.64  # of H100's tokens/s: the middle of 68/95 and 293/522, Llama-2 at Q1 and Q3, section 2.1
_SAMPLE_WEEK = 1e9  # requests, of whose first hour lengths are drawn for theta
_NO_PROMISE_S = 60.0  # a token
_WINDOW_S = 900.0
_BISECTIONS = 40


@dataclass(frozen=True)
class Setting:
    """What is served, and on what.

    Attributes:
        model: Key in `calibration.models`.
        gpu: GPU.
        engine: Engine in `calibration.engines`.
        iw_to_niw: Interactive requests for each that is not.
        hours: Instance-hours of the optimiser on a whole day that set the load, of all regions.
        params: Further parameters of `WeekTraffic`.
        hold: Whether non-interactive requests wait in the queue manager.
        load_ratio: Factor on the load that follows from `hours`.
        ttft_s: Promised time to the first token of interactive requests, by which instances are benchmarked.
        span_h: Begin in the week and length, hours; None: the command's.
        one_seed: Whether the first seed alone is run.
    """

    model: str = "llama-2-70b"
    gpu: str = "H100"
    engine: str = "splitwise"
    iw_to_niw: float = JULY
    hours: float = 274.5
    params: tuple[tuple[str, Any], ...] = ()
    hold: bool = True
    load_ratio: float = 1.0
    ttft_s: float = 1.0
    span_h: tuple[float, float] | None = None
    one_seed: bool = False


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a policy made of a day.

    Attributes:
        instance_h: Instance-hours, starting and draining ones included, spot ones not.
        starting_h: Instance-hours in which instances came.
        records: Every request.
        thinking_s: What the policy took to decide, all decisions together.
        day_h: Instance-hours until the last arrival; the rest is the drain.
        niw_owed: Non-interactive requests held at the last arrival.
        niw_owed_h: Instance-hours that serving them takes at the benchmarked capacity.
    """

    instance_h: float
    starting_h: float
    records: RequestRecords
    thinking_s: float
    day_h: float = 0.0
    niw_owed: float = 0.0
    niw_owed_h: float = 0.0

    def __str__(self) -> str:
        fast, normal = (self.of(tier) for tier in (IW_F, IW_N))
        return (
            f"{self.instance_h:.1f} instance-hours ({self.day_h:.1f} in the day, "
            f"{self.instance_h - self.day_h:.1f} in the drain; {self.niw_owed:.0f} NIW owed at its end, "
            f"{self.niw_owed_h:.1f} h), {self.starting_h:.2f} of them starting, P95 TTFT of IW-F "
            f"{percentile(fast, 95):.2f} s ({(fast > 1.0).mean():.1%} above 1 s), of IW-N "
            f"{percentile(normal, 95):.2f} s ({(normal > 60.0).mean():.1%} above 60 s), E2E {self.e2e_s:.1f} s"
        )

    def of(self, tier: str) -> FloatArray:
        """TTFT of a tier's requests, seconds."""
        return self.records.ttft_s[self.records.class_id == TIERS.index(tier)]

    def _interactive(
        self, within_s: tuple[float, float] | None = None
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        rows = self.records.class_id != TIERS.index(NIW)
        if within_s is not None:
            arrival_s = self.records.arrival_s
            rows = rows & (arrival_s >= within_s[0]) & (arrival_s < within_s[1])
        return rows

    def ttft_s(self, within_s: tuple[float, float] | None = None) -> float:
        """P95 of the TTFT of interactive requests, of those that arrive within a span where one is given."""
        return percentile(self.records.ttft_s[self._interactive(within_s)], 95)

    @property
    def e2e_s(self) -> float:
        """P95 of the end-to-end latency of interactive requests."""
        return percentile(self.records.e2e_s[self._interactive()], 95)


@dataclass
class ScalingStudy(PaperStudy):
    """Runs policies in settings and remembers what came out."""

    choices: SageServeChoices = field(default_factory=SageServeChoices)
    _known: dict[tuple[str, Setting], Outcome] = field(default_factory=dict)
    _capacity_tps: dict[tuple[str, str, str, float], float] = field(default_factory=dict)

    @property
    def span_h(self) -> tuple[float, float]:
        """Begin in the week and length of what is served, hours."""
        return _QUICK_H if self.config.quick else _DAY_H

    def outcome(self, policy: str, setting: Setting) -> Outcome:
        """A policy in a setting; arrivals are the same for all policies."""
        if (policy, setting) not in self._known:
            self.bar.set_postfix_str(f"{setting.model}, {policy}", refresh=False)
            runs = []
            for seed in self.seeds[:1] if setting.one_seed else self.seeds:
                runs.append(self._run(policy, setting, seed))
                self.bar.update(1)
                say(self.bar, f"{setting.model}, {setting.gpu}, {policy}, seed {seed}: {runs[-1]}")
            self._known[policy, setting] = pooled(runs)
        return self._known[policy, setting]

    def policy(self, name: str) -> tuple[str, dict[str, Any]]:
        """Registered name and parameters of a policy of the paper."""
        made = self.choices
        if name == CHIRON:
            return "chiron", {"period_s": made.decision_s}
        if name in (REACTIVE, SILOED):
            siloed = name == SILOED
            return "sageserve_reactive", {"siloed": siloed, "period_s": made.decision_s, **made.ratios}
        return "sageserve", {
            "strategy": name,
            "forecaster": made.forecaster,
            "beta": made.beta,
            "scale_in": made.scale_in,
            "period_s": made.decision_s,
            **made.ratios,
        }

    def bursts_s(self, setting: Setting) -> list[float]:
        """When the bursts of a setting begin."""
        spec = self._workload(setting, 1.0)
        traffic = WeekTraffic(**spec.params)
        seed = seed_sequence(self.config.first_seed, spec.name, self.config.split)
        _, length_h = setting.span_h or self.span_h
        return list(traffic.burst_begins_s(seed, 3600 * length_h))

    def capacity_tps(self, setting: Setting) -> float:
        """Prompt tokens/s of an instance within its promises: theta, measured once on one large sample of lengths."""
        if setting.gpu == "A100-80GB" and self.choices.a100 == "section 2.1":
            return A100_RATIO * self.capacity_tps(replace(setting, gpu="H100"))
        key = setting.model, setting.gpu, setting.engine, setting.ttft_s
        if key not in self._capacity_tps:
            spec = self._workload(replace(setting, params=()), _SAMPLE_WEEK, span_h=(24.0, 1.0))
            sample = WorkloadSource(replace(spec, split="train")).stream(0, duration_s=60.0).piece(0)
            rows = np.flatnonzero(sample.class_id != TIERS.index(NIW))
            self._capacity_tps[key] = measure_capacity(
                self._replica(setting),
                sample.input_tokens[rows],
                sample.output_tokens[rows],
                SLO(setting.ttft_s, _NO_PROMISE_S),
                self.choices.theta_probes,
            )
        return self._capacity_tps[key]

    def requests_per_week(self, setting: Setting, capacity_tps: float) -> float:
        """The one rule for the load: see the head of this file."""
        peaks = self.hourly_peaks_tps(setting) / capacity_tps
        low, high = 1e3, 1e10
        for _ in range(_BISECTIONS):
            middle = float(np.sqrt(low * high))
            too_many = instance_hours(middle * peaks) > setting.hours / REGIONS
            low, high = (low, middle) if too_many else (middle, high)
        return setting.load_ratio * float(np.sqrt(low * high))

    def load(self, setting: Setting, seed: int) -> float:
        """Requests a week of a seed."""
        load = self.requests_per_week(setting, self.capacity_tps(setting))
        return load / self.noise_ratio(setting, seed) if self.choices.load == "realised" else load

    def stream(self, setting: Setting, seed: int, past_s: float) -> RequestStream:
        """The requests of a seed with so much of their past, seconds; those that every policy is run on."""
        load = self.load(setting, seed)
        source = WorkloadSource(self._workload(setting, load))
        return source.stream(seed, self.config.split, past_s, 3600 * self.length_h(setting, load))

    def length_h(self, setting: Setting, requests_per_week: float) -> float:
        """Length of what is served, hours."""
        _, length_h = setting.span_h or self.span_h
        if self.config.requests is None:
            return length_h
        return min(length_h, max(_LEAST_H, 168 * self.config.requests / requests_per_week))  # as a mean

    def noise_ratio(self, setting: Setting, seed: int) -> float:
        """Interactive prompt tokens of a seed's span over those of the span without noise."""
        span_h = setting.span_h or self.span_h
        niw = TIERS.index(NIW)
        tokens = []
        for also in ((), CALM):
            spec = self._workload(setting, _UNIT_WEEK, (*also, ("bursts_per_day", 0)), span_h)
            stream = WorkloadSource(spec).stream(seed, duration_s=3600 * span_h[1])
            coming = stream.expected(_WINDOW_S, round(3600 * span_h[1] / _WINDOW_S))[..., 1]
            tokens.append(float(coming.sum() - coming[niw].sum()))
        return tokens[0] / tokens[1]

    def hourly_peaks_tps(self, setting: Setting) -> FloatArray:
        """(24,) what the optimiser covers of a noiseless Tuesday, prompt tokens/s for each request of the week."""
        stream = WorkloadSource(self._workload(setting, _UNIT_WEEK, CALM, _DAY_H)).stream(0)
        coming = (
            stream.expected(_WINDOW_S, 96)[..., 1].sum(axis=(1, 2)) / _WINDOW_S
        )  # (C, 96) prompt tokens/s
        niw = TIERS.index(NIW)
        buffer = BETA * np.roll(coming[niw].reshape(24, 4).mean(axis=1), 1)  # of the hour before
        interactive = (coming.sum(axis=0) - coming[niw]).reshape(24, 4)
        return np.asarray((interactive.max(axis=1) + buffer) / _UNIT_WEEK, np.float64)

    def _workload(
        self,
        setting: Setting,
        requests_per_week: float,
        also: tuple[tuple[str, Any], ...] = (),
        span_h: tuple[float, float] | None = None,
    ) -> WorkloadSpec:
        begin_h, _ = span_h or setting.span_h or self.span_h
        params: dict[str, Any] = {
            "requests_per_week": requests_per_week,
            "iw_to_niw": setting.iw_to_niw,
            "priorities": PRIORITIES[self.choices.priorities],
            "start_h": begin_h,
            "models": {setting.model: {}},
            "regions": {REGION: {}},
            **dict(setting.params),
            **dict(also),
        }
        return WorkloadSpec(name="week", params=params, split=self.config.split)

    def _replica(self, setting: Setting) -> ReplicaSpec:
        blocks = kv_blocks(setting.model, setting.gpu) if self.choices.kv_heads == "all" else None
        return ReplicaSpec(
            setting.model,
            setting.gpu,
            GPUS,
            max_num_seqs=512,
            max_num_batched_tokens=2048,
            max_model_len=TRACE_MODEL_LEN,
            engine=setting.engine,
            kv_blocks=blocks,
        )

    def _env(self, setting: Setting, requests_per_week: float) -> AutoscalingEnv:
        count = MOST if setting.hold else MOST // 2
        length_h = self.length_h(setting, requests_per_week)
        return AutoscalingEnv(
            cluster=FleetConfig(
                groups=(GroupSpec(self._replica(setting), count, MOST, REGION),), order="priority"
            ),
            workload=self._workload(setting, requests_per_week),
            queue=QueueSpec(hold=setting.hold, release=self.choices.release),
            slos=slos_of(setting),
            split=self.config.split,
            decision_interval_s=self.choices.decision_s,
            episode_s=3600 * length_h,
            min_instances=FEWEST,
            recent_s=300.0,
            drain_limit_s=7200.0,
            capacity_tps={setting.model: self.capacity_tps(setting)},
        )

    def _run(self, policy: str, setting: Setting, seed: int) -> Outcome:
        from serving_gym.runners.rollouts.rollout import run_episode

        theta_tps = self.capacity_tps(setting)
        env = self._env(setting, self.load(setting, seed))
        name, params = self.policy(policy)
        episode = run_episode(env, make_policy(name, **params), seed, policy)
        closing = env.core.closing
        assert closing is not None
        return Outcome(
            kept_h(env.core.instance_hours),
            float(env.core.instance_hours["starting"].sum()),
            episode.records,
            episode.us_per_decision * 1e-6 * len(episode.decisions),
            kept_h(closing.instance_hours),
            float(closing.niw_queued.sum()),
            float(closing.niw_queued_tokens.sum()) / theta_tps / 3600,
        )


def slos_of(setting: Setting) -> dict[str, SLO]:
    """SLO of each tier."""
    return {
        IW_F: SLO(setting.ttft_s, _NO_PROMISE_S),
        IW_N: SLO(60.0, _NO_PROMISE_S),
        NIW: SLO(86_400.0, _NO_PROMISE_S),
    }


def kept_h(hours: Mapping[str, FloatArray]) -> float:
    """Machine-hours of instances that start, run or drain."""
    return float(sum(hours[held].sum() for held in ("starting", "running", "draining")))


def pooled(runs: list[Outcome]) -> Outcome:
    """Means over seeds; the requests of all."""
    if len(runs) == 1:
        return runs[0]

    def mean(name: str) -> float:
        return float(np.mean([getattr(run, name) for run in runs]))

    first = runs[0].records
    columns = {
        entry.name: np.concatenate([getattr(run.records, entry.name) for run in runs])
        for entry in fields(first)
        if getattr(first, entry.name) is not None
    }
    return Outcome(
        mean("instance_h"),
        mean("starting_h"),
        replace(first, **columns),
        mean("thinking_s"),
        mean("day_h"),
        mean("niw_owed"),
        mean("niw_owed_h"),
    )


def instance_hours(needed: FloatArray) -> float:
    """Instance-hours of a day.

    Args:
        needed: (24,) load of each hour over what an instance serves.
    """
    return float(np.clip(np.ceil(needed), FEWEST, MOST).sum())


def kv_blocks(model: str, gpu: str) -> int:
    """Blocks of a pool that keeps keys and values of all heads."""
    spec = get_model(model)
    grouped = num_blocks(spec, get_gpu(gpu), GPUS, memory_utilization=0.9)
    return max(1, grouped * spec.num_kv_heads // spec.num_heads)
