"""Flying Serving's evaluation (arXiv 2602.22593, section 6) beside ours.

    bursts.py          section 6.2 and the two speedups of the abstract
    priority.py        section 6.3, Table 1
    switching.py       section 6.4, Table 2
    long_context.py    section 6.5

What the paper does not state, or its text has lost, is ours: the length ranges, the phases' durations, and the rates
that put three simulated models under the load the paper describes. Those follow one rule, fixed before any outcome was
looked at (`study.Study.busy_rate_rps`).
"""

from __future__ import annotations

from runners.progress import progress_bar
from runners.reproduction.claims import Claim
from runners.reproduction.flying_serving import bursts, long_context, priority, switching
from runners.reproduction.flying_serving.study import Study
from runners.schema import ReproduceConfig


def reproduce(config: ReproduceConfig) -> list[Claim]:
    """Every headline number of the paper beside ours."""
    total = sum(part.num_episodes(config) for part in (bursts, priority, long_context))
    with progress_bar(total, "reproduce flying_serving", "episode") as bar:
        study = Study(config, bar)
        claims = bursts.claims(study)  # first, because the rates of the others follow from its capacities
        claims += priority.claims(study)
        claims += switching.claims()
        claims += long_context.claims(study)
    return claims
