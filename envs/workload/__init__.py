"""Streams of requests: real traces, fitted generators, synthetic loads of papers, and splits."""

from serving_gym.envs.workload.mixing import with_long_prompts, with_priorities
from serving_gym.envs.workload.registry import (
    SPLITS,
    WorkloadSource,
    WorkloadSpec,
    make_workload,
    workload_names,
)
from serving_gym.envs.workload.schema import Workload
from serving_gym.envs.workload.traces import load_file, load_trace, read_trace

__all__ = [
    "SPLITS",
    "Workload",
    "WorkloadSource",
    "WorkloadSpec",
    "load_file",
    "load_trace",
    "make_workload",
    "read_trace",
    "with_long_prompts",
    "with_priorities",
    "workload_names",
]
