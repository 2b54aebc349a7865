"""Settings shared by all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# One thread each: contended threads cost more than they give on small networks.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Compilation of the kernel falls into whichever example comes first, so examples have no deadline of their own. They
# are the same in every run, so that what fails is what was changed; SERVING_GYM_EXAMPLES=3000 tries as many new ones.
examples = os.environ.get("SERVING_GYM_EXAMPLES")
settings.register_profile(
    "serving-gym",
    max_examples=int(examples or 100),
    derandomize=examples is None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("serving-gym")

MAX_WORKERS = 4  # about 1.5 GB of memory each


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Spreads the whole suite over the cores, and runs files that are named in this process, where a debugger works."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return 0
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


def pytest_configure(config: pytest.Config) -> None:
    """Lets the workers of a run share what they compile."""
    if hasattr(config, "workerinput"):
        from tests.compile_once import share_compilations  # imports numba, which reads the variable above

        share_compilations(Path(config.option.basetemp).parent / "compilations")
