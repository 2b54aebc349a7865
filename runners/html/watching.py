"""Sections of a report on replayed logs and on watched servers."""

from __future__ import annotations

from serving_gym.runners.html import figures, markup
from serving_gym.runners.html.sections import Sections, percent, shown
from serving_gym.runners.monitoring.gain import said_of


class Replayed(Sections):
    """Estimates from a decision log."""

    def parts(self) -> list[str]:
        """The sections."""
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
                    robust and percent(robust, "mean"),
                    weighted and percent(weighted, "mean"),
                    entry.get("effective_sample_size"),
                    100.0 * twins[name]["gain"] if name in twins else None,
                ]
            )
            if robust and None not in (robust["mean"], *robust["ci95"]):
                drawn.append((name, robust["mean"], *robust["ci95"]))
        picture = self.drawn(
            "gains", lambda: figures.gains(drawn, "gain over the log, doubly robust"), bool(drawn)
        )
        cost, notes = found["cost"], [e["note"] for e in found["policies"].values() if e.get("note")]
        head = markup.facts(
            [
                ("decisions", f"{found['decisions']:,}, of which {found['random_decisions']:,} random"),
                ("with a known cost", f"{found['with_cost']:,}, from {cost['source']}"),
                (
                    "mean cost",
                    f"{shown(cost['mean'])} (TTFT / SLO + TPOT / SLO), at most {cost['most']:g} a request",
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


class Watched(Sections):
    """What a monitor has read."""

    def parts(self) -> list[str]:
        """The sections."""
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
        picture = self.drawn("watched", lambda: figures.watched(rows), bool(rows and engines))
        silent = [f"{url} was never read: {problem}." for url, problem in summary["never_read"].items()]
        silent += [
            f"{url}: the reading was stale in {entry['stale_rounds']} of {summary['rounds']} rounds."
            for url, entry in (summary["engines"] | summary["policies"]).items()
            if entry["stale_rounds"]
        ]
        gained = said_of(summary["gain"]) if summary.get("gain") else []
        return [
            markup.bullets(silent, "warnings"),
            markup.section(
                "Engines",
                markup.table(columns, engines),
                markup.figure(picture, "Readings of each engine; gaps: none.") if picture else "",
            ),
            markup.section(
                "Policies",
                markup.table(
                    (
                        "process",
                        "policy",
                        "mode",
                        "decisions",
                        "errors",
                        "P50 us",
                        "P99 us",
                        "other than fallback",
                    ),
                    policies,
                ),
                markup.bullets(gained, "missing"),
            ),
        ]
