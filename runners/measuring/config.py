"""Configuration of `runners.calibrate`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date

from serving_gym.calibration.fields import check_positive
from serving_gym.calibration.hardware import GPUS, GpuSpec, get_gpu
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.interface.cluster import ClusterSpec
from serving_gym.runners.configuration.schema import BackendConfig, check_least

PARTS = (
    "all",
    "kernels",
    "engines",
    "steps",
    "live",
    "environments",
    "constants",
    "transfers",
)  # of what tables are fitted to


@dataclass(frozen=True)
class Hardware:
    """What one rank of a measured engine runs on; fitted ratios are shares of these.

    Attributes:
        name: of a GPU that `calibration.hardware` knows, or any other; None: the cluster's.
        memory_bytes: device memory, bytes; not read for a known GPU, as those below.
        bandwidth: peak memory bandwidth, bytes/s.
        flops: peak rate in bf16, FLOP/s.
    """

    name: str | None = None
    memory_bytes: float = 16e9
    bandwidth: float = 40e9
    flops: float = 500e9

    def __post_init__(self) -> None:
        check_positive(self, "memory_bytes", "bandwidth", "flops", prefix="hardware.")

    def spec(self, cluster_gpu: str) -> GpuSpec:
        """The hardware as profiles have it."""
        name = self.name or cluster_gpu
        if name in GPUS:
            return get_gpu(name)
        return GpuSpec(name, self.memory_bytes, self.bandwidth, {"bf16": self.flops}, self.bandwidth)


@dataclass(frozen=True)
class CalibrateConfig:
    """Configuration of `runners.calibrate`; all keys from `log` on are for a live engine.

    Attributes:
        cluster: the engine: TP degree (`base_width`), batch limits, name of model and GPU.
        out: run directory.
        backend: "tables" (measured tables) or "vllm".
        part: of tables: what is fitted.
        into: of tables: folder to write in place of `calibration/`; None: the package itself.
        held_out: of tables: whether fits are repeated without each part of the data, for the errors profiles state.
        folds: of tables: number of parts for that.
        log: file of the server's standard output; None: a launched server's own.
        traffic: run directories of `runners.simulate backend=vllm` on one server, to which a profile is fitted by its
            `log` and no load is designed; empty: a load is.
        model: a model of `calibration.models`, or a folder with its config.json; None: the folder that the server
            reports, or else the cluster's model.
        name: of the model in the profile; None: the cluster's.
        engine: name of the engine in the profile, such as vllm-0.24, part of its file's name too; empty: it has none.
        hardware: what a rank runs on.
        longest_tokens: longest request of the designed load; None: the server's.
        repeats: rounds through the designed load.
        neighbours: more servers to launch on this machine, each in the next slot; they serve the same load at the same
            time.
        transitions: whether to measure start, stop and relaunch of a launched server, and sleep and wake if supported.
        switch_ranks: ranks of a server with the plugin, launched at the end to measure a switch between DP and TP;
            0: not measured.
        widths_of: a measured profile of the same model and hardware, by file or by name of a committed one: its other
            TP degrees and its transitions are added to the new profile; None: none.
        date: of the measurement, YYYY-MM-DD; None: today.
    """

    cluster: ClusterSpec
    out: str
    backend: BackendConfig = field(default_factory=lambda: BackendConfig(name="tables"))
    part: str = "all"
    into: str | None = None
    held_out: bool = True
    folds: int = 4
    log: str | None = None
    traffic: list[str] = field(default_factory=list)
    model: str | None = None
    name: str | None = None
    engine: str = ""
    hardware: Hardware = field(default_factory=Hardware)
    longest_tokens: int | None = None
    repeats: int = 4
    neighbours: int = 0
    transitions: bool = True
    switch_ranks: int = 0
    widths_of: str | None = None
    date: str | None = None

    def __post_init__(self) -> None:
        check_choice("backend", self.backend.name, ("tables", "vllm"))
        check_choice("part", self.part, PARTS)
        check_least("folds", self.folds, 2)
        check_least("repeats", self.repeats, 1)
        check_least("neighbours", self.neighbours, 0)
        if self.switch_ranks not in (0, 2, 4, 8):
            raise ValueError(f"switch_ranks must be 0, 2, 4 or 8, got {self.switch_ranks}")
        if self.switch_ranks and not self.backend.launch:
            raise ValueError("switch_ranks are of a server that is launched: backend.launch must be true")
        if self.neighbours and not self.backend.launch:
            raise ValueError("neighbours are launched beside a launched server: backend.launch must be true")
        if self.longest_tokens is not None:
            check_least("longest_tokens", self.longest_tokens, 128)
        if self.backend.name == "vllm" and len(self.backend.endpoints) > 1:
            raise ValueError(
                f"backend.endpoints names {len(self.backend.endpoints)} servers; one is measured at a time"
            )
        if not re.fullmatch(r"[\w.-]*", self.engine):
            raise ValueError(f"engine must be letters, digits, '.', '_' and '-', got {self.engine!r}")
        if self.traffic and (self.backend.launch or self.backend.endpoints):
            raise ValueError(
                "traffic was served before: neither backend.launch nor backend.endpoints goes with it"
            )
        if (self.backend.endpoints or self.traffic) and self.log is None:
            raise ValueError(
                "log must name the file that the server's standard output goes to: its per-iteration log is the "
                "measurement"
            )
        if self.date is not None:
            _check_date(self.date)


def _check_date(text: str) -> None:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"date must be written YYYY-MM-DD, got {text!r}") from None
