"""Trace files: reading all formats of :mod:`serving_gym.envs.workload.reading`, writing our own.

Rows in messages count from 0 after the header. Outputs of 0 tokens (requests that failed or were aborted) become 1.
"""

from __future__ import annotations

from serving_gym.envs.workload.reading.load import load_file
from serving_gym.envs.workload.reading.writing import write_trace

__all__ = ["load_file", "write_trace"]
