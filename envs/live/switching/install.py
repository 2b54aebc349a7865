"""Installs the plugin for a vLLM server, and builds the server's command line.

The plugin needs a Python with vLLM, which is not the one this library runs in. `install` makes a folder that goes on
that Python's path: the package under its own name, and the metadata by which vLLM discovers plugins.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from serving_gym.envs.interface.layout import Layout
from serving_gym.envs.live.switching.plugin import NAME

PLUGIN = Path(__file__).with_name("plugin")
_METADATA = "Metadata-Version: 2.1\nName: serving-gym-switching\nVersion: 0.1\n"
_ENTRY_POINTS = f"""[vllm.general_plugins]
{NAME} = {NAME}.hooks:register

[vllm.endpoint_plugins]
{NAME} = {NAME}.endpoint:SwitchingEndpoint
"""


def install(folder: Path) -> Path:
    """Makes the folder that goes on PYTHONPATH of a server.

    Args:
        folder: target folder; created if it does not exist.

    Returns:
        The folder, absolute.
    """
    folder = folder.resolve()
    info = folder / "serving_gym_switching-0.1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(_METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")
    package = folder / NAME
    if not package.exists():
        package.symlink_to(PLUGIN, target_is_directory=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Variables that a server of vLLM with the plugin needs, beside its own.

    Args:
        folder: as returned by `install`.
    """
    return {"PYTHONPATH": str(folder), "VLLM_PLUGINS": NAME, "VLLM_USE_V2_MODEL_RUNNER": "0"}


def arguments(ranks: int, layout: Layout | None = None, router: str = "jsq") -> list[str]:
    """Options that turn a server of vLLM into one that switches.

    Its `--block-size` counts the tokens of a block in DP; a group of p ranks fits p times as many.

    Args:
        ranks: ranks of the server.
        layout: groups at the start; None: one of all ranks.
        router: chooses the group of a request.
    """
    words = {"router": router} | ({} if layout is None else {"layout": list(layout)})
    return [
        "--tensor-parallel-size", str(ranks),
        "--distributed-executor-backend", f"{NAME}.executor.SwitchingExecutor",
        "--scheduler-cls", f"{NAME}.scheduler.SwitchingScheduler",
        "--worker-extension-cls", f"{NAME}.worker.SwitchingWorker",
        "--additional-config", json.dumps({NAME: words}),
        "--no-async-scheduling", "--no-enable-prefix-caching", "--enforce-eager",
    ]  # fmt: skip


def main(words: Sequence[str]) -> int:
    """`python -m envs.live.switching.install FOLDER [RANKS]`: installs, and prints how to start a server."""
    if len(words) not in (1, 2) or not all(word.isdigit() for word in words[1:]):
        print("usage: python -m envs.live.switching.install FOLDER [RANKS]", file=sys.stderr)
        return 2
    folder, ranks = install(Path(words[0])), int(words[1]) if len(words) == 2 else 2
    print(" ".join(f"{name}={shlex.quote(value)}" for name, value in environment(folder).items()))
    print(shlex.join(arguments(ranks)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
