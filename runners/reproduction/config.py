"""Configuration of `runners.reproduce`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from serving_gym.calibration.lookup import check_choice
from serving_gym.envs.workload.registry import SPLITS
from serving_gym.runners.configuration.schema import check_least

ALL = "all"
DEFAULT_SEEDS = 3
PAPERS = ("flying_serving", "llm_mesh", "oserve", "preserve", "sageserve")


@dataclass(frozen=True)
class ReproduceConfig:
    """Configuration of `runners.reproduce`.

    Attributes:
        paper: name of the paper; `all`: every one.
        out: run directory.
        only: parts of the paper's evaluation to run; empty: all, with `quick` a selection.
        quick: whether to run only one short episode of each.
        seeds: episodes of each policy on each workload; None: three, with `all` as many as an hour has room for; quick
            takes one.
        first_seed: seed of the first; the others follow it.
        requests: requests of an episode at the paper's rates; None: as in the paper; fewer with quick.
        split: split of the workloads that episodes are drawn from.
        choices: what the paper leaves open, by name; `runners.reproduce` lists each paper's.
        sensitivity: choices whose other values are run as well, one at a time; `all`: every one.
        spread: whether each seed is also run alone, for the range of the figures.
        save: whether the claims are kept in the repository, and its page of reproductions is written again.
        processes: worker processes of `paper=all`.
    """

    out: str
    paper: str = "flying_serving"
    only: tuple[str, ...] = ()
    quick: bool = False
    seeds: int | None = None
    first_seed: int = 0
    requests: int | None = None
    split: str = "test"
    choices: dict[str, Any] = field(default_factory=dict)
    sensitivity: tuple[str, ...] = ()
    spread: bool = False
    save: bool = False
    processes: int = 2

    def __post_init__(self) -> None:
        check_choice("paper", self.paper, (*PAPERS, ALL))
        if self.paper == ALL:
            for name in ("only", "choices", "sensitivity", "spread", "save"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} is given with paper=all; it is for one paper: {', '.join(PAPERS)}"
                    )
        if self.save and (self.quick or self.requests is not None or self.choices):
            raise ValueError(
                "save is true; only whole parts are kept: no quick, requests or choices beside it"
            )
        check_choice("split", self.split, SPLITS)
        if self.seeds is not None:
            check_least("seeds", self.seeds, 1)
        check_least("processes", self.processes, 1)
        check_least("first_seed", self.first_seed, 0)
        if self.requests is not None:
            check_least("requests", self.requests, 1)
