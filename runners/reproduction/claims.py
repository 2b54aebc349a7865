"""A paper's claims, our results, and the rules that decide whether a claim holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.tables import print_table

FILE_NAME = "claims.json"
TOLERANCE = 0.10  # of a published number, where a rule does not say otherwise
MARKS = {True: "yes", False: "NO", None: "-"}


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


def at_least(value: float, tolerance: float = TOLERANCE) -> Rule:
    """More is better: our figure reaches the published one, less a share of it."""
    bound = value * (1.0 - tolerance)
    return Rule(f"at least {bound:.4g}", lambda ours: ours >= bound)


def at_most(value: float, tolerance: float = TOLERANCE) -> Rule:
    """Less is better: our figure stays at the published one, plus a share of it."""
    bound = value * (1.0 + tolerance)
    return Rule(f"at most {bound:.4g}", lambda ours: ours <= bound)


def above(value: float = 1.05) -> Rule:
    """Only the direction is known, or comparable: a gain, by more than a margin of ours."""
    return Rule(f"above {value:.4g}", lambda ours: ours > value)


def shown(why: str) -> Rule:
    """Both figures are shown and not compared."""
    return Rule(f"not compared: {why}", None)


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
            "unit": self.unit,
            "ratio": None if self.ratio is None or math.isnan(self.ratio) else self.ratio,
            "holds": self.holds,
            "note": self.full_note,
        }


def claim_of(
    paper: str,
    section: str,
    claim: str,
    paper_value: float | None,
    ours: float,
    unit: str,
    rule: Rule,
    **notes: str,
) -> Claim:
    """A claim, in the order of arguments in which papers state them; each paper's package binds `paper`."""
    return Claim(paper, claim, section, paper_value, ours, unit, rule, **notes)


def write_claims(out: Path, claims: Sequence[Claim]) -> None:
    """Writes `claims.json`."""
    write_json(out / FILE_NAME, [claim.to_row() for claim in claims])


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
    compared = [claim for claim in claims if claim.holds is not None]
    print(f"{len(compared) - len(failed)} of {len(compared)} compared claims hold.")
    for reason in dict.fromkeys(claim.beyond for claim in failed):
        names = "; ".join(claim.claim for claim in failed if claim.beyond == reason)
        print(f"NO: {names}\n    {reason}")
