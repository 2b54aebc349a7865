"""Section 7.2.6 and Figure 15: SLA violations and TTFT of IW-F and IW-N under four schedulers."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.envs.workload.tiers import IW_F, IW_N
from serving_gym.runners.reproduction.claims import Claim, above, near, shown
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.parts import num_seeds
from serving_gym.runners.reproduction.sageserve.study import (
    DPA,
    EDF,
    FCFS,
    FCFS_VIOLATIONS,
    IW_F_SLA_S,
    IW_N_STATED_S,
    LLAMA_2,
    MODELS,
    ORDERS,
    PF,
    Model,
    Outcome,
    Study,
    episodes_for_load,
    make_claim,
)

SECTION = "7.2.6"
ABSOLUTE = "it depends on the traces, which are not public, and on the scaling of instances"


@dataclass(frozen=True)
class Row:
    """What the text says of a scheduler, or ours: shares and seconds."""

    iw_f: float  # share of IW-F that violates its SLA
    iw_n: float
    iw_f_s: float  # upper quartile of IW-F's TTFT
    iw_n_s: float


TEXT = {
    FCFS: Row(0.45, 0.25, 5.6, 5.6),
    EDF: Row(0.31, 0.34, 2.4, 6.1),
    PF: Row(0.24, 0.60, 0.9, 12.1),
    DPA: Row(0.28, 0.38, 2.1, 7.9),
}
_FIGURES = {
    "iw_f": ("IW-F violations", "share"),
    "iw_n": ("IW-N violations", "share"),
    "iw_f_s": ("Q3 TTFT of IW-F", "s"),
    "iw_n_s": ("Q3 TTFT of IW-N", "s"),
}
# Figure, scheduler with the higher one, scheduler with the lower one.
_ORDERINGS = (
    ("iw_f", FCFS, EDF),
    ("iw_f", EDF, DPA),
    ("iw_f", DPA, PF),
    ("iw_n", EDF, FCFS),
    ("iw_n", DPA, EDF),
    ("iw_n", PF, DPA),
    ("iw_f_s", FCFS, EDF),
    ("iw_f_s", EDF, DPA),
    ("iw_f_s", DPA, PF),
    ("iw_n_s", EDF, FCFS),
    ("iw_n_s", DPA, EDF),
    ("iw_n_s", PF, DPA),
)


def num_episodes(config: ReproduceConfig) -> int:
    """Episodes that `claims` runs."""
    by_scheduler = len(ORDERS) * num_seeds(config)
    return len(MODELS) * (episodes_for_load(config) + by_scheduler) + by_scheduler


def claims(study: Study) -> list[Claim]:
    """The text's figures for the model that the paper shows most of, its comparisons for each of its four models."""
    found: list[Claim] = []
    for model in MODELS:
        rows = {name: measure(study.run(model, name), study.choices.iw_n_sla_s) for name in ORDERS}
        found.append(_load(study, model, rows[FCFS]))
        if model is LLAMA_2:
            found += _absolute(rows)
        found += _comparisons(model, rows, _explain(study, model, rows))
    return found + _stated(study)


def measure(outcome: Outcome, iw_n_sla_s: float) -> Row:
    """Our row of the figure."""
    return Row(
        outcome.violations(IW_F, IW_F_SLA_S),
        outcome.violations(IW_N, iw_n_sla_s),
        outcome.upper_quartile_s(IW_F),
        outcome.upper_quartile_s(IW_N),
    )


def ratio(first: float, second: float) -> float:
    """Their ratio; infinite over nothing, and not a number where both are nothing."""
    if second:
        return first / second
    return float("inf") if first else float("nan")


def _load(study: Study, model: Model, fcfs: Row) -> Claim:
    return make_claim(
        SECTION, f"{model.name}: load of 20 instances at which FCFS violates {FCFS_VIOLATIONS:.0%} of IW-F", None,
        study.rate_rps(model), "requests/s", shown("the paper does not say"),
        note=f"FCFS violates {fcfs.iw_f:.1%} of IW-F there. Profile: {model.profile.source}.",
    )  # fmt: skip


def _absolute(rows: dict[str, Row]) -> list[Claim]:
    set_by_us = shown("it sets the load")
    return [
        make_claim(
            SECTION, f"{LLAMA_2.name}, {name}: {label}", getattr(TEXT[name], key), getattr(row, key), unit,
            set_by_us if (name, key) == (FCFS, "iw_f") else shown(ABSOLUTE),
        )
        for name, row in rows.items()
        for key, (label, unit) in _FIGURES.items()
    ]  # fmt: skip


def _comparisons(model: Model, rows: dict[str, Row], beyond: str) -> list[Claim]:
    """What the text says in words, as ratios of its numbers."""

    def gap(row: Row) -> float:
        return abs(row.iw_f - row.iw_n)

    def claim(label: str, paper: float, ours: float, indifferent: bool = False) -> Claim:
        rule = near(1.0) if indifferent else above()
        return make_claim(SECTION, f"{model.name}: {label}", paper, ours, "x", rule, beyond=beyond)

    text, found = TEXT[FCFS], rows[FCFS]
    both = [
        claim(
            "Q3 TTFT under FCFS, IW-F over IW-N", ratio(text.iw_f_s, text.iw_n_s),
            ratio(found.iw_f_s, found.iw_n_s), indifferent=True,
        ),
        claim("violations under FCFS, IW-F over IW-N", ratio(text.iw_f, text.iw_n), ratio(found.iw_f, found.iw_n)),
        claim(
            "difference between the tiers' violations, FCFS over EDF", ratio(gap(text), gap(TEXT[EDF])),
            ratio(gap(found), gap(rows[EDF])),
        ),
    ]  # fmt: skip
    return both + [
        claim(
            f"{_FIGURES[key][0]}, {more} over {less}",
            ratio(getattr(TEXT[more], key), getattr(TEXT[less], key)),
            ratio(getattr(rows[more], key), getattr(rows[less], key)),
        )
        for key, more, less in _ORDERINGS
    ]


def _stated(study: Study) -> list[Claim]:
    """Violations with the SLA that section 2.2 names for IW-N."""
    why = shown("with a minute, a quarter of IW-N could not violate its SLA at a Q3 of 5.6 s")
    found = []
    for name in ORDERS:
        row = measure(study.run(LLAMA_2, name, IW_N_STATED_S), IW_N_STATED_S)
        found += [
            make_claim(
                SECTION, f"{LLAMA_2.name}, {name}, IW-N's SLA {IW_N_STATED_S:g} s: {_FIGURES[key][0]}",
                getattr(TEXT[name], key), getattr(row, key), "share", why,
            )
            for key in ("iw_f", "iw_n")
        ]  # fmt: skip
    return found


def _explain(study: Study, model: Model, rows: dict[str, Row]) -> str:
    """What was measured, for the claims that fail."""
    figures = "; ".join(
        f"{name} {row.iw_f:.1%} and {row.iw_n:.1%}, {row.iw_f_s:.2f} and {row.iw_n_s:.2f} s"
        for name, row in rows.items()
    )
    made = study.choices
    return (
        f"Measured at {study.rate_rps(model):.0f} requests/s (violations of IW-F and IW-N, their Q3 TTFT): {figures}. "
        f"The paper does not give DPA's thresholds; here tau_n is {made.tau_n_s:g} s and tau_p {made.tau_p_s:g} s."
    )
