"""Every notebook runs from its first cell to its last, in a kernel of its own, and is as the page of notebooks says."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import serving_gym
from tests.tiers import full_except

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
PAGE = ROOT / "docs/notebooks.md"

CELL_TIMEOUT_S = 900  # of a busy machine; a cell takes seconds
MOST_CELLS, MOST_BYTES = 16, 200_000


@pytest.fixture(scope="module")
def compiled():
    """The kernel, compiled by one worker of the tests for all, before the process of a notebook loads it."""
    serving_gym.compare("routing", ["jsq"], seeds=1, **{"workload.num_requests": 5})


@pytest.mark.parametrize("name", full_except(NOTEBOOKS, "01_first_episode"))
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: None) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # no start-up files of the user
    book = nbformat.read(NOTEBOOKS[name], as_version=4)
    work = tmp_path / "work"
    work.mkdir()
    client = NotebookClient(
        book,
        kernel_name="python3",
        timeout=CELL_TIMEOUT_S,
        startup_timeout=CELL_TIMEOUT_S,
        resources={"metadata": {"path": str(work)}},
    )
    client.execute()  # raises at the first cell that does, unless that is captured
    assert [
        output for cell in book.cells for output in cell.get("outputs", []) if output.output_type == "error"
    ] == []
    ran = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in ran] == list(range(1, len(ran) + 1))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_kept_small_with_its_outputs(name: str) -> None:
    path = NOTEBOOKS[name]
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert len(book.cells) <= MOST_CELLS
    assert path.stat().st_size <= MOST_BYTES
    assert book.cells[0].source.startswith("# ")
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert outputs, "execute it: jupyter execute --inplace"
    assert not [output for output in outputs if output.output_type == "error"]
    assert not re.search(r"/(home|root|tmp|Users)/", path.read_text(encoding="utf-8"))


def test_the_page_lists_them_all() -> None:
    listed = re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\)", PAGE.read_text(encoding="utf-8"))
    assert listed == list(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_its_links_lead_somewhere(name: str) -> None:
    book = nbformat.read(NOTEBOOKS[name], as_version=4)
    text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\((?!\w+:)([^)#\s]+)", text):
        assert (NOTEBOOKS[name].parent / target).exists(), target
