"""`runners.calibrate traffic=[RUN,...] log=FILE`: from runs on a server, and its log, to a profile file."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from serving_gym.calibration.coefficients import roofline_coefficients
from serving_gym.calibration.profile import Profile, load_profile, named_profile
from serving_gym.runners.measuring.config import CalibrateConfig
from serving_gym.runners.measuring.drive import Sent
from serving_gym.runners.measuring.intervals import Run, match_runs
from serving_gym.runners.measuring.log import IterationLog
from serving_gym.runners.measuring.report import (
    measured_model,
    print_profile,
    schedules_async,
    typed,
    write_profile,
)
from serving_gym.runners.measuring.traffic import profile_of
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.tables import print_results_in

_READ = ["arrival_s", "input_tokens", "output_tokens", "generated_tokens", "first_token_s", "finish_s"]


def profile_traffic(config: CalibrateConfig, out: Path) -> None:
    """Fits, writes `NAME_GPU.yaml` and `calibration.json`, and prints what came out.

    Raises:
        ValueError: a folder is not a run on one server, the runs were on unlike servers, or too little of them is in
            the log.
    """
    folders = [Path(name) for name in config.traffic]
    servers = [server_of(folder) for folder in folders]
    for folder, server in zip(folders, servers, strict=True):
        if (server["root"], server["version"]) != (servers[0]["root"], servers[0]["version"]):
            raise ValueError(
                f"traffic must be of one server: {folder} was on {server['root']} and vLLM {server['version']}, "
                f"{folders[0]} on {servers[0]['root']} and vLLM {servers[0]['version']}"
            )
    log = IterationLog(Path(config.log or ""))
    logged, missing = match_runs(log.new_iterations(), [read_run(folder) for folder in folders])
    if not logged:
        raise ValueError(f"{config.log} tells of none of the runs: {'; '.join(missing)}")
    prior, believed = _prior(config, servers[0]["root"])
    when, command = typed(config)
    provenance = {
        "engine": f"vLLM {servers[0]['version']}",
        "date": when,
        "command": command,
        "runs": [each.run.name for each in logged],
        "requests": sum(len(each.run.sent) for each in logged),
        "runs_thrown_away": missing,
        "pulled_towards": believed,
    }
    asynchronous = schedules_async(config.cluster, log)
    profile = profile_of(logged, prior, config.cluster.base_width, provenance, asynchronous)
    file = write_profile(profile, config, out)
    write_json(out / "calibration.json", {"provenance": profile.provenance, "held_out": profile.held_out})
    print_profile(profile, config.cluster)
    for line in missing:
        print(f"not used: {line}")
    print_results_in(file)


def read_summary(folder: Path) -> dict[str, Any]:
    """What a run came to.

    Raises:
        ValueError: the folder is no run.
    """
    file = folder / "summary.json"
    if not file.is_file() or not (folder / "requests.parquet").is_file():
        raise ValueError(f"traffic names {str(folder)!r}, which has no summary.json and requests.parquet")
    summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return summary


def server_of(folder: Path) -> dict[str, Any]:
    """The one server of a run.

    Raises:
        ValueError: the folder is no run, or one on none or on several servers.
    """
    servers: list[dict[str, Any]] = read_summary(folder).get("servers", [])
    if len(servers) != 1:
        raise ValueError(
            f"traffic must be runs on one real server (runners.simulate backend=vllm); {folder} was on {len(servers)}"
        )
    return servers[0]


def served_requests(folder: Path) -> pd.DataFrame:
    """The requests of a run in the order in which they came: arrival, lengths in tokens, first and last token.

    Raises:
        ValueError: some were refused, lost or cut short.
    """
    frame = pd.read_parquet(folder / "requests.parquet", columns=_READ)
    short = int((frame["generated_tokens"] != frame["output_tokens"]).sum())
    if short or frame.empty:
        raise ValueError(
            f"traffic must be runs whose every request was served whole; of {folder} {short} of {len(frame)} were not"
        )
    return frame.sort_values("arrival_s", kind="stable", ignore_index=True)


def read_run(folder: Path) -> Run:
    """What a log is to tell of a run.

    Raises:
        ValueError: some requests were refused, lost or cut short.
    """
    frame = served_requests(folder)
    between = frame["output_tokens"] - 1
    return Run(
        name=folder.name,
        sent=[Sent(*each) for each in zip(frame["input_tokens"], frame["output_tokens"], strict=True)],
        ttft_s=(frame["first_token_s"] - frame["arrival_s"]).tolist(),
        tpot_s=((frame["finish_s"] - frame["first_token_s"]) / between.where(between > 0)).tolist(),
    )


def _prior(config: CalibrateConfig, root: str) -> tuple[Profile, str]:
    """What is believed of the model and hardware before, and its name."""
    width = config.cluster.base_width
    if config.cluster.profile is not None:
        return named_profile(config.cluster.profile), Path(config.cluster.profile).stem
    model, gpu = measured_model(config, root), config.hardware.spec(config.cluster.gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            known = load_profile(model.name, gpu.name)
        except ValueError:  # a model or hardware of one's own
            known = None
    if known is not None and (known.model, known.gpu) == (model, gpu) and width in known.widths:
        return known, f"{model.name} on {gpu.name}, committed"
    return Profile(model, gpu, "roofline", {0: roofline_coefficients(gpu)}), "roofline"
