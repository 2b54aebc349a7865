"""Section 6.2: bursts and light load on three models; and the two speedups of the abstract."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

from serving_gym.envs.workload import flying
from serving_gym.runners.reproduction.claims import Claim, above, at_least, at_most, near, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.flying_serving.choices import MEAN_TTFT, P90_TTFT
from serving_gym.runners.reproduction.flying_serving.study import (
    BURST_RPS,
    COMPARED,
    DP,
    FLYING,
    LENGTHS,
    LOW_RPS,
    MODELS,
    SHIFT,
    TP,
    Model,
    Study,
    make_claim,
    range_word,
)
from serving_gym.runners.reproduction.measures import mean, over, percentile
from serving_gym.runners.reproduction.parts import num_seeds
from serving_gym.runners.reproduction.trials import (
    BoolArray,
    Trials,
    in_burst,
    in_quiet,
    order_delay_s,
    ordered_layout_share,
    requests_in_system,
    switches,
)


@dataclass(frozen=True)
class Published:
    """What section 6.2 says of one model: seconds and ratios."""

    burst_ttft_s: float
    burst_ttft_dp_s: float
    low_ttft_s: float
    low_ttft_tp_s: float
    overhead_s: float
    peak_over_dp: float
    peak_over_shift: float | None = None


PUBLISHED = {
    "Llama-70B": Published(4.38, 4.23, 0.223, 0.212, 0.012, 3059 / 3169, 1.22),
    "GPT-OSS-120B": Published(2.15, 2.17, 0.074, 0.067, 0.007, 0.955),
    "Nemotron-8B": Published(3.04, 3.04, 0.074, 0.067, 0.007, 0.955, 1.18),
}
LOST = "The text has lost the number."
SHIFT_LOW, SHIFT_LATENCY, SHIFT_QUEUE = 1.04, 3.39, 2.48
HIGH_SPEEDUP, LOW_SPEEDUP = 4.79, 3.47


_claim = partial(make_claim, "6.2")


def num_episodes(config: ReproduceConfig) -> int:
    """Episodes that `claims` runs, capacities included."""
    with_shift = sum(model.has_shift for model in MODELS)
    return 2 * len(MODELS) + with_shift + (len(COMPARED) * len(MODELS) + with_shift) * num_seeds(config)


def words(study: Study, model: Model) -> list[str]:
    """The bursty workload of a model: published low rates, bursts by the rule, over the published span of time."""
    bursts = study.busy_range(model, BURST_RPS)
    spans = {
        "low_duration_s": study.choices.low_duration_s,
        "burst_duration_s": study.choices.burst_duration_s,
    }
    published = flying.bursty(**spans)
    ours = flying.bursty(low_rate_rps=LOW_RPS, burst_rate_rps=bursts, **spans)
    requests = round(study.requests * ours.rate_rps / published.rate_rps)
    return [
        *model.words,
        "workload=flying_bursty",
        *study.length_words,
        f"workload.num_requests={requests}",
        range_word("low_rate_rps", LOW_RPS),
        range_word("burst_rate_rps", bursts),
        *(range_word(key, bounds) for key, bounds in spans.items()),
    ]


@dataclass(frozen=True, eq=False)
class Bursty:
    """Every system on one model's bursty workload."""

    model: Model
    systems: dict[str, Trials]
    capacities_rps: dict[str, float]

    @cached_property
    def burst(self) -> BoolArray:
        """Requests that arrive in bursts."""
        return in_burst(self.systems[FLYING])

    @cached_property
    def quiet(self) -> BoolArray:
        """Requests that arrive in low phases when no system is still busy with a burst."""
        return in_quiet(list(self.systems.values()))

    def burst_ttft_s(self, policy: str) -> float:
        """Mean TTFT in bursts."""
        return mean(self.systems[policy].ttft_s, self.burst)

    def burst_p90_s(self, policy: str) -> float:
        """90th percentile of TTFT in bursts."""
        return percentile(self.systems[policy].ttft_s, 90, self.burst)

    def burst_queue_s(self, policy: str) -> float:
        """Mean time in the queue in bursts."""
        return mean(self.systems[policy].queue_s, self.burst)

    def low_ttft_s(self, policy: str) -> float:
        """Mean TTFT in flat periods."""
        return mean(self.systems[policy].ttft_s, self.quiet)

    def tpot_s(self, policy: str) -> float:
        """Median TPOT over all requests."""
        return percentile(self.systems[policy].tpot_s, 50)

    def peak(self, policy: str) -> float:
        """Peak generation throughput, tokens per second."""
        return self.systems[policy].peak_tokens_per_s

    @cached_property
    def layouts(self) -> str:
        """What Flying Serving did, for the claims that fail."""
        flying_serving = self.systems[FLYING]
        cluster = flying_serving.setting.cluster
        wide = ordered_layout_share(flying_serving, (cluster.num_base,), burst=False)
        apart = ordered_layout_share(flying_serving, (1,) * cluster.num_base, burst=True)
        late = order_delay_s(flying_serving, (cluster.num_base,), burst=False)
        late_apart = order_delay_s(flying_serving, (1,) * cluster.num_base, burst=True)
        load = requests_in_system(flying_serving, burst=False) / cluster.num_gpus
        return (
            f"Measured: TP was ordered for {wide:.0%} of the low phases ({late:.0f} s after a burst, where at all) and "
            f"DP for {apart:.0%} of the bursts ({late_apart:.1f} s after their begin); {switches(flying_serving):.0f} "
            f"switches an episode; in low phases {load:.2f} requests a GPU were in the system."
        )

    @cached_property
    def tokens(self) -> str:
        """When requests arrive, and TPOT in flat periods, for the claims that fail."""
        flat = over(*(percentile(self.systems[policy].tpot_s, 50, self.quiet) for policy in (DP, FLYING)))
        return (
            f"Measured: {self.burst.mean():.0%} of the requests arrive in bursts; over those of flat periods alone the "
            f"ratio is {flat:.2f}."
        )

    @cached_property
    def load(self) -> str:
        """Offered load and capacities, for the claims that fail."""
        rates = ", ".join(f"{name} {rate:.1f}" for name, rate in self.capacities_rps.items())
        return f"Measured capacities, requests/s: {rates}."


def run(study: Study, model: Model) -> Bursty:
    """Runs every system that the paper ran on a model."""
    given = words(study, model)
    policies = (*COMPARED, SHIFT) if model.has_shift else COMPARED
    systems = {policy: study.run(f"bursts, {model.name}", given, policy) for policy in policies}
    static = [policy for policy in policies if policy != FLYING]
    return Bursty(model, systems, {policy: study.capacity_rps(model, policy) for policy in static})


def claims(study: Study) -> list[Claim]:
    """Section 6.2, model by model, and the abstract."""
    studies = [run(study, model) for model in MODELS]
    found = [
        claim
        for bursty in studies
        for claim in (*_bursts(bursty), *_light_load(bursty), *_tokens(bursty), *_shift(bursty))
    ]
    return found + _abstract(study, studies)


def _bursts(bursty: Bursty) -> list[Claim]:
    name, paper = bursty.model.name, PUBLISHED[bursty.model.name]
    ours, dp = bursty.burst_ttft_s(FLYING), bursty.burst_ttft_s(DP)
    ratio, absolute = paper.burst_ttft_s / paper.burst_ttft_dp_s, shown(LENGTHS)
    concurrency = {
        policy: requests_in_system(trials, burst=True) for policy, trials in bursty.systems.items()
    }
    return [
        _claim(f"{name}, bursts: mean TTFT of Flying Serving", paper.burst_ttft_s, ours, "s", absolute),
        _claim(f"{name}, bursts: mean TTFT of static DP", paper.burst_ttft_dp_s, dp, "s", absolute),
        _claim(
            f"{name}, bursts: mean TTFT, Flying Serving over DP", ratio, over(ours, dp), "x", at_most(ratio),
            beyond=bursty.layouts,
        ),
        _claim(
            f"{name}, bursts: P90 TTFT, TP over Flying Serving", None,
            over(bursty.burst_p90_s(TP), bursty.burst_p90_s(FLYING)), "x", above(), note=LOST, beyond=bursty.load,
        ),
        _claim(
            f"{name}, bursts: mean queue time, TP over Flying Serving", None,
            over(bursty.burst_queue_s(TP), bursty.burst_queue_s(FLYING)), "x", above(),
            note="The paper shows it in figure 8 only.", beyond=bursty.load,
        ),
        *(
            _claim(
                f"{name}, bursts: requests in the system, {policy} over Flying Serving", 1.0,
                over(concurrency[policy], concurrency[FLYING]), "x", near(1.0),
                note='Figure 8(a-c), without numbers: "all systems observe the same concurrency pattern".',
                beyond=bursty.load,
            )
            for policy in (TP, DP)
        ),
    ]  # fmt: skip


def _light_load(bursty: Bursty) -> list[Claim]:
    name, paper = bursty.model.name, PUBLISHED[bursty.model.name]
    ours, tp, dp = (bursty.low_ttft_s(policy) for policy in (FLYING, TP, DP))
    ratio = paper.low_ttft_s / paper.low_ttft_tp_s
    absolute = shown(LENGTHS)
    quiet = f"Flat periods: {bursty.quiet.mean():.0%} of the requests, those that no system's burst backlog meets."
    return [
        _claim(f"{name}, light load: mean TTFT of Flying Serving", paper.low_ttft_s, ours, "s", absolute),
        _claim(f"{name}, light load: mean TTFT of static TP", paper.low_ttft_tp_s, tp, "s", absolute),
        _claim(f"{name}, light load: mean TTFT of static DP", None, dp, "s", shown("no number")),
        _claim(
            f"{name}, light load: mean TTFT, Flying Serving over TP", ratio, over(ours, tp), "x",
            at_most(ratio), note=quiet, beyond=bursty.layouts,
        ),
        _claim(
            f"{name}, light load: TTFT above TP's", paper.overhead_s, ours - tp, "s",
            at_most(paper.overhead_s, least=0.0), beyond=bursty.layouts,
        ),
        _claim(
            f"{name}, light load: mean TTFT, DP over Flying Serving", None, over(dp, ours), "x", above(),
            note='"Substantially improving"; no number.', beyond=bursty.layouts,
        ),
    ]  # fmt: skip


def _tokens(bursty: Bursty) -> list[Claim]:
    name, paper = bursty.model.name, PUBLISHED[bursty.model.name]
    ours, tp, dp = (bursty.peak(policy) for policy in (FLYING, TP, DP))
    found = [
        _claim(
            f"{name}: median TPOT, DP over Flying Serving", None,
            over(bursty.tpot_s(DP), bursty.tpot_s(FLYING)), "x", above(), note=LOST,
            beyond=bursty.tokens,
        ),
        _claim(
            f"{name}: peak throughput, Flying Serving over DP", paper.peak_over_dp, over(ours, dp), "x",
            at_least(paper.peak_over_dp), beyond=bursty.layouts,
        ),
        _claim(
            f"{name}: peak throughput, Flying Serving over TP", None, over(ours, tp), "x", above(),
            note=LOST, beyond=bursty.load,
        ),
    ]  # fmt: skip
    if name == "Llama-70B":
        found += [
            _claim(f"{name}: peak throughput of Flying Serving", 3059, ours, "tokens/s", shown(LENGTHS)),
            _claim(f"{name}: peak throughput of static DP", 3169, dp, "tokens/s", shown(LENGTHS)),
        ]
    return found


def _shift(bursty: Bursty) -> list[Claim]:
    name = bursty.model.name
    peak = PUBLISHED[name].peak_over_shift
    if SHIFT not in bursty.systems or peak is None:
        return []
    ideal = "Ours shifts at the ideal number of tokens; the paper gives one number for both models."
    low = over(bursty.low_ttft_s(FLYING), bursty.low_ttft_s(SHIFT))
    return [
        _claim(
            f"{name}, light load: mean TTFT, Flying Serving over Shift Parallelism", SHIFT_LOW, low, "x",
            at_most(SHIFT_LOW), note=ideal, beyond=bursty.layouts,
        ),
        _claim(
            f"{name}, bursts: mean TTFT, Shift Parallelism over Flying Serving", SHIFT_LATENCY,
            over(bursty.burst_ttft_s(SHIFT), bursty.burst_ttft_s(FLYING)), "x", at_least(SHIFT_LATENCY), note=ideal,
            beyond=bursty.load,
        ),
        _claim(
            f"{name}, bursts: mean queue time, Shift Parallelism over Flying Serving", SHIFT_QUEUE,
            over(bursty.burst_queue_s(SHIFT), bursty.burst_queue_s(FLYING)), "x", at_least(SHIFT_QUEUE), note=ideal,
            beyond=bursty.load,
        ),
        _claim(
            f"{name}, bursts: P90 TTFT, Shift Parallelism over Flying Serving", None,
            over(bursty.burst_p90_s(SHIFT), bursty.burst_p90_s(FLYING)), "x", above(),
            note=LOST, beyond=bursty.load,
        ),
        _claim(
            f"{name}: peak throughput, Flying Serving over Shift Parallelism", peak,
            over(bursty.peak(FLYING), bursty.peak(SHIFT)), "x", at_least(peak), note=ideal, beyond=bursty.load,
        ),
    ]  # fmt: skip


def _abstract(study: Study, studies: list[Bursty]) -> list[Claim]:
    """The text names neither metric nor rival of its two speedups; metrics by `choices.speedup`, rivals ours."""
    metric = study.choices.speedup

    def gain(bursty: Bursty, policy: str, burst: bool) -> float:
        rows = bursty.burst if burst else bursty.quiet
        return over(*(_speed(metric, bursty.systems[one], rows) for one in (policy, FLYING)))

    high = {b.model.name: gain(b, TP, burst=True) for b in studies}
    low = {b.model.name: gain(b, DP, burst=False) for b in studies}
    most = {b.model.name: over(b.low_ttft_s(DP), b.low_ttft_s(TP)) for b in studies}
    return [
        make_claim(
            "1", "speedup at high load, best of three models", HIGH_SPEEDUP, max(high.values()), "x",
            at_least(HIGH_SPEEDUP), note=f"Read as {metric} in bursts, TP over Flying Serving (ours): {_listed(high)}.",
            beyond=" ".join(b.load for b in studies),
        ),
        make_claim(
            "1", "speedup at low load, best of three models", LOW_SPEEDUP, max(low.values()), "x",
            at_least(LOW_SPEEDUP),
            note=f"Read as {metric} at light load, DP over Flying Serving (ours): {_listed(low)}.",
            beyond=f"Measured: mean TTFT of static DP over static TP is {_listed(most)} there.",
        ),
    ]  # fmt: skip


def _speed(metric: str, trials: Trials, rows: BoolArray) -> float:
    if metric == P90_TTFT:
        return percentile(trials.ttft_s, 90, rows)
    return mean(trials.ttft_s if metric == MEAN_TTFT else trials.pooled("e2e_s"), rows)


def _listed(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}x" for name, value in figures.items())
