"""A paper's claims, our results, and the rules that decide whether a claim holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.tables import print_table

FILE_NAME = "claims.json"
TOLERANCE = 0.10  # of a published number, where a rule does not say otherwise
MARKS = {True: "yes", False: "NO", None: "-"}
KINDS = ("result", "input", "worked example")
RESULT, INPUT, WORKED_EXAMPLE = KINDS

HOLDS, UNDER, CONTRADICTED, UNTESTED = VERDICTS = (
    "holds",
    "holds under stated conditions",
    "contradicted",
    "cannot be tested",
)


@dataclass(frozen=True)
class Rule:
    """Rule for when a claim holds, fixed before our number is known.

    Attributes:
        text: the rule in words.
        holds: takes our figure; None where the figures cannot be compared.
    """

    text: str
    holds: Callable[[float], bool] | None


def near(value: float, tolerance: float = TOLERANCE) -> Rule:
    """Our figure is the published one, give or take a share of it."""
    return Rule(
        f"within {tolerance:.0%} of {value:.4g}", lambda ours: abs(ours - value) <= tolerance * abs(value)
    )


def at_least(value: float, tolerance: float = TOLERANCE, most: float | None = None) -> Rule:
    """More is better: our figure reaches the published one, less a share of it, and is of its size.

    Args:
        value: The published figure.
        tolerance: Share of it that may be missing.
        most: Beyond this it is another result than the published one; None: twice the published figure.
    """
    bound, top = value * (1.0 - tolerance), 2.0 * value if most is None else most
    return Rule(_between(bound, top), lambda ours: bound <= ours <= top)


def at_most(value: float, tolerance: float = TOLERANCE, least: float | None = None) -> Rule:
    """Less is better: our figure stays at the published one, plus a share of it, and is of its size.

    Args:
        value: The published figure.
        tolerance: Share of it that may be added.
        least: Below this it is another result than the published one; None: half the published figure.
    """
    bound, floor = value * (1.0 + tolerance), 0.5 * value if least is None else least
    return Rule(_between(floor, bound), lambda ours: floor <= ours <= bound)


def above(value: float = 1.05, most: float = math.inf) -> Rule:
    """Only the direction is known, or comparable: a gain, by more than a margin of ours.

    Args:
        value: The margin.
        most: Beyond this it is another result than the published one.
    """
    text = f"above {value:.4g}" + ("" if math.isinf(most) else f", at most {most:.4g}")
    return Rule(text, lambda ours: value < ours <= most)


def _between(low: float, high: float) -> str:
    if math.isinf(high):
        return f"at least {low:.4g}"
    return f"at most {high:.4g}" if low <= 0.0 <= high else f"from {low:.4g} to {high:.4g}"


def shown(why: str) -> Rule:
    """Both figures are shown and not compared."""
    return Rule(f"not compared: {why}", None)


@dataclass(frozen=True)
class Varied:
    """A claim measured again with another choice.

    Attributes:
        choice: name of the choice, as in `choices.NAME=VALUE`.
        value: what it was instead.
        ours: our figure then.
        holds: what the rule says of it.
    """

    choice: str
    value: Any
    ours: float
    holds: bool | None

    def to_row(self) -> dict[str, Any]:
        """As `claims.json` has it."""
        ours = None if math.isnan(self.ours) else self.ours
        return {"choice": self.choice, "value": self.value, "ours": ours, "holds": self.holds}


@dataclass(frozen=True)
class Claim:
    """One published number and ours.

    Attributes:
        paper: whose.
        claim: what is measured.
        section: where the paper says so.
        paper_value: the number; None where the paper's text has none or has lost it.
        ours: our number; infinite where requests never finished, NaN where there was nothing to measure.
        unit: of both.
        rule: when the claim holds.
        note: how we measured, and what differs.
        beyond: what our measurements show of the reason, for a claim that does not hold.
        kind: "result", "input" (a figure that the simulator is given) or "worked example"; results alone are counted.
        ours_low: our lowest figure over seeds; None where there is one run.
        ours_high: our highest.
        sensitivity: our figures with other choices.
    """

    paper: str
    claim: str
    section: str
    paper_value: float | None
    ours: float
    unit: str
    rule: Rule
    note: str = ""
    beyond: str = ""
    kind: str = RESULT
    ours_low: float | None = None
    ours_high: float | None = None
    sensitivity: tuple[Varied, ...] = ()

    def __post_init__(self) -> None:
        check_choice("kind of claim", self.kind, KINDS)

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the paper's other claims."""
        return self.section, self.claim

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`; of several choices it holds under, the reader finds them in `sensitivity`."""
        if self.holds is None:
            return UNTESTED
        if self.holds:
            return HOLDS
        return UNDER if any(varied.holds for varied in self.sensitivity) else CONTRADICTED

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's."""
        return self.ours / self.paper_value if self.paper_value else None

    @property
    def holds(self) -> bool | None:
        """What the rule says; None where the figures cannot be compared or there is none."""
        if self.rule.holds is None or math.isnan(self.ours):
            return None
        return bool(self.rule.holds(self.ours))

    @property
    def full_note(self) -> str:
        """Rule, note and, where the claim does not hold, the reason."""
        rule = f"Rule: {self.rule.text}." if self.rule.holds else f"{self.rule.text.capitalize()}."
        parts = [rule, self.note, self.beyond if self.holds is False else ""]
        return " ".join(part for part in parts if part)

    @property
    def line(self) -> str:
        """The claim in one line: ours, the paper's, and whether it holds."""
        paper = "" if self.paper_value is None else f" (paper {self.paper_value:.4g})"
        return f"{self.claim}: {self.ours:.4g} {self.unit}{paper}, holds: {MARKS[self.holds]}"

    def to_row(self) -> dict[str, Any]:
        """The claim as `claims.json` has it."""
        return {
            "paper": self.paper,
            "claim": self.claim,
            "section": self.section,
            "paper_value": self.paper_value,
            "ours": None if math.isnan(self.ours) else self.ours,
            "ours_low": self.ours_low,
            "ours_high": self.ours_high,
            "unit": self.unit,
            "kind": self.kind,
            "ratio": None if self.ratio is None or math.isnan(self.ratio) else self.ratio,
            "holds": self.holds,
            "verdict": self.verdict,
            "note": self.full_note,
            "sensitivity": [varied.to_row() for varied in self.sensitivity],
        }


def claim_of(
    paper: str,
    section: str,
    claim: str,
    paper_value: float | None,
    ours: float,
    unit: str,
    rule: Rule,
    **more: Any,
) -> Claim:
    """A claim, in the order of arguments in which papers state them; each paper's package binds `paper`."""
    return Claim(paper, claim, section, paper_value, ours, unit, rule, **more)


def with_spread(claims: Sequence[Claim], runs: Sequence[Sequence[Claim]]) -> list[Claim]:
    """Claims with the lowest and highest figure of runs with one seed each, where they have none of their own."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for claim in run:
            if not math.isnan(claim.ours):
                found.setdefault(claim.key, []).append(claim.ours)
    return [
        replace(claim, ours_low=min(found[claim.key]), ours_high=max(found[claim.key]))
        if claim.ours_low is None and claim.key in found
        else claim
        for claim in claims
    ]


def with_variation(claims: Sequence[Claim], choice: str, value: Any, run: Sequence[Claim]) -> list[Claim]:
    """Claims with what another choice made of them.

    Args:
        claims: As measured with the choices of the evaluation.
        choice: The choice that differed.
        value: What it was.
        run: Claims measured so; those that `claims` has not are left out.
    """
    found = {claim.key: claim for claim in run}
    return [
        replace(
            claim,
            sensitivity=(
                *claim.sensitivity,
                Varied(choice, value, found[claim.key].ours, found[claim.key].holds),
            ),
        )
        if claim.key in found
        else claim
        for claim in claims
    ]


def counts(claims: Sequence[Claim]) -> dict[str, int]:
    """Number of results by verdict, in the order of `VERDICTS`."""
    verdicts = [claim.verdict for claim in claims if claim.kind == RESULT]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def claim_rows(claims: Sequence[Claim], cut: str = "") -> list[dict[str, Any]]:
    """Claims as `claims.json` has them; `cut` is what a quick run has left out."""
    return [{**claim.to_row(), "cut": cut} for claim in claims]


def write_claims(out: Path, claims: Sequence[Claim], cut: str = "") -> None:
    """Writes `claims.json`; `cut` is what a quick run has left out."""
    write_rows(out, claim_rows(claims, cut))


def write_rows(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes `claims.json` of claims that are rows already."""
    write_json(out / FILE_NAME, rows)


def print_claims(title: str, claims: Sequence[Claim]) -> None:
    """Prints every claim, and below the table why some do not hold."""
    rows = [
        (
            claim.claim,
            claim.section,
            claim.paper_value,
            claim.ours,
            claim.unit,
            claim.ratio,
            MARKS[claim.holds],
        )
        for claim in claims
    ]
    print_table(title, ("claim", "section", "paper", "ours", "unit", "ratio", "holds"), rows)
    failed = [claim for claim in claims if claim.holds is False]
    print("Results: " + ", ".join(f"{count} {verdict}" for verdict, count in counts(claims).items()) + ".")
    for claim in failed:
        for varied in claim.sensitivity:
            if varied.holds:
                print(f"{claim.claim}: holds with choices.{varied.choice}={varied.value} ({varied.ours:.4g})")
    for reason in dict.fromkeys(claim.beyond for claim in failed if claim.beyond):
        names = "; ".join(claim.claim for claim in failed if claim.beyond == reason)
        print(f"NO: {names}\n    {reason}")
