"""Words of `runners.curves`."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.runners.configuration.schema import check_least
from serving_gym.runners.configuration.train_config import TrainConfig

DEFAULT = "default"
# Words of the command itself; all others are handed to each training.
OWN_WORDS = ("agents", "seeds", "first_seed", "processes", "baselines", "figures", "out")
REFUSED = ("agent", "seed", "resume", "report", "tracker", "split")  # each training's own


@dataclass(frozen=True, kw_only=True)
class CurvesConfig(TrainConfig):
    """Words of `runners.curves`: those of `runners.train`, and how many trainings there are.

    Attributes:
        agents: files in configs/agent; "default": the environment's default agent.
        seeds: trainings of each agent.
        first_seed: seed of the first; the others follow it.
        processes: trainings side by side; above the number of cores that a training uses alone, time-limited ones
            learn less.
        baselines: policies whose validation return is drawn as a line; None: the environment's usual ones.
    """

    agents: tuple[str, ...] = (DEFAULT, "ppo")
    processes: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least("processes", self.processes, 1)
        if not self.agents:
            raise ValueError("agents must name at least one agent, as in agents=[default,ppo]")
        twice = sorted({name for name in self.agents if self.agents.count(name) > 1})
        if twice:
            raise ValueError(f"agents names {twice[0]!r} more than once")
