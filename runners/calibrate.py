"""Fits latency profiles: to measured tables, or to a live vLLM by its per-iteration log.

    python -m runners.calibrate
    python -m runners.calibrate backend=vllm backend.launch=true
    python -m runners.calibrate backend=vllm backend.endpoints=[http://127.0.0.1:8000] log=vllm.log cluster=NAME

A live engine's profile goes to `MODEL_GPU.yaml` in the run directory, its provenance and errors to `calibration.json`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runners.cli import command
from runners.measure_config import CalibrateConfig


@command("calibrate", CalibrateConfig)
def main(config: CalibrateConfig, out: Path) -> None:
    """Dispatches on where the measurements come from."""
    if config.backend.name == "vllm":
        from runners.measuring import measure_live

        measure_live(config, out)
        return
    from calibration.fitting.__main__ import main as fit_tables

    fit_tables()


if __name__ == "__main__":
    sys.exit(main(None))
