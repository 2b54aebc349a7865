"""Sets every headline number of a paper beside ours.

    python -m runners.reproduce paper=flying_serving
    python -m runners.reproduce paper=sageserve quick=true
    python -m runners.reproduce paper=preserve quick=true

Writes `claims.json`: what is claimed, the paper's number (null where its text has none), ours, their ratio, whether the
claim holds by the rule that its note states (null where the two cannot be compared), and why not where it does not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runners.cli import command
from runners.reproduction.claims import print_claims, write_claims
from runners.reproduction.flying_serving import reproduce as flying_serving
from runners.reproduction.llm_mesh import reproduce as llm_mesh
from runners.reproduction.oserve import reproduce as oserve
from runners.reproduction.preserve import reproduce as preserve
from runners.reproduction.sageserve import reproduce as sageserve
from runners.schema import ReproduceConfig
from runners.tables import print_results_in

_PAPERS = {
    "flying_serving": flying_serving,
    "llm_mesh": llm_mesh,
    "oserve": oserve,
    "preserve": preserve,
    "sageserve": sageserve,
}


@command("reproduce", ReproduceConfig)
def main(config: ReproduceConfig, out: Path) -> None:
    """Reproduces and writes."""
    claims = _PAPERS[config.paper](config)
    write_claims(out, claims)
    print_claims(f"{config.paper}: the paper's numbers and ours", claims)
    print_results_in(out)


if __name__ == "__main__":
    sys.exit(main(None))
