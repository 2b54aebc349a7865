"""The worked examples: units of capacity (section 4.2) and completion times (Appendix C)."""

from __future__ import annotations

import numpy as np

from serving_gym.baselines.oserve.flow_network import normalised_capacity
from serving_gym.envs.deployment.assignment import Assignment, soonest
from serving_gym.runners.reproduction.claims import WORKED_EXAMPLE, Claim, near
from serving_gym.runners.reproduction.oserve.study import make_claim

LARGE, SMALL = (10.0, 5.0), (5.0, 3.0)  # requests/s of types 1 and 2
_EXACT = 0.001  # two decimals of the text


def claims() -> list[Claim]:
    """Both examples."""
    M, (first, second) = normalised_capacity([80, 50])
    rows = [
        make_claim("4.2", name, value, ours, unit, near(value, 0.0), kind=WORKED_EXAMPLE)
        for name, value, ours, unit in (
            ("least common multiple of 80 and 50 requests", 400, M, "units"),
            ("units of a type-1 request", 5, first, "units"),
            ("units of a type-2 request", 8, second, "units"),
        )
    ]
    note = "With 100 requests of type 2, with which the text computes; it states 50."
    demand = np.array([100.0, 100.0])
    cases = (
        ("case 1", 20.0, (LARGE, LARGE), ((1, 0), (0, 1))),
        ("case 2", 16.67, (LARGE, SMALL, SMALL), ((1, 0), (0, 0.5), (0, 0.5))),
        ("case 3", 13.67, (LARGE, SMALL, SMALL), ((1, 0.18), (0, 0.41), (0, 0.41))),
    )
    for name, value, rates, fractions in cases:
        assignment = Assignment(np.array(fractions) * demand, np.array(rates), demand)
        rows.append(
            make_claim(
                "C",
                f"{name}: completion time",
                value,
                assignment.completion_time,
                "s",
                near(value, _EXACT),
                note=note,
                kind=WORKED_EXAMPLE,
            )
        )
    best = soonest(np.array([LARGE, SMALL, SMALL]), demand)
    rows.append(
        make_claim(
            "C",
            "case 3: completion time of the exact assignment",
            13.67,
            best.completion_time,
            "s",
            near(13.67, 0.01),
            kind=WORKED_EXAMPLE,
            note=f"{note} The optimum is 150/11 s: the text rounds its shares.",
        )
    )
    return rows
