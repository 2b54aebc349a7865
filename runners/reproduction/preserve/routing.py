"""Section 5.4, figure 10: request routing on four engines at rates around the end of light load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serving_gym.runners.reproduction.claims import Claim, Rule, above, at_least, at_most, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.measures import over
from serving_gym.runners.reproduction.parts import num_seeds
from serving_gym.runners.reproduction.preserve.study import (
    BASELINES,
    COMPARED,
    ISOLATED_FACTOR,
    LEAST_REQUEST,
    LIGHT_RPS,
    LLUMNIX,
    LLUMNIX_VIOLATIONS,
    LOADED_RPS,
    MAGNUS,
    MINIMUM_USE,
    NOT_MEASURED,
    NUM_ALONE,
    NUM_SEARCHES,
    PRACTICE,
    PRESERVE,
    SIA,
    SLO_S,
    Figures,
    Study,
    gain,
    make_claim,
)

SECTION = "5.4"
# On the paper's scale; figure 10 has no numbers in the text.
SWEEP_RPS = (8.4, LIGHT_RPS, LOADED_RPS)
QUICK_SWEEP_RPS = (LIGHT_RPS, LOADED_RPS)
ORACLE = ("env.prediction.name=oracle",)
PREDICTORS = ("preserve", "mu_serve", "pia_vicuna_13b", "pia_chatgpt")  # Table 2
COMPARABLE = 1.25  # "all routing strategies maintain comparable latency"; source of the number: ours
# Files with constants that `runners.tune` found in 40 candidates on two validation workloads at 24.75 requests/s, just
# below the matched load. Least request has none; Sia keeps its own, since with some of them its integer programs take
# minutes an episode.
TUNED = {name: f"{name}_sharegpt" for name in (MINIMUM_USE, MAGNUS, LLUMNIX, PRESERVE)}

METRICS: Mapping[str, tuple[str, Callable[[Figures], float]]] = {
    "mean TTFT": ("s", lambda figures: figures.mean_ttft_s),
    "P99 normalised latency": ("s", lambda figures: figures.p99_s),
    "SLO violations": ("share", lambda figures: figures.violations),
}
GAINS = {
    "mean TTFT": 0.474,
    "P99 normalised latency": 0.413,
    "SLO violations": 0.6658,
}  # of PreServe over Llumnix
PUBLISHED = {  # what the text gives at 10.5 requests/s
    PRESERVE: {"mean TTFT": 2.24, "P99 normalised latency": 0.45, "SLO violations": 0.0244},
    LLUMNIX: {"mean TTFT": 4.26, "P99 normalised latency": 0.767, "SLO violations": 1.0 - 0.927},
    SIA: {"P99 normalised latency": 0.956, "SLO violations": 1.0 - 0.9068},
    MAGNUS: {"P99 normalised latency": 1.23, "SLO violations": 0.1156},
}
WORST = (LEAST_REQUEST, MINIMUM_USE, MAGNUS)


def sweep_of(config: ReproduceConfig) -> tuple[float, ...]:
    """Rates of the sweep, requests/s on the paper's scale."""
    return QUICK_SWEEP_RPS if config.quick else SWEEP_RPS


def num_episodes(config: ReproduceConfig) -> int:
    """Episodes that `claims` runs at most."""
    beside = len(PRACTICE) + len(TUNED) + 1 + (0 if config.quick else len(PREDICTORS) - 1)
    rates = (len(sweep_of(config)) + 1) * len(COMPARED) + 1 + beside + 2 * NUM_SEARCHES
    return rates * num_seeds(config) + NUM_ALONE


@dataclass(frozen=True)
class Loaded:
    """Systems at one of the two loads that stand for the published figures.

    Attributes:
        study: what ran them.
        name: of the load, for claims.
        rate_rps: arrivals.
        how: how the load was found.
        systems: by policy.
        oracle: PreServe with true lengths.
    """

    study: Study
    name: str
    rate_rps: float
    how: str
    systems: Mapping[str, Figures]
    oracle: Figures

    @property
    def load(self) -> str:
        """For notes."""
        return f"{self.how} {NOT_MEASURED}."

    def value(self, policy: str, metric: str) -> float:
        """A figure."""
        return METRICS[metric][1](self.systems[policy])

    def best(self, names: Sequence[str], metric: str) -> str:
        """Whose figure is least."""
        return min(names, key=lambda name: self.value(name, metric))

    def worst(self, names: Sequence[str], metric: str) -> str:
        """Whose figure is most."""
        return max(names, key=lambda name: self.value(name, metric))

    def spread(self, ours: str, theirs: str, metric: str) -> str:
        """The gain of one over another by seed."""
        pairs = zip(self.systems[ours].by_seed(), self.systems[theirs].by_seed(), strict=True)
        of = METRICS[metric][1]
        return ", ".join(f"{gain(of(a), of(b)):.0%}" for a, b in pairs)

    @property
    def measured(self) -> str:
        """All figures, for the claims that fail."""
        figures = "; ".join(f"{name} {figures}" for name, figures in self.systems.items())
        preempted = ", ".join(f"{name} {self.systems[name].preempted:.3f}" for name in COMPARED)
        return (
            f"Measured (mean TTFT, P99 normalised latency, violations): {figures}; PreServe with true lengths "
            f"{self.oracle}. Preemptions a request, each of which computes prompt and answer anew: {preempted}. Sia "
            "keeps in the router's queue what fits no engine's KV now; of the others PreServe and Magnus hold "
            "requests by rules of their own, and the rest send them to an engine's queue at once."
        )


def claims(study: Study) -> list[Claim]:
    """Figure 10 and the text beside it."""
    sweep = {
        rate: {name: study.figures(name, study.rate_of(rate)) for name in COMPARED}
        for rate in sweep_of(study.config)
    }
    loaded, matched = _loaded(study), _matched(study)
    return [
        *_light(study, sweep),
        *_absolute(loaded),
        *_orderings(loaded),
        *_gains(loaded),
        *_absolute(matched),
        *_orderings(matched),
        *_gains(matched),
        *_tuned_gains(matched),
        *_beside(matched),
        *_sweep(study, sweep),
    ]


def _loaded(study: Study) -> Loaded:
    """The paper's rate over the end of light load."""
    how = (
        f"Load: the paper's {LIGHT_RPS:g} QPS, where light load ends, are our {study.light_rps:.1f} requests/s (the "
        f"highest rate at which least request keeps 99 % within {SLO_S:g} s; capacity {study.capacity_rps:.1f}), so "
        f"its {LOADED_RPS:g} are our {study.loaded_rps:.1f}."
    )
    rate_rps = study.loaded_rps
    systems = {name: study.figures(name, rate_rps) for name in COMPARED}
    oracle = study.figures(PRESERVE, rate_rps, ORACLE)
    return Loaded(study, f"{LOADED_RPS:g} QPS", rate_rps, how, systems, oracle)


def _matched(study: Study) -> Loaded:
    """Where Llumnix violates the SLO as often as in the paper."""
    rate_rps = study.matched_rps
    how = (
        f"Load: {rate_rps:.1f} requests/s, the least at which Llumnix violates the SLO for the published "
        f"{LLUMNIX_VIOLATIONS:.1%} on validation workloads (capacity {study.capacity_rps:.1f}); a reading of ours."
    )
    names = (*COMPARED, *PRACTICE, *TUNED.values())
    systems = {name: study.figures(name, rate_rps) for name in names}
    oracle = study.figures(PRESERVE, rate_rps, ORACLE)
    return Loaded(study, "matched load", rate_rps, how, systems, oracle)


def _light(study: Study, sweep: Mapping[float, Mapping[str, Figures]]) -> list[Claim]:
    """The paper: "below 9.3 ... all routing strategies maintain comparable latency"."""
    found = []
    for rate, systems in sweep.items():
        if rate > LIGHT_RPS:
            continue
        for metric in ("mean TTFT", "P99 normalised latency"):
            values = {name: METRICS[metric][1](figures) for name, figures in systems.items()}
            listed = ", ".join(f"{name} {value:.3f}" for name, value in values.items())
            found.append(
                make_claim(
                    SECTION, f"{rate:g} QPS: {metric}, worst over best of the six policies", None,
                    over(max(values.values()), min(values.values())), "x", at_most(COMPARABLE, 0.0, least=1.0),
                    note=f"{study.rate_of(rate):.1f} requests/s here. Measured: {listed} s.",
                    beyond=f"Without Magnus the ratio is {_without(MAGNUS, values):.2f}.",
                )
            )  # fmt: skip
    return found


def _without(name: str, values: Mapping[str, float]) -> float:
    """Worst over best of all but one."""
    others = [value for key, value in values.items() if key != name]
    return over(max(others), min(others))


def _absolute(loaded: Loaded) -> list[Claim]:
    return [
        make_claim(
            SECTION, f"{loaded.name}: {metric} of {policy}", value, loaded.value(policy, metric),
            METRICS[metric][0], shown("it depends on the engines and on the lengths"), note=loaded.load,
        )
        for policy, row in PUBLISHED.items()
        for metric, value in row.items()
    ]  # fmt: skip


def _orderings(loaded: Loaded) -> list[Claim]:
    found = []
    for metric in METRICS:
        rival = loaded.best(BASELINES, metric)
        others = [name for name in BASELINES if name != LLUMNIX]
        good = (SIA, LLUMNIX, PRESERVE)
        kinder, harder = loaded.best(WORST, metric), loaded.worst(good, metric)
        found += [
            _ordering(loaded, metric, "PreServe is best: best baseline over PreServe", rival, PRESERVE),
            _ordering(
                loaded, metric, "Llumnix is the best baseline: best other over Llumnix",
                loaded.best(others, metric), LLUMNIX,
            ),
            _ordering(
                loaded, metric, "LR, MU and Magnus are worst: best of them over worst of the others", kinder, harder
            ),
        ]  # fmt: skip
    published = PUBLISHED[MAGNUS]["P99 normalised latency"] / PUBLISHED[SIA]["P99 normalised latency"]
    found.append(
        make_claim(
            SECTION, f"{loaded.name}: P99 normalised latency, Magnus over Sia", published,
            over(loaded.value(MAGNUS, "P99 normalised latency"), loaded.value(SIA, "P99 normalised latency")), "x",
            at_least(published), note=loaded.load, beyond=loaded.measured,
        )
    )  # fmt: skip
    return found


def _ordering(loaded: Loaded, metric: str, what: str, numerator: str, denominator: str) -> Claim:
    ratio = over(loaded.value(numerator, metric), loaded.value(denominator, metric))
    return make_claim(
        SECTION, f"{loaded.name}: {metric}: {what}", None, ratio, "x", above(1.0),
        note=f"{numerator} over {denominator}. {loaded.load}", beyond=loaded.measured,
    )  # fmt: skip


def _gains(loaded: Loaded) -> list[Claim]:
    """By how much PreServe is better with the published constants."""
    found = []
    for metric, value in GAINS.items():
        rival = loaded.best(BASELINES, metric)
        found += [
            _gain(loaded, metric, value, PRESERVE, LLUMNIX, "over Llumnix"),
            _gain(loaded, metric, value, PRESERVE, rival, "over the best baseline here"),
        ]
    return found


def _tuned_gains(loaded: Loaded) -> list[Claim]:
    """By how much it is when the constants of all are tuned alike, on validation workloads near this load."""
    rivals = [TUNED.get(name, name) for name in BASELINES]
    return [
        _gain(
            loaded, metric, value, TUNED[PRESERVE], loaded.best(rivals, metric),
            "over the best baseline here, constants of all but Sia tuned",
        )
        for metric, value in GAINS.items()
    ]  # fmt: skip


def _gain(loaded: Loaded, metric: str, value: float, ours: str, theirs: str, what: str) -> Claim:
    return make_claim(
        SECTION, f"{loaded.name}: {metric}: gain of PreServe {what}", value,
        gain(loaded.value(ours, metric), loaded.value(theirs, metric)), "share", at_least(value),
        note=f"{ours} against {theirs}; by seed {loaded.spread(ours, theirs, metric)}. {loaded.load}",
        beyond=loaded.measured,
    )  # fmt: skip


def _beside(loaded: Loaded) -> list[Claim]:
    """What the paper does not compare: production routers, other predictions, an SLO for these engines."""
    study = loaded.study
    found = []
    for metric in METRICS:
        rival = loaded.best(PRACTICE, metric)
        of = METRICS[metric][1]
        found += [
            make_claim(
                SECTION, f"{loaded.name}: {metric}: gain of PreServe over the best router of practice", None,
                gain(loaded.value(PRESERVE, metric), loaded.value(rival, metric)), "share",
                shown("the paper does not compare with it"), note=f"{rival}, of {', '.join(PRACTICE)}.",
            ),
            make_claim(
                SECTION, f"{loaded.name}: {metric}: gain of true lengths over predicted ones under PreServe", None,
                gain(of(loaded.oracle), loaded.value(PRESERVE, metric)), "share",
                shown("the paper does not compare it"),
            ),
        ]  # fmt: skip
    if not study.config.quick:
        found += [_predictor(loaded, name) for name in PREDICTORS[1:]]
    slo_s = ISOLATED_FACTOR * study.isolated_s
    rival = min(BASELINES, key=lambda name: loaded.systems[name].violations_above(slo_s))
    violations = {name: loaded.systems[name].violations_above(slo_s) for name in (PRESERVE, rival)}
    found.append(
        make_claim(
            SECTION, f"{loaded.name}: violations of 3 x our isolated latency: gain of PreServe over the best baseline",
            None, gain(violations[PRESERVE], violations[rival]), "share",
            shown("the paper's engines are three times as slow alone"),
            note=f"SLO {slo_s:.3f} s: {violations[PRESERVE]:.2%} against {violations[rival]:.2%} of {rival}.",
        )
    )  # fmt: skip
    return found


def _predictor(loaded: Loaded, name: str) -> Claim:
    figures = loaded.study.figures(PRESERVE, loaded.rate_rps, (f"env.prediction.name={name}",))
    metric = "P99 normalised latency"
    return make_claim(
        SECTION, f"{loaded.name}: {metric} of PreServe with the errors of {name}", None, METRICS[metric][1](figures),
        "s", shown("the paper does not compare it"),
        note=f"With the errors of its own predictor {loaded.value(PRESERVE, metric):.3g} s.",
    )  # fmt: skip


def _sweep(study: Study, sweep: Mapping[float, Mapping[str, Figures]]) -> list[Claim]:
    """Figure 10 by rate: what the text has no numbers of."""
    no_number: Rule = shown("figure 10 has no numbers in the text")
    found = []
    for rate, systems in sweep.items():
        for metric, (_, of) in METRICS.items():
            values = {name: of(figures) for name, figures in systems.items()}
            rival = min(BASELINES, key=lambda name: values[name])
            listed = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            ours = gain(values[PRESERVE], values[rival])
            found.append(
                make_claim(
                    SECTION, f"sweep, {rate:g} QPS: {metric}: gain of PreServe over the best baseline", None,
                    ours if np.isfinite(ours) else float("nan"), "share", no_number,
                    note=f"{study.rate_of(rate):.1f} requests/s here; best baseline {rival}. Measured: {listed}.",
                )
            )  # fmt: skip
    return found
