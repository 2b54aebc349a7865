"""Fixtures shared by the workload tests."""

import os

import pytest

from serving_gym.envs.workload import traces


@pytest.fixture
def no_traces(tmp_path, monkeypatch):
    """A machine without any trace: no data folder, an empty cache."""
    monkeypatch.delenv(traces.DATA_VARIABLE, raising=False)
    monkeypatch.setattr(traces, "cache_dir", lambda: tmp_path / "empty-cache")


@pytest.fixture
def real_traces():
    """Skips where the real traces are not at hand."""
    if traces.DATA_VARIABLE not in os.environ:
        pytest.skip(f"{traces.DATA_VARIABLE} is not set")
