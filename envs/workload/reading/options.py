"""What a user says about a trace file where the reader should not infer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving_gym.calibration.fields import check_positive
from serving_gym.calibration.lookup import check_choice

UNITS_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
OWN_COLUMNS = (
    *("arrival_s", "input_tokens", "output_tokens", "max_output_tokens", "predicted_tokens", "priority"),
    *("class", "model", "region", "hash_ids", "hash_block_tokens"),
    *("session_id", "delay_s", "after", "patience_s"),
)


@dataclass(frozen=True)
class ReadOptions:
    """Overrides of what is inferred from a trace file.

    Attributes:
        time_unit: unit of its times, "s", "ms", "us" or "ns"; None: inferred.
        rebase: whether times are counted from the first arrival; None: inferred.
        columns: column of the file, by the name of ours that it stands for.
        max_gap_s: longest time between two arrivals, seconds; longer ones are cut to it. None: none is cut unless the
            trace is longer than a run can be.
    """

    time_unit: str | None = None
    rebase: bool | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    max_gap_s: float | None = None

    def __post_init__(self) -> None:
        if self.time_unit is not None:
            check_choice("time_unit", str(self.time_unit), UNITS_PER_S)
        check_positive(self, "max_gap_s", finite=True)
        if not isinstance(self.columns, Mapping):
            raise ValueError(
                f"columns must be a mapping, as {{input_tokens: prompt_len}}, got {self.columns!r}"
            )
        for own, name in self.columns.items():
            check_choice("column in columns", str(own), OWN_COLUMNS)
            if not isinstance(name, str) or not name:
                raise ValueError(f"columns.{own} must name a column of the file, got {name!r}")

    @property
    def given(self) -> bool:
        """Whether anything is said at all."""
        return bool(self.time_unit or self.columns) or self.rebase is not None or self.max_gap_s is not None
