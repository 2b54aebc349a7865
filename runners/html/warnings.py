"""What a reader of results should know before he believes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving_gym.runners.configuration.clusters import cluster_of
from serving_gym.runners.html.folder import REPLAY, RunFolder
from serving_gym.runners.reporting.engine_lines import engine_lines

_LOST_SHARE = 0.01
_LATE_SHARE = 0.02  # of decisions taken for the policy
_QUEUED_SHARE = 0.5
_FEW_EPISODES = 5
_WEAK_PROFILES = ("transferred", "roofline")


def warnings_of(run: RunFolder) -> list[str]:
    """Warnings about a run, in sentences."""
    return [*_saturated(run), *_uncertain(run), *_overridden(run), *profile_warnings(run)]


def engines_of(run: RunFolder) -> list[str]:
    """A sentence on each kind of engine of a simulated run; empty where its configuration does not tell."""
    if (
        run.kind == REPLAY
        or "cluster" not in run.config
        or (run.summary or run.comparison).get("backend", "simulator") == "vllm"
    ):
        return []
    try:
        return list(dict.fromkeys(engine_lines(cluster_of(run.config["cluster"]))))
    except (ValueError, TypeError, KeyError, OSError) as error:
        run.note_missing(f"Engines: the cluster of the run cannot be read with this version ({error}).")
        return []


def profile_warnings(run: RunFolder) -> list[str]:
    """Warnings about profiles that were not measured."""
    return [
        f"Times of an engine are not measured but {kind}: {line.partition(';')[0]}."
        for line in engines_of(run)
        for kind in _WEAK_PROFILES
        if kind in line
    ]


def _metrics(run: RunFolder) -> dict[str, Mapping[str, Any]]:
    """Mean metrics by policy."""
    if run.comparison:
        return {
            name: {key: value.get("mean", value.get("iqm")) for key, value in entry["metrics"].items()}
            for name, entry in run.comparison["policies"].items()
        }
    metrics = run.summary.get("metrics", {})
    plain = {
        key: value.get("mean", value.get("iqm")) if isinstance(value, Mapping) else value
        for key, value in metrics.items()
    }
    return {str(run.summary.get("policy") or run.summary.get("router")): plain} if plain else {}


def _saturated(run: RunFolder) -> list[str]:
    said = []
    for name, metrics in _metrics(run).items():
        arrived = metrics.get("arrived") or 0.0
        lost = sum(metrics.get(key) or 0.0 for key in ("refused", "failed", "unfinished"))
        attainment = metrics.get("ttft_attainment")
        if arrived and lost > _LOST_SHARE * arrived:
            said.append(
                f"{name}: {lost / arrived:.1%} of the requests were refused, failed or did not finish, so percentiles "
                "above that are infinite."
            )
        elif attainment is not None and attainment < _QUEUED_SHARE:
            said.append(
                f"{name}: saturated, {1 - attainment:.0%} of the requests miss their TTFT SLO; latencies then depend "
                "on how long the episode is."
            )
    return said


def _uncertain(run: RunFolder) -> list[str]:
    found = run.comparison or run.summary
    said = []
    seeds, blocks = found.get("seeds"), found.get("blocks")
    if isinstance(seeds, int) and seeds < _FEW_EPISODES:
        said.append(f"Only {seeds} episode{'s' if seeds > 1 else ''}: intervals say little.")
    if isinstance(seeds, int) and isinstance(blocks, int) and blocks < seeds:
        said.append(
            f"Windows overlap: only {blocks} of {seeds} episodes can be disjoint in this trace, so intervals are too "
            "narrow."
        )
    if found.get("training", {}).get("improved") is False:
        said.append("Training has not improved on its start: the agent's figures are those of its start.")
    return said


def _overridden(run: RunFolder) -> list[str]:
    """Decisions taken for a policy, and whatever else the client of live servers says of itself."""
    live = {"": run.summary["live"]} if "live" in run.summary else dict(run.gap.get("live", {}))
    told = [
        f"{name}: {line}." if name else f"{line}."
        for name, each in live.items()
        for line in each.get("warnings", ())
    ]
    if run.decisions is None or told:
        return told
    said = []
    for policy, rows in run.decisions.groupby("policy"):
        overrides, refused = int(rows["overrides"].sum()), int((rows["refused"] != "").sum())
        total = max(len(rows) + overrides, 1)
        if overrides > _LATE_SHARE * total:
            said.append(
                f"{policy}: {overrides:,} of {total:,} decisions ({overrides / total:.0%}) were taken for the policy "
                "because it was late or failed; the result is not its own to that extent."
            )
        if refused:
            said.append(f"{policy}: {refused:,} of {len(rows):,} decisions were refused in whole or in part.")
    return said
