"""FIDELITY.md, made from the committed errors of every version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from serving_gym.runners.validation.predict import BUSY, SATURATED
from serving_gym.runners.validation.score import BANDS

PAGE = "FIDELITY.md"
NAMES = {
    "tpot": "TPOT", "ttft": "TTFT", "ttft_p99": "P99 TTFT", "e2e": "E2E", "prefill_step": "prefill iteration",
    "decode_step": "decode iteration",
}  # fmt: skip
COLUMNS = ("tpot", "ttft", "e2e")  # of the table of profiles
HEAD = f"""# Fidelity

How far simulated latencies lie from measured ones. Written by `python -m runners.fidelity data=DIR`, never by hand;
`python -m runners.fidelity` writes it again from `calibration/fidelity`.

Errors are absolute, in per cent of the measured value, as *median / 90th percentile*. *Load* is demand over what the
engine can take: arrival rate over the rate at which it finishes requests with all its sequences in use, or, in a closed
loop, clients over the sequences that fit (`max_num_seqs`, or the KV cache); *saturated* is {100 * SATURATED:.0f} % and
more.
*Fitted* rows are those that the profile was fitted to; of other kinds of prediction the rows are new to it. *Held out*
are the errors on measurements that a repeated fit was not shown: configurations of known deployments, or whole
deployments (model, GPU and width).
"""
TAIL_RATIO, TAIL_SHARE = (
    1.25,
    0.05,
)  # a factor is shown that is so much commoner among the worst, and not rare there


def page(
    versions: Sequence[Mapping[str, Any]],
    live: Mapping[str, Any],
    ranking: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> str:
    """The whole page.

    Args:
        versions: Content of every VERSION.json, the oldest first.
        live: Table of live comparisons; empty for none.
        ranking: Table of the ranks of policies, live and simulated; empty for none.
        changes: Table of what changes of calibration did to the errors; empty for none.
    """
    latest = versions[-1]
    sections = [
        HEAD,
        f"## Version {latest['version']}\n\n{summary_table(latest)}",
        f"## Held-out runs of all profiles\n\n{held_out_table(latest)}",
        f"## Live servers\n\n{given(live)}",
        f"## Ranks of policies, live and simulated\n\n{given(ranking)}",
        f"## The worst tenth\n\n{tails_table(latest)}",
        f"## Changes\n\n{given(changes)}",
        f"## Profiles\n\n{profiles_table(latest)}",
        f"## History\n\n{history_table(versions)}",
    ]
    return "\n".join(section.rstrip() + "\n" for section in sections)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def percent(ratio: float) -> str:
    """A ratio in per cent, to a tenth below ten."""
    return f"{100 * ratio:.1f}" if ratio < 0.0995 else f"{100 * ratio:.0f}"


def cell(entry: Mapping[str, float] | None) -> str:
    """Median and 90th percentile, or a dash."""
    return f"{percent(entry['median'])} / {percent(entry['p90'])}" if entry else "–"


def by_load(errors: Iterable[Mapping[str, Any]], figure: str) -> dict[str, Mapping[str, Any]]:
    """Errors of one figure by load."""
    return {entry["load"]: entry for entry in errors if entry["figure"] == figure}


def summary_table(record: Mapping[str, Any]) -> str:
    """Errors by kind of prediction, figure and load."""
    rows = []
    for kind in dict.fromkeys(entry["kind"] for entry in record["overall"]):
        errors = [entry for entry in record["overall"] if entry["kind"] == kind]
        for figure in dict.fromkeys(entry["figure"] for entry in errors):
            found = by_load(errors, figure)
            whole = found.get("all") or next(iter(found.values()))
            cells = [f"{cell(found[band])} ({found[band]['n']})" if band in found else "–" for band in BANDS]
            rows.append([kind, NAMES[figure], whole["n"], cell(whole), *cells])
    low, high = f"{100 * BUSY:.0f}", f"{100 * SATURATED:.0f} %"
    titles = [f"load below {low} % (n)", f"{low} to {high} (n)", "saturated (n)"]
    counted = "; ".join(
        f"`{name}`: {data['rows']} rows scored"
        + (
            f", {sum(data['not_predicted'].values())} figures or rows not predicted"
            if data["not_predicted"]
            else ""
        )
        for name, data in record["data"].items()
    )
    return table(["kind", "figure", "n", "all", *titles], rows) + f"\n{counted}.\n"


def held_out_table(record: Mapping[str, Any]) -> str:
    """Held-out errors of all profiles of one form of measurements together."""
    figures = [name for name in NAMES if any(e["figure"] == name for e in record["held_out"])]
    groups: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for entry in record["held_out"]:
        groups.setdefault((entry["runs"], entry["left_out"]), {})[entry["figure"]] = entry
    rows = [
        [runs, left_out, max(entry["n"] for entry in found.values()), *(cell(found.get(f)) for f in figures)]
        for (runs, left_out), found in groups.items()
    ]
    return table(["runs", "left out", "n", *(NAMES[figure] for figure in figures)], rows)


def profiles_table(record: Mapping[str, Any]) -> str:
    """One row a profile and kind: errors by load, and held out."""
    rows = []
    for entry in record["profiles"]:
        figures = {entry["figure"] for entry in entry["errors"]}
        shown = COLUMNS if figures & set(COLUMNS) else ("decode_step", "prefill_step")
        cells = [loads(by_load(entry["errors"], figure)) for figure in shown]
        held = [parts(entry["held_out"], figure) for figure in shown[:2]]
        cells += ["–"] * (len(COLUMNS) - len(cells))
        rows.append([f"`{entry['profile']}`", entry["kind"], entry["rows"], *cells, *held])
    note = (
        f"Cells by load: below {100 * BUSY:.0f} % · up to {100 * SATURATED:.0f} % · saturated. "
        "Held out: configurations · deployments. "
        "Profiles of `splitwise` have iterations: decode in the column of TPOT, prefill in that of TTFT.\n"
    )
    head = ["profile", "kind", "rows", "TPOT", "TTFT", "E2E", "TPOT held out", "TTFT held out"]
    return f"{note}\n{table(head, rows)}"


def loads(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Errors of one figure at every load in one cell."""
    if "iteration" in found:
        return cell(found["iteration"])
    return " · ".join(cell(found.get(band)) for band in BANDS) if found else "–"


def parts(held_out: Mapping[str, Mapping[str, Any]], figure: str) -> str:
    """Held-out errors of one figure in one cell."""
    cells = [cell(held_out.get(split, {}).get(figure)) for split in ("configurations", "deployments")]
    return " · ".join(cells) if any(text != "–" for text in cells) else "–"


def tails_table(record: Mapping[str, Any]) -> str:
    """Factors that are commoner among the worst tenth of a figure than among all its rows."""
    rows = [
        [
            NAMES[e["figure"]],
            e["factor"],
            e["n"],
            f"{e['share_of_worst']:.0%}",
            f"{e['share']:.0%}",
            percent(e["median_with"]),
            percent(e["median_without"]),
        ]
        for e in record["tails"]
        if e["share_of_worst"] >= max(TAIL_SHARE, TAIL_RATIO * e["share"])
    ]
    head = ["figure", "rows that are", "n", "of the worst tenth", "of all", "median with", "median without"]
    note = "What the tenth of the rows with the largest errors has in common; medians in per cent.\n"
    return f"{note}\n{table(head, rows)}"


def history_table(versions: Sequence[Mapping[str, Any]]) -> str:
    """One row a version: errors of fitted profiles on all their rows, and how many figures that is."""
    rows = []
    for record in versions:
        fitted = [entry for entry in record["overall"] if entry["kind"] == "fitted"]
        found = {figure: by_load(fitted, figure) for figure in NAMES}
        whole = {figure: part.get("all") or next(iter(part.values()), None) for figure, part in found.items()}
        counts = sum(entry["n"] for entry in whole.values() if entry)
        rows.append([record["version"], counts, *(cell(entry) for entry in whole.values())])
    return table(["version", "figures", *NAMES.values()], rows)


def given(content: Mapping[str, Any]) -> str:
    """A table that was recorded: what it is, its rows, its sources."""
    if not content:
        return "Not recorded yet.\n"
    lines = [str(content["what"]).strip(), "", table(content["columns"], content["rows"])]
    lines += [f"* {note}" for note in content.get("notes", ())]
    return "\n".join(lines).rstrip() + f"\n\nSource: {str(content['source']).strip()}\n"


def read_table(path: Path) -> dict[str, Any]:
    """A recorded table; empty where there is no file.

    Raises:
        ValueError: A part is missing, or a row has another number of cells than there are columns.
    """
    if not path.is_file():
        return {}
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    missing = [name for name in ("what", "source", "columns", "rows") if name not in (content or {})]
    if missing:
        raise ValueError(f"{str(path)!r} lacks {', '.join(missing)}")
    for number, row in enumerate(content["rows"], 1):
        if len(row) != len(content["columns"]):
            raise ValueError(
                f"{str(path)!r}: row {number} has {len(row)} cells, {len(content['columns'])} columns are named"
            )
    return dict(content)
