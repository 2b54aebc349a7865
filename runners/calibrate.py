"""Fits latency profiles to measured tables and writes them with their provenance and held-out errors.

    python -m runners.calibrate
    python -m runners.calibrate part=steps into=my_calibration

Reads the reference tables under `$SERVING_GYM_DATA`; nothing of them is needed afterwards. Parts, in this order:
`kernels` (coefficients of every model, GPU and width from kernel tables), `steps` (profiles of an engine measured by
iteration), `engines` (overheads and profiles of engines measured end to end; every residual is a simulated run, and the
fit is repeated for each fold, which takes the better part of an hour), `environments` (the profiles that environments
use). `held_out=false` leaves the repetitions out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from calibration.fitting.regenerate import BACKENDS, PARTS, Request
from runners.cli import command
from runners.output import write_json
from runners.schema import CalibrateConfig
from runners.tables import print_results_in

FILE_NAME = "calibration.json"


@command("calibrate", CalibrateConfig)
def main(config: CalibrateConfig, out: Path) -> None:
    """Fits and writes."""
    backend = config.backend.name
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} cannot be measured here; allowed: {', '.join(BACKENDS)}")
    measure = BACKENDS[backend]
    wanted = list(PARTS) if config.part == "all" else [config.part]
    request = Request(into(config), config.held_out, config.folds, progress_printer())
    written = [path for part in wanted for path in measure(part, request)]
    write_json(out / FILE_NAME, {"backend": backend, "parts": wanted, "written": [str(p) for p in written]})
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
