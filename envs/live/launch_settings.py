"""What a locally launched server is started with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from envs.live.tiny_model import KV_BYTES_PER_TOKEN

PYTHON_VARIABLE = "SERVING_GYM_VLLM_PYTHON"
SERVED_NAME = "tiny"
# Stamps every line to the microsecond: vLLM's own format stops at the second.
LOG_CONFIG = Path(__file__).with_name("vllm_logging.json")


@dataclass(frozen=True)
class LaunchSettings:
    """A vLLM server of the tiny model on this machine's CPU, on a free loopback port.

    Attributes:
        python: Python with vLLM; None: the one that SERVING_GYM_VLLM_PYTHON names.
        block_size: Tokens a KV block holds.
        kv_blocks: KV blocks for requests; vLLM keeps one more back.
        max_model_len: Longest request, tokens.
        max_num_seqs: Most running requests.
        max_num_batched_tokens: Token budget of an iteration.
        order: fcfs or priority.
        start_within_s: Longest time from start to first answer, seconds.
        stop_within_s: Time to end in order before it is killed, seconds.
    """

    python: str | None = None
    block_size: int = 32
    kv_blocks: int = 511
    max_model_len: int = 2048
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    order: str = "fcfs"
    start_within_s: float = 240.0
    stop_within_s: float = 15.0

    def interpreter(self) -> str:
        """Python to start the server with.

        Raises:
            ValueError: none is named, or it does not exist.
        """
        python = self.python or os.environ.get(PYTHON_VARIABLE)
        if not python:
            raise ValueError(
                f"backend.python is not set: name a Python that has vllm, there or in {PYTHON_VARIABLE}"
            )
        if not Path(python).is_file():
            raise ValueError(f"backend.python={python!r} does not exist")
        return python

    def arguments(self, model: Path, port: int) -> list[str]:
        """Command line of the server."""
        return [
            self.interpreter(), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(model), "--served-model-name", SERVED_NAME,
            "--load-format", "dummy", "--skip-tokenizer-init",
            "--host", "127.0.0.1", "--port", str(port),
            "--enforce-eager", "--dtype", "bfloat16",
            "--max-model-len", str(self.max_model_len),
            "--block-size", str(self.block_size),
            "--kv-cache-memory-bytes", str((self.kv_blocks + 1) * self.block_size * KV_BYTES_PER_TOKEN),
            "--max-num-seqs", str(self.max_num_seqs),
            "--max-num-batched-tokens", str(self.max_num_batched_tokens),
            "--scheduling-policy", self.order,
            "--no-enable-prefix-caching", "--enable-per-request-metrics", "--enable-logging-iteration-details",
        ]  # fmt: skip


def environment() -> dict[str, str]:
    """Environment of the server: offline, quiet, unpinned, with its log stamped."""
    own = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0",
        "VLLM_LOGGING_CONFIG_PATH": str(LOG_CONFIG),
    }
    # A server sees nothing of this process's own import path.
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own
