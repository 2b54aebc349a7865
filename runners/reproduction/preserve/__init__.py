"""PreServe's evaluation (arXiv 2504.03702, section 5) beside ours.

    forecasting.py section 5.2.1, table 1: errors of the workload predictor
    scaling.py     section 5.3, figure 8: six scalers
    routing.py     section 5.4, figure 10: six routers around the end of light load
    overhead.py    section 5.5, figure 11: what a decision costs

What the paper does not state is ours: the shape of the length distributions between the published quantiles, and the
rates at which our engines are as loaded as the paper's. Those follow one rule, fixed before any policy was run there
(`study.Study.light_rps`).
"""

from __future__ import annotations

from runners.progress import progress_bar
from runners.reproduction.claims import Claim
from runners.reproduction.preserve import forecasting, overhead, routing, scaling
from runners.reproduction.preserve.study import Study
from runners.schema import ReproduceConfig


def reproduce(config: ReproduceConfig) -> list[Claim]:
    """Every headline number of these sections beside ours."""
    total = (
        forecasting.num_steps(config)
        + scaling.num_steps(config)
        + routing.num_episodes(config)
        + overhead.num_fleets(config)
    )
    with progress_bar(total, "reproduce preserve", "episode") as bar:
        study = Study(config, bar)
        claims = forecasting.claims(config, bar)
        claims += scaling.claims(scaling.Scalers(config, bar))
        claims += routing.claims(study)
        claims += overhead.claims(study)  # last: its load follows from the other's
    return claims
