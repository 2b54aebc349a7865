"""Compares the kernel and the oracle with vLLM's own scheduler: `python -m tests.vllm`, from the repository's root.

Needs a vLLM: the Python named by --vllm-python or SERVING_GYM_VLLM_PYTHON, or else it installs vLLM's CPU build into a
virtual environment of its own, which takes some minutes once. Exits with 1 if anything differs, with 69 if there is no
vLLM to compare with.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.vllm import recording
from tests.vllm.compare import SUBJECTS, Tally, compare, seldom
from tests.vllm.coverage import COMMON, RARE, WITH_PREFIXES
from tests.vllm.installation import Unavailable, find_python, vllm_traces
from tests.vllm.scenarios import both_ways

console = Console()


def main() -> int:
    """The command."""
    arguments = _arguments()
    began = time.monotonic()
    try:
        python = find_python(arguments.vllm_python)
    except (ValueError, Unavailable) as error:
        console.print(str(error), markup=False)
        return os.EX_UNAVAILABLE if isinstance(error, Unavailable) else os.EX_USAGE
    if arguments.record:
        recording.write(python)
        return 0
    scenarios = both_ways(arguments.workloads, arguments.first_seed)
    console.print(f"driving vLLM's scheduler through {len(scenarios)} workloads")
    version, traces = vllm_traces(python, scenarios)
    subjects = tuple(subject for subject in SUBJECTS if arguments.only in (None, subject.name))
    pairs = zip(track(scenarios, "comparing", console=console), traces, strict=True)
    tallies = compare(pairs, subjects)
    failed = report(version, tallies, [subject.name for subject in subjects])
    console.print(f"{time.monotonic() - began:.0f} s")
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.vllm", description=__doc__)
    parser.add_argument("--vllm-python", metavar="PATH", help="the Python of a vLLM installation")
    parser.add_argument(
        "--workloads",
        type=int,
        default=500,
        help="half of them with prefix caching, all scheduled both ways",
    )
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", choices=[subject.name for subject in SUBJECTS])
    parser.add_argument(
        "--record", action="store_true", help="write the recording that tests without vLLM replay"
    )
    return parser.parse_args()


def report(version: str, tallies: dict[str, Tally], subjects: list[str]) -> bool:
    """Prints what was compared and the first difference. Returns whether the comparison failed."""
    table = Table(title=f"vLLM {version}: Scheduler and AsyncScheduler; identical in every step")
    columns = sorted(tallies)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    counts = [tallies[column].counts for column in columns]
    for name in ("workloads", "requests", "steps"):
        table.add_row(name, *(f"{count[name]:,}" for count in counts))
    for name in subjects:
        table.add_row(f"[bold]{name} identical", *(f"[bold]{tallies[c].identical[name]:,}" for c in columns))
    table.add_section()
    for name in (*COMMON, *WITH_PREFIXES, "hit tokens", *RARE):
        table.add_row(name, *(f"{count[name]:,}" for count in counts))
    console.print(table)
    rare = seldom(tallies)
    if rare:
        console.print(f"too few workloads to mean much: seldom or never {', '.join(rare)}")
    differences = [difference for tally in tallies.values() for difference in tally.differences]
    if differences:
        console.print(str(differences[0]), markup=False, soft_wrap=True)
        console.print(f"{len(differences)} workloads differ; the first is shown")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
