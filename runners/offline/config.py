"""Words of `runners.collect`."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.calibration.fields import check_within
from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.registration import usual_policies
from serving_gym.runners.configuration.schema import RunConfig

FORMATS = ("parquet", "arrow", "hdf5")  # of Minari 0.5


@dataclass(frozen=True, kw_only=True)
class CollectConfig(RunConfig):
    """Configuration of `runners.collect`.

    Attributes:
        policies: files in `configs/policy`, `zoo/NAME`, or checkpoint folders; None: the environment's usual ones.
        explore: share of decisions replaced by random possible actions, which `infos["explored"]` marks.
        data_format: how Minari stores episodes: "parquet", "arrow" or "hdf5" (which needs the package h5py).
    """

    split: str = "train"
    policies: tuple[str, ...] | None = None
    explore: float = 0.0
    data_format: str = "parquet"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(self, "[0, 1]", "explore")
        check_choice("data_format", self.data_format, FORMATS)
        if not self.collected:
            raise ValueError("policies must name at least one policy, as in policies=[random,jsq]")
        twice = sorted({name for name in self.collected if self.collected.count(name) > 1})
        if twice:
            raise ValueError(f"policies names {twice[0]!r} more than once")

    @property
    def collected(self) -> tuple[str, ...]:
        """The policies whose episodes are collected."""
        return usual_policies(self.env["name"]) if self.policies is None else self.policies
