"""Fits latency profiles: to measured tables, or to a live vLLM by its per-iteration log.

    python -m runners.calibrate
    python -m runners.calibrate part=steps into=my_calibration
    python -m runners.calibrate backend=vllm backend.launch=true
    python -m runners.calibrate backend=vllm backend.endpoints=[http://127.0.0.1:8000] log=vllm.log cluster=NAME
    python -m runners.calibrate traffic=[runs/a,runs/b] log=vllm.log cluster=NAME

Tables are read from `$SERVING_GYM_DATA`; they are not needed after calibration. Parts, in this order: `kernels`
(coefficients of every model, GPU and width from kernel tables), `steps` (profiles of an engine measured by iteration),
`engines` (overheads and profiles of engines measured end to end; every residual is a simulated run, and the fit is
repeated for each fold, which takes most of an hour), `live` (overheads of the engine whose profiles were measured on a
live server, for all models), `environments` (the profiles that environments use), `constants` (reported, not written)
and `transfers` (errors of profiles whose overheads come from other widths, GPUs, models or versions, by fits without
each; some twenty minutes). `held_out=false` skips the fits per fold of `engines`.

The profile of a live engine is written to `MODEL_GPU.yaml` in the run directory: its iterations, its front end and, if
it was launched by this command, the times of start, stop, relaunch and, with sleep mode, sleep and wake;
`switch_ranks=2` adds a switch between DP and TP. The fitted values, their provenance and their errors are written to
`calibration.json`. `traffic` fits to recorded runs of a server (`runners.simulate backend=vllm`) and its log instead of
a designed load.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from serving_gym.runners.command_line.cli import command
from serving_gym.runners.measuring.config import CalibrateConfig
from serving_gym.runners.reporting.output import write_json
from serving_gym.runners.reporting.tables import print_results_in

FILE_NAME = "calibration.json"


@command("calibrate", CalibrateConfig)
def main(config: CalibrateConfig, out: Path) -> None:
    """Runs the command: calibrates from tables, recorded runs or a live server."""
    if config.traffic:
        from serving_gym.runners.measuring.recorded_runs import profile_traffic

        profile_traffic(config, out)
        return
    if config.backend.name == "vllm":
        from serving_gym.runners.measuring.server import measure_live

        measure_live(config, out)
        return
    fit_tables(config, out)


def fit_tables(config: CalibrateConfig, out: Path) -> None:
    """Fits the requested parts to the reference tables and writes them."""
    from serving_gym.runners.profile_fitting.regenerate import PARTS, Request

    wanted = list(PARTS) if config.part == "all" else [config.part]
    request = Request(into(config), config.held_out, config.folds, progress_printer())
    written = [path for part in wanted for path in PARTS[part](request)]
    write_json(
        out / FILE_NAME, {"backend": "tables", "parts": wanted, "written": [str(path) for path in written]}
    )
    print(f"{len(written)} files written under {request.folder}")
    print_results_in(out)


def into(config: CalibrateConfig) -> Path:
    """Folder that takes what is fitted."""
    folder = Path(__file__).resolve().parents[1] / "calibration" if config.into is None else Path(config.into)
    (folder / "profiles").mkdir(parents=True, exist_ok=True)
    return folder


def progress_printer() -> Callable[[str], None]:
    """Says on standard error what has been done."""
    return lambda line: print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(None))
