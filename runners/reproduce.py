"""Compares every headline number of a paper with our reproduction.

    python -m runners.reproduce paper=flying_serving
    python -m runners.reproduce paper=sageserve quick=true
    python -m runners.reproduce paper=preserve only=[forecasting,scaling]
    python -m runners.reproduce paper=oserve only=[serving] sensitivity=[all] spread=true

Writes `claims.json`: the claim, the paper's number (null if its text has none), our number and its range over the
seeds (`spread=true`), their ratio, whether the claim holds by the rule in its note (null if the two cannot be
compared), the verdict, and our number under other choices (`sensitivity`). The claims of each part are written when
the part has finished. `save=true` keeps them in the repository and writes REPRODUCTION.md, which lists the parts and
choices of each paper, and the papers' pages in docs/papers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from serving_gym.runners.command_line.cli import command
from serving_gym.runners.documentation.papers import write_paper_pages
from serving_gym.runners.reporting.tables import print_results_in
from serving_gym.runners.reproduction.claims import Claim, print_claims, write_claims
from serving_gym.runners.reproduction.config import ReproduceConfig
from serving_gym.runners.reproduction.flying_serving import evaluation as flying_serving
from serving_gym.runners.reproduction.flying_serving.choices import FlyingChoices
from serving_gym.runners.reproduction.llm_mesh import evaluation as llm_mesh
from serving_gym.runners.reproduction.llm_mesh.choices import MeshChoices
from serving_gym.runners.reproduction.oserve import evaluation as oserve
from serving_gym.runners.reproduction.oserve.choices import OServeChoices
from serving_gym.runners.reproduction.page import keep, write_page
from serving_gym.runners.reproduction.parts import Claims, Paper, run_parts, spread_over_seeds, varied
from serving_gym.runners.reproduction.preserve import evaluation as preserve
from serving_gym.runners.reproduction.preserve.choices import PreServeChoices
from serving_gym.runners.reproduction.sageserve import evaluation as sageserve
from serving_gym.runners.reproduction.sageserve.choices import SageServeChoices

_PAPERS = {
    "flying_serving": Paper(flying_serving, "episode", FlyingChoices),
    "llm_mesh": Paper(llm_mesh, "episode", MeshChoices),
    "oserve": Paper(oserve, "step", OServeChoices),
    "preserve": Paper(preserve, "episode", PreServeChoices),
    "sageserve": Paper(sageserve, "episode", SageServeChoices),
}


@command("reproduce", ReproduceConfig)
def main(config: ReproduceConfig, out: Path) -> None:
    """Runs the command."""
    paper, made = _PAPERS[config.paper], Claims()
    for name, claims in run_parts(config, paper):
        made[name] = claims
        write_claims(out, _listed(made))
    if config.spread:
        made = spread_over_seeds(config, paper, made)
        write_claims(out, _listed(made))
    for made in varied(config, paper, made):  # noqa: B020  # each has what the ones before it found
        write_claims(out, _listed(made))
    print_claims(f"{config.paper}: the paper's numbers and ours", _listed(made))
    if config.save:
        keep(config.paper, made)
        print(f"kept in {write_page({name: one.choices for name, one in _PAPERS.items()})}")
        write_paper_pages()
    print_results_in(out)


def _listed(made: Claims) -> list[Claim]:
    return [claim for claims in made.values() for claim in claims]


if __name__ == "__main__":
    sys.exit(main(None))
