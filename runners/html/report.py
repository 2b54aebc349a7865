"""The page of a run: sections by kind of run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from serving_gym.runners.html import figures, markup
from serving_gym.runners.html.folder import EVALUATE, MONITOR, REPLAY, SIMULATE, TRAIN, RunFolder
from serving_gym.runners.html.gantt import costs_of, gantt, worst_rows
from serving_gym.runners.html.series import series_of
from serving_gym.runners.html.warnings import engines_of, warnings_of
from serving_gym.runners.reporting.output import write_atomically, write_text
from serving_gym.runners.reporting.tables import LENGTH_METRICS, SESSION_METRICS, SHOWN_METRICS

REPORT_FILE = "report.html"
COMPARED = (
    "return",
    "slo_attainment",
    "goodput_rps",
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "gpu_hours",
    "cost_usd",
)
_GATES = {
    "ttft_p99_ratio": "P99 TTFT, ratio",
    "slo_attainment_loss": "loss of SLO attainment",
    "worst_class_slowdown_ratio": "slowdown of the worst class, ratio",
    "extra_requests_lost": "requests lost beyond",
}
_MOST_EPISODES = 20  # rows of the table of episodes
_MOST_POLICIES = 8  # in one chart over time


class Report:
    """Builds the page of a run directory.

    Args:
        run: The directory.
        pdf: Whether to write each figure as PDF too, into `figures/`.
    """

    def __init__(self, run: RunFolder, pdf: bool = False) -> None:
        self.run, self.pdf = run, pdf

    def html(self) -> str:
        """The whole page."""
        if self.run.kind == REPLAY:
            parts = self._replay()
        elif self.run.kind == MONITOR:
            parts = self._monitor()
        else:
            parts = [*self._results(), *self._over_time()]
        missing = markup.section("Not in this report", markup.bullets(self.run.missing, "missing"))
        return markup.page(self.run.title, [self._what(), *parts, missing])

    # -- what was run ----------------------------------------------------------------------------------------------

    def _what(self) -> str:
        run = self.run
        found = run.comparison or run.replay or run.summary
        workload = run.config.get("workload")
        workload = workload if isinstance(workload, Mapping) else {}
        if not run.provenance:
            run.note_missing("Versions and command: the run has no provenance.json.")
        words = " ".join(run.provenance.get("words", ()))
        versions = ", ".join(
            f"{name} {number}" for name, number in run.provenance.get("versions", {}).items()
        )
        first = run.config.get("first_seed", 0)
        seeds = found.get("seeds")
        if run.kind == REPLAY:  # its configuration is not that of the log
            workload, first, seeds = {}, 0, None
        rows = [
            ("command", f"python -m runners.{run.provenance['command']} {words}" if run.provenance else ""),
            ("started", run.provenance.get("started")),
            ("versions", versions),
            ("data", found.get("provenance") or _described(found.get("workload"), workload)),
            ("split", found.get("split")),
            (
                "seeds",
                _seeds(first, seeds)
                if isinstance(seeds, int)
                else None
                if run.kind == REPLAY
                else run.config.get("seed"),
            ),
            ("backend", found.get("backend", "")),
            ("engines", "; ".join(engines_of(run))),
            ("directory", run.path.resolve().name),
        ]
        return markup.facts(rows) + markup.bullets(warnings_of(run), "warnings")

    # -- results ---------------------------------------------------------------------------------------------------

    def _results(self) -> list[str]:
        if self.run.comparison:
            return [self._policies(), self._differences(), self._gates(), self._trade_off(), self._learning()]
        metrics = self.run.summary.get("metrics", {})
        names = [name for name in (*SHOWN_METRICS, *SESSION_METRICS, *LENGTH_METRICS) if name in metrics]
        if self.run.kind == EVALUATE:
            rows = [(name, _interval(metrics[name]), metrics[name].get("mean")) for name in names]
            results = markup.table(("figure", "interquartile mean [95 %]", "mean"), rows)
        else:
            results = markup.table(("figure", "value"), [(name, metrics[name]) for name in names])
        return [markup.section("Results", results), self._episodes(), self._gap()]

    def _policies(self) -> str:
        comparison = self.run.comparison
        policies, roles = comparison["policies"], comparison.get("roles", {})
        shown = [name for name in COMPARED if all(name in entry["metrics"] for entry in policies.values())]
        order = sorted(policies, key=lambda name: -_number(policies[name]["metrics"]["return"]["iqm"]))
        rows = [
            [
                name,
                *([roles.get(name, "")] if roles else []),
                *(
                    _interval(policies[name]["metrics"][metric])
                    if metric == "return"
                    else policies[name]["metrics"][metric]["iqm"]
                    for metric in shown
                ),
                policies[name].get("us_per_decision"),
            ]
            for name in order
        ]
        columns = ["policy", *(["role"] if roles else []), *shown, "us a decision"]
        note = "Interquartile means over episodes, 95 % intervals; highest return first, the best heuristic in bold."
        best = comparison.get("best_heuristic")
        return markup.section(
            "Results", markup.table(columns, rows, [best] if best else []), markup.paragraph(note, note=True)
        )

    def _differences(self) -> str:
        comparison = self.run.comparison
        gains, wins = comparison["relative_improvement"], comparison["probability_of_improvement"]
        base = comparison.get("best_heuristic") or next(iter(comparison["policies"]))
        rows, drawn = [], []
        for name in comparison["policies"]:
            gain = gains.get(f"{name}>{base}")
            if gain is None:
                continue
            p_value = comparison.get("p_values", {}).get(f"{name}|{base}")
            if p_value is None:
                p_value = comparison.get("p_values", {}).get(f"{base}|{name}")
            rows.append([name, _percent(gain), wins.get(f"{name}>{base}"), p_value])
            if None not in (gain["iqm"], *gain["ci95"]):
                drawn.append((name, gain["iqm"], *gain["ci95"]))
        drawn.sort(key=lambda row: -row[1])
        picture = self._drawn(
            "gains", lambda: figures.gains(drawn, f"gain in return over {base}"), bool(drawn)
        )
        caption = (
            f"Gain in return over {base} on the same episodes, interquartile mean and 95 % interval. Triangles: the "
            "interval excludes 0, upwards where it is a gain."
        )
        columns = (
            "policy",
            f"gain over {base} [95 %]",
            "P(better)",
            f"p ({comparison.get('corrected', '')})",
        )
        return markup.section(
            "Paired differences",
            markup.figure(picture, caption) if picture else "",
            markup.table(columns, rows),
        )

    def _gates(self) -> str:
        gates = self.run.comparison.get("gates", {})
        rows = []
        for name, entry in gates.items():
            row = [_gate(entry[key]) if key in entry else None for key in _GATES]
            rows.append([name, *row, "yes" if entry["holds"] else "NO"])
        versus = next(iter(gates.values()))["versus"] if gates else ""
        note = f"Against {versus}, means over all episodes."
        return markup.section(
            "Gates",
            markup.table(("policy", *_GATES.values(), "all hold"), rows),
            markup.paragraph(note, note=True) if rows else "",
        )

    def _trade_off(self) -> str:
        policies = self.run.comparison["policies"]
        costs = [
            name for name in ("cost_usd", "gpu_hours") if all(name in e["metrics"] for e in policies.values())
        ]
        cost = next((name for name in costs if _differs(policies, name)), None)
        if cost is None:
            return ""
        picture = self._drawn("tradeoff", lambda: figures.trade_off(policies, cost, "slo_attainment"))
        caption = "Cost against quality, with 95 % intervals; up and to the left is better."
        return markup.section("Cost against quality", markup.figure(picture, caption))

    def _learning(self) -> str:
        if self.run.kind != TRAIN:
            return ""
        rows = [row for row in self.run.lines("metrics.jsonl", 1_000_000) if row.get("kind") == "validation"]
        if not rows:
            self.run.note_missing("Learning curve: metrics.jsonl has no validations.")
            return ""
        returns = self.run.comparison["training"].get("validation_returns", {})
        agents = [name for name, role in self.run.comparison.get("roles", {}).items() if role == "agent"]
        others = {name: value for name, value in returns.items() if name not in agents and value is not None}
        picture = self._drawn("learning", lambda: figures.learning(rows, others))
        caption = (
            "Return on the validation episodes over training; lines: other policies on the same episodes."
        )
        return markup.section("Learning curve", markup.figure(picture, caption))

    def _episodes(self) -> str:
        episodes = self.run.episodes
        if episodes is None or len(episodes) < 2:
            return ""
        shown = [
            name
            for name in ("return", "slo_attainment", "ttft_p50_s", "ttft_p99_s", "unfinished")
            if name in episodes
        ]
        rows = [
            [str(row["seed"]), *(float(row[name]) for name in shown)]
            for _, row in episodes.sort_values("return").head(_MOST_EPISODES).iterrows()
        ]
        note = f"The {len(rows)} episodes with the lowest return, of {len(episodes)}."
        return markup.section(
            "Episodes", markup.table(("seed", *shown), rows), markup.paragraph(note, note=True)
        )

    def _gap(self) -> str:
        if not self.run.gap:
            return ""
        rows = [
            [metric, *(100.0 * _number(entry[key]) for key in ("ape_median", "ape_mean", "ape_max"))]
            for metric, entry in self.run.gap["gap"].items()
        ]
        ranking = self.run.gap["ranking"]
        said = (
            f"Pairs of policies in the same order by {ranking['by']}: {ranking['pairs_in_the_same_order']} of "
            f"{ranking['pairs']}. Simulated: {', '.join(ranking['simulated'])}. Live: {', '.join(ranking['live'])}."
        )
        columns = ("figure", "median error %", "mean %", "largest %")
        return markup.section(
            "Simulation against servers", markup.table(columns, rows), markup.paragraph(said)
        )

    # -- over time -------------------------------------------------------------------------------------------------

    def _over_time(self) -> list[str]:
        requests = self.run.requests
        if requests is None:
            self.run.note_missing(
                "Time series, latency distributions and single requests: the run has no requests.parquet; "
                "runners.compare and runners.train write one of their worst episode with report=true."
            )
            return []
        classes: Mapping[str, Mapping[str, float]] = (self.run.comparison or self.run.summary).get(
            "classes", {}
        )
        if not classes:
            self.run.note_missing(
                "SLOs: summary.json does not name the request classes, so costs are in seconds."
            )
        return [
            self._series(requests),
            self._distributions(requests, classes),
            self._worst(requests, list(classes.values())),
        ]

    def _worst_seed(self) -> Any:
        """Seed of the episode with the lowest return; None where there is one episode."""
        episodes, requests = self.run.episodes, self.run.requests
        if episodes is None or requests is None or "seed" not in requests:
            return None
        there = episodes[episodes["seed"].isin(requests["seed"].unique())]
        return there.loc[there["return"].idxmin(), "seed"]

    def _of_episode(self, table: pd.DataFrame, policy: str | None) -> pd.DataFrame:
        seed = self._worst_seed()
        if seed is not None and "seed" in table:
            table = table[table["seed"] == seed]
        return table[table["policy"] == policy] if policy is not None and "policy" in table else table

    def _series(self, requests: pd.DataFrame) -> str:
        names: list[Any] = list(requests["policy"].unique()) if "policy" in requests else [None]
        if len(names) > _MOST_POLICIES:
            self.run.note_missing(
                f"Time series: {len(names)} policies, of which the first {_MOST_POLICIES} are drawn."
            )
            names = names[:_MOST_POLICIES]
        decisions = self.run.decisions
        if decisions is None and self.run.kind != SIMULATE:
            self.run.note_missing("Decisions over time: the run has no decisions.jsonl.")
        episodes = {
            str(name or self.run.summary.get("policy") or self.run.summary.get("router")): series_of(
                self._of_episode(requests, name),
                None if decisions is None else self._of_episode(decisions, name),
            )
            for name in names
        }
        picture = self._drawn("series", lambda: figures.time_series(episodes, "engines"))
        seed = self._worst_seed()
        alone = self.run.episodes is None or self.run.episodes["seed"].nunique() == 1
        which = "The episode." if alone else f"The episode with the lowest return (seed {seed})."
        marks = sum(len(series.marks) for series in episodes.values()) if len(episodes) == 1 else 0
        caption = (
            f"{which} "
            + (
                "Vertical lines: decisions that changed the cluster, or were refused or overridden. "
                if marks
                else ""
            )
            + "Waiting: arrived and not scheduled by an engine; running: scheduled and not done."
        )
        return markup.section("Over time", markup.figure(picture, caption))

    def _distributions(self, requests: pd.DataFrame, classes: Mapping[str, Mapping[str, float]]) -> str:
        names = list(classes)
        if "policy" in requests:
            groups = {str(name): part for name, part in requests.groupby("policy", sort=False)}
            what = "policy, in the episode with the lowest return"
        else:
            groups = {
                names[int(place)] if int(place) < len(names) else f"class {place}": part  # type: ignore[call-overload]
                for place, part in requests.groupby("class_id")
            }
            what = "class, over all episodes"
        groups = dict(list(groups.items())[:_MOST_POLICIES])
        picture = self._drawn("latencies", lambda: figures.distributions(groups, classes))
        caption = f"Latencies by {what}. Dotted: SLOs. A curve ends below 100 % where requests were lost or unfinished."
        rows = [
            [name, len(part), *_percentiles(figures.ttft_of(part)), *_percentiles(figures.tpot_of(part))]
            for name, part in groups.items()
        ]
        columns = ("", "requests", *(f"{kind} P{q}, s" for kind in ("TTFT", "TPOT") for q in (50, 90, 99)))
        return markup.section("Latencies", markup.figure(picture, caption), markup.table(columns, rows))

    def _worst(self, requests: pd.DataFrame, slos: list[Mapping[str, float]]) -> str:
        whole = self._of_episode(requests, None)
        if whole.empty:
            return ""
        costs = costs_of(whole, slos)
        if "policy" in whole:
            shown = str(whole["policy"].iloc[int(np.argmax(costs))])
            chosen = (whole["policy"] == shown).to_numpy()
            whole, costs = whole[chosen], costs[chosen]
        rows = worst_rows(whole, costs)
        unit = "TTFT / SLO + TPOT / SLO" if slos else "TTFT + TPOT in seconds"
        worst = rows.loc[rows["cost"].idxmax()]
        name = f"{worst['policy']}: " if "policy" in whole else ""
        what = (
            "which was lost"
            if not np.isfinite(worst["cost"])
            else f"whose cost ({unit}) is {worst['cost']:.3g}"
        )
        caption = (
            f"{name}arrivals around request {worst['index']}, {what}; its label is bold. Labels: request and engine. "
            "The pointer shows the figures of each request."
        )
        return markup.section("Worst stretch, request by request", markup.figure(gantt(rows, slos), caption))

    # -- other kinds -----------------------------------------------------------------------------------------------

    def _replay(self) -> list[str]:
        found = self.run.replay
        twins = found.get("twin", {}).get("policies", {})
        rows, drawn = [], []
        for name, entry in found["policies"].items():
            gain = entry.get("gain", {})
            robust, weighted = gain.get("doubly_robust"), gain.get("ips")
            rows.append(
                [
                    name,
                    entry["agreement"],
                    robust and _percent(robust, "mean"),
                    weighted and _percent(weighted, "mean"),
                    entry.get("effective_sample_size"),
                    100.0 * twins[name]["gain"] if name in twins else None,
                ]
            )
            if robust and None not in (robust["mean"], *robust["ci95"]):
                drawn.append((name, robust["mean"], *robust["ci95"]))
        picture = self._drawn(
            "gains", lambda: figures.gains(drawn, "gain over the log, doubly robust"), bool(drawn)
        )
        cost, notes = found["cost"], [e["note"] for e in found["policies"].values() if e.get("note")]
        head = markup.facts(
            [
                ("decisions", f"{found['decisions']:,}, of which {found['random_decisions']:,} random"),
                ("with a known cost", f"{found['with_cost']:,}, from {cost['source']}"),
                (
                    "mean cost",
                    f"{_shown(cost['mean'])} (TTFT / SLO + TPOT / SLO), at most {cost['most']:g} a request",
                ),
                (
                    "simulated twin",
                    found.get("twin", {}).get("described") or found.get("twin", {}).get("why_not"),
                ),
            ]
        )
        columns = ("policy", "chooses as logged", "doubly robust [95 %]", "importance-weighted [95 %]",
                   "effective sample", "twin's gain %")  # fmt: skip
        caption = (
            "Estimated gain in the mean cost of a request, one decision changed at a time, 95 % interval."
        )
        said = [
            *dict.fromkeys(notes),
            *found["failures"].values(),
            *([found["note"]] if found["note"] else []),
        ]
        return [
            markup.section("The log", head, markup.bullets(said, "warnings")),
            markup.section(
                "Estimated gains",
                markup.figure(picture, caption) if picture else "",
                markup.table(columns, rows),
            ),
        ]

    def _monitor(self) -> list[str]:
        summary, rows = self.run.summary, self.run.lines("readings.jsonl", 100_000)
        engines = [
            [
                url.partition("://")[2],
                *(
                    entry[f"num_{key}"]
                    for key in ("running_mean", "running_max", "waiting_mean", "waiting_max")
                ),
                entry["kv_usage_mean_ratio"],
                entry["kv_usage_max_ratio"],
                entry["preemptions"],
                entry["unread_pages"],
            ]
            for url, entry in summary["engines"].items()
        ]
        columns = (
            "engine",
            "batch, mean",
            "most",
            "queue, mean",
            "most",
            "KV, mean",
            "most",
            "preempted",
            "unread pages",
        )
        policies = [
            [
                url.partition("://")[2],
                *(
                    entry.get(key)
                    for key in ("policy", "mode", "decisions", "errors", "us_p50", "us_p99", "disagreement")
                ),
            ]
            for url, entry in summary["policies"].items()
        ]
        picture = self._drawn("watched", lambda: figures.watched(rows), bool(rows and engines))
        silent = [f"{url} was never read: {problem}." for url, problem in summary["never_read"].items()]
        return [
            markup.bullets(silent, "warnings"),
            markup.section(
                "Engines",
                markup.table(columns, engines),
                markup.figure(picture, "As read.") if picture else "",
            ),
            markup.section(
                "Policies",
                markup.table(
                    ("process", "policy", "mode", "decisions", "errors", "P50 us", "P99 us", "disagreement"),
                    policies,
                ),
            ),
        ]

    def _drawn(self, name: str, draw: Any, wanted: bool = True) -> str:
        """A figure as SVG; empty where it is not wanted."""
        if not wanted:
            return ""
        drawing: Figure = draw()
        if self.pdf:
            path = self.run.path / "figures" / f"{name}.pdf"
            write_atomically(path, lambda partial: drawing.savefig(partial, format="pdf"))
        return figures.svg(drawing, name)


def write_report(path: Path, pdf: bool = False) -> Path:
    """Writes `report.html` into a run directory; returns its path.

    Args:
        path: The directory.
        pdf: Whether to write each figure as PDF too.

    Raises:
        ValueError: The directory holds no result of a known command.
    """
    text = Report(RunFolder(path), pdf).html()
    write_text(path / REPORT_FILE, text)
    return path / REPORT_FILE


def _seeds(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first} to {first + count - 1}"


def _described(name: Any, workload: Mapping[str, Any]) -> str:
    words = [
        f"{key}={workload[key]}"
        for key in ("path", "num_requests", "rate_rps")
        if workload.get(key) is not None
    ]
    if workload.get("rate_scale") not in (None, 1, 1.0):
        words.append(f"rate_scale={workload['rate_scale']}")
    return f"{name or ''}{' (' + ', '.join(words) + ')' if words else ''}"


def _interval(entry: Mapping[str, Any]) -> tuple[float, float, float]:
    return (_number(entry["iqm"]), _number(entry["ci95"][0]), _number(entry["ci95"][1]))


def _number(value: float | None) -> float:
    """A figure of a JSON file, in which null is infinite."""
    return float("inf") if value is None else float(value)


def _shown(value: float | None) -> str:
    return "inf" if value is None else f"{value:.4g}"


def _gate(gate: Mapping[str, Any]) -> str:
    said = "holds" if gate["holds"] else "FAILS"
    return f"{said}: {_shown(gate['value'])} (limit {_shown(gate['limit'])})"


def _percent(gain: Mapping[str, Any], centre: str = "iqm") -> str:
    values = [_number(value) * 100.0 for value in (gain[centre], *gain["ci95"])]
    return f"{values[0]:+.1f} % [{values[1]:+.1f}, {values[2]:+.1f}]"


def _percentiles(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float]:
    known = values[~np.isnan(values)]
    return [
        float(np.percentile(known, q, method="higher")) if known.size else float("nan") for q in (50, 90, 99)
    ]


def _differs(policies: Mapping[str, Any], metric: str) -> bool:
    values = [entry["metrics"][metric]["iqm"] for entry in policies.values()]
    known = [value for value in values if value is not None]
    return len(known) > 1 and max(known) > 1.02 * min(known)
