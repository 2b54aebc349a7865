"""Files of an evaluation: the list of requests as vLLM's benchmark has it is not written for millions of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving_gym.runners import evaluate
from serving_gym.runners.reporting import episode_files

WORDS = ["env=routing", "policy=jsq", "workload.num_requests=30", "seeds=1"]


@pytest.mark.parametrize(("detailed", "there"), [("false", False), ("true", True)])
def test_long_lists_of_requests_are_written_when_asked_for(
    detailed: str,
    there: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(episode_files, "MOST_REPORTED", 29)
    assert evaluate.main([*WORDS, f"detailed={detailed}", f"out={tmp_path}"]) == 0
    assert (tmp_path / "requests.json").is_file() == there
    assert (tmp_path / "requests.parquet").is_file()
    assert ("30 requests are in requests.parquet" in capsys.readouterr().out) != there
