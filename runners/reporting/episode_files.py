"""Files that `runners.evaluate` writes about the episodes of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from serving_gym.envs.interface.policy_spec import PolicySpec
from serving_gym.runners.configuration.schema import EvaluateConfig
from serving_gym.runners.reporting.output import write_json, write_json_columns, write_jsonl, write_parquet
from serving_gym.runners.rollouts.rollout import Episode

MOST_REPORTED = 100_000  # most requests of an episode in `requests.json` by default


def write_episodes(
    config: EvaluateConfig,
    out: Path,
    episodes: list[Episode],
    summary: dict[str, Any],
    spec: Any,
    decisions_written: bool = False,
    live: dict[str, Any] | None = None,
) -> None:
    """Writes `episodes.parquet`, `requests.parquet`, `decisions.jsonl`, `requests.json` and `summary.json`.

    Args:
        config: The command's configuration.
        out: Run directory.
        episodes: Episodes of the policy.
        summary: Metrics over the episodes.
        spec: The policy specification.
        decisions_written: Whether `decisions.jsonl` is there already.
        live: `client_report` of the episodes; None: they were simulated.
    """
    write_parquet(out / "episodes.parquet", pd.DataFrame([episode.row() for episode in episodes]))
    requests = [episode.records.to_frame().assign(seed=episode.seed) for episode in episodes]
    write_parquet(out / "requests.parquet", pd.concat(requests, ignore_index=True))
    if not decisions_written:
        write_jsonl(out / "decisions.jsonl", (row for episode in episodes for row in episode.decisions))
    if not config.detailed and len(episodes[0].records) > MOST_REPORTED:
        print(
            f"requests.json is not written: {len(episodes[0].records):,} requests are in requests.parquet; "
            "detailed=true writes them to requests.json too"
        )
    else:
        _write_reports(config, out, episodes, spec)
    write_json(
        out / "summary.json",
        {
            "env": config.env["name"],
            "workload": config.workload.name,
            "policy": episodes[0].policy,
            "backend": config.backend.name,
            "split": config.split,
            "seeds": config.seeds,
            "classes": described_classes(spec),
            "metrics": summary,
            "us_per_decision": sum(episode.us_per_decision for episode in episodes) / len(episodes),
            **({} if live is None else {"live": live}),
        },
    )


def described_classes(spec: PolicySpec) -> dict[str, dict[str, float]]:
    """SLOs of each request class, s, in the order of the classes."""
    return {
        name: {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s}
        for name, slo in zip(spec.classes, spec.slos, strict=True)
    }


def write_worst_episodes(out: Path, results: Mapping[str, Sequence[Episode]]) -> None:
    """Writes `requests.parquet` and `decisions.jsonl` of the seed on which a policy has its lowest return.

    Args:
        out: Run directory.
        results: Episodes by policy, all over the same seeds in the same order.
    """
    returns = np.array([[each.metrics["return"] for each in episodes] for episodes in results.values()])
    block = {name: episodes[int(returns.min(axis=0).argmin())] for name, episodes in results.items()}
    frames = [
        episode.records.to_frame().assign(policy=name, seed=episode.seed) for name, episode in block.items()
    ]
    write_parquet(out / "requests.parquet", pd.concat(frames, ignore_index=True))
    write_jsonl(out / "decisions.jsonl", (row for episode in block.values() for row in episode.decisions))


def _write_reports(config: EvaluateConfig, out: Path, episodes: list[Episode], spec: Any) -> None:
    slos = dict(zip(spec.classes, spec.slos, strict=True))
    reports = [
        {"seed": episode.seed, **episode.records.to_vllm_json(episode.duration_s, slos, spec.classes)}
        for episode in (episodes if config.detailed else episodes[:1])
    ]
    if config.detailed:
        write_json(out / "requests.json", reports, indent=None)
    else:
        write_json_columns(out / "requests.json", reports[0])
