"""Compares every headline number of a paper with our reproduction.

    python -m runners.reproduce paper=flying_serving
    python -m runners.reproduce paper=sageserve quick=true
    python -m runners.reproduce paper=all processes=2 out=runs/papers
    python -m runners.reproduce paper=preserve only=[forecasting,scaling]
    python -m runners.reproduce paper=oserve only=[serving] sensitivity=[all] spread=true

Writes `claims.json`: the claim, the paper's number (null if its text has none), our number and its range over the
seeds (`spread=true`), their ratio, whether the claim holds by the rule in its note (null if the two cannot be
compared), the verdict, and our number under other choices (`sensitivity`). The claims of each part are written when
the part has finished. `quick=true` takes one seed and less of each part; `cut` in `claims.json` says what it leaves
out. `paper=all` runs every paper, ends with a table of verdicts, and continues a run that was stopped with the same
`out=`. `save=true` keeps them in the repository and writes REPRODUCTION.md, which lists the parts and choices of each
paper, and the papers' pages in docs/papers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from serving_gym.runners.command_line.cli import command
from serving_gym.runners.documentation.papers import write_paper_pages
from serving_gym.runners.reporting.tables import print_results_in
from serving_gym.runners.reproduction.claims import Claim, print_claims, write_claims
from serving_gym.runners.reproduction.config import ALL, ReproduceConfig
from serving_gym.runners.reproduction.every import run_all
from serving_gym.runners.reproduction.page import keep, write_page
from serving_gym.runners.reproduction.papers import PAPERS, choices_of_papers
from serving_gym.runners.reproduction.parts import Claims, run_parts, spread_over_seeds, varied


@command("reproduce", ReproduceConfig)
def main(config: ReproduceConfig, out: Path) -> None:
    """Runs the command."""
    if config.paper == ALL:
        run_all(config, out)
        print_results_in(out)
        return
    paper, made = PAPERS[config.paper], Claims()
    cut = paper.cut if config.quick else ""
    for name, claims in run_parts(config, paper):
        made[name] = claims
        write_claims(out, _listed(made), cut)
    if config.spread:
        made = spread_over_seeds(config, paper, made)
        write_claims(out, _listed(made), cut)
    for made in varied(config, paper, made):  # noqa: B020  # each has what the ones before it found
        write_claims(out, _listed(made), cut)
    print_claims(f"{config.paper}: the paper's numbers and ours", _listed(made))
    if cut:
        print(f"quick: {cut}.")
    if config.save:
        keep(config.paper, made)
        print(f"kept in {write_page(choices_of_papers())}")
        write_paper_pages()
    print_results_in(out)


def _listed(made: Claims) -> list[Claim]:
    return [claim for claims in made.values() for claim in claims]


if __name__ == "__main__":
    sys.exit(main(None))
