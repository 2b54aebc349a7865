"""Sections of a report on what happened over time: load, latencies, and the worst stretch request by request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from serving_gym.runners.html import figures, markup
from serving_gym.runners.html.folder import SIMULATE
from serving_gym.runners.html.gantt import costs_of, gantt, worst_rows
from serving_gym.runners.html.sections import Sections
from serving_gym.runners.html.series import series_of

_MOST_POLICIES = 8  # in one chart over time
_MOST_KINDS = 6  # of decisions that a caption counts


class OverTime(Sections):
    """What happened over time, where the run has its requests."""

    def parts(self) -> list[str]:
        """The sections."""
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
        return there["seed"].to_numpy()[there["return"].to_numpy().argmin()]

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
        picture = self.drawn("series", lambda: figures.time_series(episodes, "engines", self.run.looks))
        seed = self._worst_seed()
        alone = self.run.episodes is None or self.run.episodes["seed"].nunique() == 1
        which = "The episode." if alone else f"The episode with the lowest return (seed {seed})."
        marks = Counter(
            mark.said for series in episodes.values() if len(episodes) == 1 for mark in series.marks
        )
        counted = ", ".join(f"{count} x {said}" for said, count in marks.most_common(_MOST_KINDS))
        caption = (
            f"{which} "
            + (f"Vertical lines: decisions beyond the place of a request ({counted}). " if marks else "")
            + "Waiting: arrived and not scheduled by an engine; running: scheduled and not done."
        )
        return markup.section("Over time", markup.figure(picture, caption))

    def _distributions(self, requests: pd.DataFrame, classes: Mapping[str, Mapping[str, float]]) -> str:
        names = list(classes)
        if "policy" in requests:
            groups = {str(name): part for name, part in requests.groupby("policy", sort=False)}
            what, looks = "policy, in the episode with the lowest return", self.run.looks
        else:
            class_id = requests["class_id"].to_numpy(np.int64)
            groups = {
                names[place] if place < len(names) else f"class {place}": requests[class_id == place]
                for place in np.unique(class_id).tolist()
            }
            what, looks = "class, over all episodes", {}
        groups = dict(list(groups.items())[:_MOST_POLICIES])
        picture = self.drawn("latencies", lambda: figures.distributions(groups, classes, looks))
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
        worst = rows.iloc[int(rows["cost"].to_numpy().argmax())]
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


def _percentiles(values: NDArray[np.float64]) -> list[float]:
    known = values[~np.isnan(values)]
    return [
        float(np.percentile(known, q, method="higher")) if known.size else float("nan") for q in (50, 90, 99)
    ]
