"""Scores every committed profile against measured runs, and writes FIDELITY.md.

    python -m runners.fidelity data=DIR
    python -m runners.fidelity

`data` is a folder with the reference data (`silicon/aic_e2e_vllm_agg.csv.gz` and the other tables that
`runners.validate` reads); tables that it lacks are left out. The errors of each profile, by figure and load, are
written to `calibration/fidelity/VERSION.json`, every single row to `rows.json` in the run directory. FIDELITY.md is
then written from all committed versions and the tables of live comparisons (`calibration/fidelity/*.yaml`); without
`data` that is all that happens. `into` names a folder to write in place of the repository.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import yaml

from serving_gym.runners.command_line.cli import command
from serving_gym.runners.reporting.output import write_json, write_text
from serving_gym.runners.reporting.progress import progress_bar
from serving_gym.runners.reporting.tables import print_results_in
from serving_gym.runners.validation.fidelity import (
    FOLDER,
    Scored,
    project_version,
    read_versions,
    record_of,
    score_folder,
    tables_in,
)
from serving_gym.runners.validation.fidelity_page import PAGE, page, read_table
from serving_gym.runners.validation.ranks import ranking_of
from serving_gym.runners.validation.score import listed

REPOSITORY = Path(__file__).resolve().parents[1]
RANKING = "ranking.yaml"
RECORDED = ("live.yaml", RANKING, "changes.yaml")  # tables that `page` takes, in this order


@dataclass(frozen=True)
class FidelityConfig:
    """Configuration of `runners.fidelity`.

    Attributes:
        out: run directory.
        data: folder of the reference data; None: nothing is scored.
        into: folder to write in place of the repository; None: the repository.
        ranking: folders of `runners.evaluate backend=both`, whose policies are ranked in simulation and live.
        against: policy that gains are told against.
        where: what the page says of the servers of these runs.
    """

    out: str
    data: str | None = None
    into: str | None = None
    ranking: tuple[str, ...] = ()
    against: str = "jsq"
    where: str = ""


@command("fidelity", FidelityConfig)
def main(config: FidelityConfig, out: Path) -> None:
    """Runs the command."""
    root = REPOSITORY if config.into is None else Path(config.into)
    if config.data is not None:
        scored = score_with_progress(Path(config.data))
        version = project_version()
        write_json(root / FOLDER / f"{version}.json", record_of(version, scored))
        write_json(out / "rows.json", {name: listed(scores) for name, (scores, _) in scored.items()}, None)
        print(f"errors of {version} written to {root / FOLDER / f'{version}.json'}")
    if config.ranking:
        told = ranking_of([Path(name) for name in config.ranking], config.against, config.where)
        write_text(
            root / FOLDER / RANKING, yaml.safe_dump(told, sort_keys=False, width=110, allow_unicode=True)
        )
    write_text(root / PAGE, page_of(root))
    print(f"{root / PAGE} written")
    print_results_in(out)


def page_of(root: Path) -> str:
    """FIDELITY.md as the committed files under `root` make it.

    Raises:
        ValueError: No version has been scored there.
    """
    folder = root / FOLDER
    return page(read_versions(folder), *(read_table(folder / name) for name in RECORDED))


def score_with_progress(data: Path) -> Scored:
    """Scores of every table in a folder."""
    tables = tables_in(data)
    with (
        progress_bar(sum(table.size for table in tables), "fidelity", "row") as bar,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UserWarning)  # rooflines; the page states the kind of every profile
        return score_folder(tables, bar.update)


if __name__ == "__main__":
    sys.exit(main(None))
