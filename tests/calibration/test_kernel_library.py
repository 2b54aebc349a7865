"""Fitting kernels without the measurements destroys nothing."""

from pathlib import Path

import pytest

from serving_gym.calibration.fitting.kernel_library import write_library


def test_nothing_is_written_without_the_reference_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERVING_GYM_DATA", raising=False)
    with pytest.raises(ValueError, match="SERVING_GYM_DATA"):
        write_library(tmp_path)
    assert list(tmp_path.iterdir()) == []
