"""Compares every headline number of a paper with our reproduction.

    python -m runners.reproduce paper=flying_serving
    python -m runners.reproduce paper=sageserve quick=true
    python -m runners.reproduce paper=preserve only=[forecasting,scaling]

Writes `claims.json`: the claim, the paper's number (null if its text has none), our number, their ratio, whether the
claim holds by the rule in its note (null if the two cannot be compared), and otherwise the reason. The claims of each
part are written when the part has finished. runners/reproduction/README.md describes the parts of each paper.
"""

from __future__ import annotations

import sys
from pathlib import Path

from serving_gym.runners.command_line.cli import command
from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reporting.tables import print_results_in
from serving_gym.runners.reproduction.claims import Claim, print_claims, write_claims
from serving_gym.runners.reproduction.flying_serving import evaluation as flying_serving
from serving_gym.runners.reproduction.llm_mesh import evaluation as llm_mesh
from serving_gym.runners.reproduction.oserve import evaluation as oserve
from serving_gym.runners.reproduction.parts import run_parts
from serving_gym.runners.reproduction.preserve import evaluation as preserve
from serving_gym.runners.reproduction.sageserve import evaluation as sageserve

_PAPERS = {  # and the unit of the progress bar
    "flying_serving": (flying_serving, "episode"),
    "llm_mesh": (llm_mesh, "episode"),
    "oserve": (oserve, "step"),
    "preserve": (preserve, "episode"),
    "sageserve": (sageserve, "episode"),
}


@command("reproduce", ReproduceConfig)
def main(config: ReproduceConfig, out: Path) -> None:
    """Runs the command."""
    claims: list[Claim] = []
    for part in run_parts(config, *_PAPERS[config.paper]):
        claims += part
        write_claims(out, claims)
    print_claims(f"{config.paper}: the paper's numbers and ours", claims)
    print_results_in(out)


if __name__ == "__main__":
    sys.exit(main(None))
