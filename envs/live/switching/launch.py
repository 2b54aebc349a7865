"""Starts a vLLM server with the plugin on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving_gym.envs.live.launch_settings import LaunchSettings
from serving_gym.envs.live.launcher import LocalServer
from serving_gym.envs.live.switching.install import arguments, environment

_CPU_BLOCK_TOKENS = 32  # vLLM's CPU attention takes blocks of multiples of it


@dataclass(frozen=True)
class SwitchingLaunchSettings(LaunchSettings):
    """A vLLM server with the plugin; its slot has a core or a GPU for each rank.

    Attributes:
        ranks: Ranks of the server; `block_size` counts tokens of a block in DP, `kv_blocks` the blocks of each rank.
        router: Chooses the group of a request.
        site: Folder that `install` made.
    """

    ranks: int = 2
    router: str = "jsq"
    site: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == "cpu" and self.block_size % _CPU_BLOCK_TOKENS:
            raise ValueError(
                f"cluster.block_size must be a multiple of {_CPU_BLOCK_TOKENS} on a server that switches on CPUs, "
                f"got {self.block_size}"
            )
        if self.sleep_mode:
            raise ValueError("backend.sleep_mode must be false on a server that switches")

    def arguments(self, model: Path | str, port: int) -> list[str]:
        """Command line of the server; `env` sets what the plugin needs, as the server sees nothing of our path."""
        # CPU ranks share no compiled code, and graphs are not captured a mode
        own = environment(Path(self.site)) | {"TORCH_COMPILE_DISABLE": "1"}
        variables = [f"{name}={value}" for name, value in own.items()]
        started = super().arguments(model, port)  # type: ignore[arg-type, unused-ignore]
        return ["env", *variables, *started, *arguments(self.ranks, router=self.router)]


@contextmanager
def switching_server(settings: SwitchingLaunchSettings, folder: Path) -> Iterator[LocalServer]:
    """A server with the plugin, up inside the block.

    Args:
        settings: launch settings; its `site` must have been made by `install`.
        folder: folder for model and log.

    Raises:
        ValueError: it cannot be started, or does not answer in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with LocalServer(settings, folder) as server:
        yield server
