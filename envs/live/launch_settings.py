"""Settings of a locally launched server."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from serving_gym.envs.live.tiny_model import KV_BYTES_PER_TOKEN

PYTHON_VARIABLE = "SERVING_GYM_VLLM_PYTHON"
SERVED_NAME = "tiny"
DEVICES = ("cpu", "cuda")
_SLOT = re.compile(r"\d+(-\d+)?([|,]\d+(-\d+)?)*")
# Stamps every line to the microsecond: vLLM's own format stops at the second.
LOG_CONFIG = Path(__file__).with_name("vllm_logging.json")


@dataclass(frozen=True)
class LaunchSettings:
    """A vLLM server on this machine, on a free loopback port, with weights made up: they do not change how fast it is.

    Attributes:
        device: cpu or cuda.
        slot: Cores (`VLLM_CPU_OMP_THREADS_BIND`: "0", "0-3", and "0|1" for two ranks) or GPUs (`CUDA_VISIBLE_DEVICES`:
            "0", "0,1") that it runs on. On cores the whole server stays there, its HTTP front end included, so that
            servers side by side do not disturb each other.
        model: Folder with the model's config.json, or its repository; None: a tiny Llama.
        tp_size: Tensor-parallel degree.
        pp_size: Pipeline-parallel degree.
        memory_utilization: Share of GPU memory that it may use; on a CPU the KV pool is set instead.
        sleep_mode: Whether it supports sleep mode; on GPUs only.
        python: Python with vLLM; None: the one in SERVING_GYM_VLLM_PYTHON.
        block_size: Tokens per KV block.
        kv_blocks: KV blocks for requests; vLLM reserves one more. On a CPU only.
        kv_bytes: KV pool of a rank, bytes, that block included; None: on a CPU `kv_blocks`, on a GPU what its share of
            memory leaves.
        max_model_len: Longest request, tokens.
        max_num_seqs: Most running requests.
        max_num_batched_tokens: Token budget of an iteration.
        order: fcfs or priority.
        async_scheduling: Whether it schedules asynchronously; None: vLLM's default.
        start_within_s: Longest time from start to first answer, seconds.
        stop_within_s: Time to shut down before it is killed, seconds.
        hung_after_s: Longest time without an answer to `/health`, once it has answered, before it is killed and counts
            as one that has died, seconds; 0: no limit.
        log_iterations: Whether it logs each iteration, in a log without bound, as `runners.calibrate` reads it.
    """

    device: str = "cpu"
    slot: str = "0"
    model: str | None = None
    tp_size: int = 1
    pp_size: int = 1
    memory_utilization: float = 0.9
    sleep_mode: bool = False
    python: str | None = None
    block_size: int = 32
    kv_blocks: int = 511
    kv_bytes: int | None = None
    max_model_len: int = 2048
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    order: str = "fcfs"
    async_scheduling: bool | None = None
    start_within_s: float = 240.0
    stop_within_s: float = 15.0
    hung_after_s: float = 15.0
    log_iterations: bool = False

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"backend.device must be one of {', '.join(DEVICES)}, got {self.device!r}")
        if self.device == "cpu" and not _SLOT.fullmatch(self.slot):
            raise ValueError(f"backend.slots: cores are written 0, 0-3, 0,2 or 0|1, got {self.slot!r}")
        if self.sleep_mode and self.device != "cuda":
            raise ValueError("backend.sleep_mode needs backend.device=cuda: on a CPU vLLM only pauses")
        if self.async_scheduling and self.device != "cuda":
            raise ValueError(
                "cluster.async_scheduling=true needs backend.device=cuda: on a CPU vLLM schedules synchronously"
            )

    @property
    def cores(self) -> frozenset[int]:
        """Cores that it is pinned to; empty: any."""
        if self.device != "cpu":
            return frozenset()
        bounds = [part.split("-") for part in re.split(r"[|,]", self.slot)]
        return frozenset(core for part in bounds for core in range(int(part[0]), int(part[-1]) + 1))

    def interpreter(self) -> str:
        """Python to start the server with.

        Raises:
            ValueError: it is not set, or does not exist.
        """
        python = self.python or os.environ.get(PYTHON_VARIABLE)
        if not python:
            raise ValueError(
                f"backend.python is not set: name a Python that has vllm, there or in {PYTHON_VARIABLE}"
            )
        if not Path(python).is_file():
            raise ValueError(f"backend.python={python!r} does not exist")
        return python

    def arguments(self, model: str, port: int) -> list[str]:
        """Command line of the server."""
        common = [
            self.interpreter(), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(model), "--served-model-name", SERVED_NAME,
            "--load-format", "dummy", "--skip-tokenizer-init",
            "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16",
            "--max-model-len", str(self.max_model_len),
            "--block-size", str(self.block_size),
            "--max-num-seqs", str(self.max_num_seqs),
            "--max-num-batched-tokens", str(self.max_num_batched_tokens),
            "--scheduling-policy", self.order,
            "--no-enable-prefix-caching", "--enable-per-request-metrics",
            "--tensor-parallel-size", str(self.tp_size),
            "--pipeline-parallel-size", str(self.pp_size),
        ]  # fmt: skip
        if self.log_iterations:
            common.append("--enable-logging-iteration-details")
        if self.async_scheduling is not None:
            common.append("--async-scheduling" if self.async_scheduling else "--no-async-scheduling")
        pool = self.kv_bytes
        if self.device == "cuda":
            share = ["--gpu-memory-utilization", str(self.memory_utilization)]
            fixed = [] if pool is None else ["--kv-cache-memory-bytes", str(pool)]
            return common + share + fixed + (["--enable-sleep-mode"] if self.sleep_mode else [])
        if pool is None:
            pool = (self.kv_blocks + 1) * self.block_size * KV_BYTES_PER_TOKEN
        return [*common, "--enforce-eager", "--kv-cache-memory-bytes", str(pool)]


def environment(settings: LaunchSettings) -> dict[str, str]:
    """Environment of the server: offline, quiet, in its slot, with its log stamped."""
    own = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_CONFIG_PATH": str(LOG_CONFIG),
    }
    if settings.device == "cuda":
        own["CUDA_VISIBLE_DEVICES"] = settings.slot
    else:
        own["VLLM_CPU_OMP_THREADS_BIND"] = settings.slot
        if settings.tp_size * settings.pp_size > 1:
            own["TORCH_COMPILE_DISABLE"] = "1"  # ranks on a CPU share no compiled code
    if settings.sleep_mode:
        own["VLLM_SERVER_DEV_MODE"] = "1"
    # A server does not inherit this process's import path.
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own


def shares_gpu(one: LaunchSettings, other: LaunchSettings) -> bool:
    """Whether two servers have a GPU in common; as vLLM measures free memory when it starts, they start in turn."""
    if one.device != "cuda" or other.device != "cuda":
        return False
    return bool(set(one.slot.split(",")) & set(other.slot.split(",")))
