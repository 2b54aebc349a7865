"""Sections of a report on results: figures, paired differences, gates, cost against quality, learning curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving_gym.runners.html import figures, markup
from serving_gym.runners.html.folder import EVALUATE, TRAIN
from serving_gym.runners.html.sections import Sections, number, percent, shown
from serving_gym.runners.reporting.tables import LENGTH_METRICS, SESSION_METRICS, SHOWN_METRICS

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


class Results(Sections):
    """Results of evaluate, compare, train and simulate."""

    def parts(self) -> list[str]:
        """The sections."""
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
        columns = [name for name in COMPARED if all(name in entry["metrics"] for entry in policies.values())]
        order = sorted(policies, key=lambda name: -number(policies[name]["metrics"]["return"]["iqm"]))
        rows = [
            [
                name,
                *([roles.get(name, "")] if roles else []),
                *(
                    _interval(policies[name]["metrics"][metric])
                    if metric == "return"
                    else policies[name]["metrics"][metric]["iqm"]
                    for metric in columns
                ),
                policies[name].get("us_per_decision"),
            ]
            for name in order
        ]
        headings = ["policy", *(["role"] if roles else []), *columns, "us a decision"]
        note = "Interquartile means over episodes, 95 % intervals; highest return first, the best heuristic in bold."
        best = comparison.get("best_heuristic")
        return markup.section(
            "Results", markup.table(headings, rows, [best] if best else []), markup.paragraph(note, note=True)
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
            rows.append([name, percent(gain), wins.get(f"{name}>{base}"), p_value])
            if None not in (gain["iqm"], *gain["ci95"]):
                drawn.append((name, gain["iqm"], *gain["ci95"]))
        drawn.sort(key=lambda row: -row[1])
        picture = self.drawn(
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
        picture = self.drawn(
            "tradeoff", lambda: figures.trade_off(policies, cost, "slo_attainment", self.run.looks)
        )
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
        picture = self.drawn("learning", lambda: figures.learning(rows, others, self.run.looks))
        caption = (
            "Return on the validation episodes over training; lines: other policies on the same episodes."
        )
        return markup.section("Learning curve", markup.figure(picture, caption))

    def _episodes(self) -> str:
        episodes = self.run.episodes
        if episodes is None or len(episodes) < 2:
            return ""
        figured = [
            name
            for name in ("return", "slo_attainment", "ttft_p50_s", "ttft_p99_s", "unfinished")
            if name in episodes
        ]
        rows = [
            [str(row["seed"]), *(float(row[name]) for name in figured)]
            for _, row in episodes.sort_values("return").head(_MOST_EPISODES).iterrows()
        ]
        note = f"The {len(rows)} episodes with the lowest return, of {len(episodes)}."
        return markup.section(
            "Episodes", markup.table(("seed", *figured), rows), markup.paragraph(note, note=True)
        )

    def _gap(self) -> str:
        if not self.run.gap:
            return ""
        rows = [
            [metric, *(100.0 * number(entry[key]) for key in ("ape_median", "ape_mean", "ape_max"))]
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


def _interval(entry: Mapping[str, Any]) -> tuple[float, float, float]:
    return (number(entry["iqm"]), number(entry["ci95"][0]), number(entry["ci95"][1]))


def _gate(gate: Mapping[str, Any]) -> str:
    said = "holds" if gate["holds"] else "FAILS"
    return f"{said}: {shown(gate['value'])} (limit {shown(gate['limit'])})"


def _differs(policies: Mapping[str, Any], metric: str) -> bool:
    values = [entry["metrics"][metric]["iqm"] for entry in policies.values()]
    known = [value for value in values if value is not None]
    return len(known) > 1 and max(known) > 1.02 * min(known)
