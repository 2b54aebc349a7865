"""What vllm-router chose, recorded for tests where it is not installed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.baselines.routers.vllm_router import driver
from tests.baselines.routers.vllm_router.scripts import Script, scripts

PATH = Path(__file__).with_name("recording.json")


def read() -> tuple[str, list[tuple[Script, list[int]]]]:
    """The router's version, and each script with its choices."""
    recorded = json.loads(PATH.read_text())
    return recorded["vllm_router"], [(Script(**run["script"]), run["chosen"]) for run in recorded["runs"]]


def write() -> None:
    """Records the choices of the installed router."""
    runs = [{"script": asdict(script), "chosen": driver.choices(script)} for script in scripts()]
    lines = ",\n".join(json.dumps(run) for run in runs)
    PATH.write_text(f'{{"vllm_router": "{driver.version()}", "runs": [\n{lines}\n]}}\n')
