"""Settings of the agent that learns when models are asked for again; free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.agents.config import AgentConfig
from serving_gym.baselines.common.keep_warm import KeepWarmConfig
from serving_gym.calibration.fields import check_at_least


@dataclass(frozen=True, kw_only=True)
class ReuseConfig(AgentConfig):
    """What to keep in memory, by when it is asked for again.

    Attributes:
        total_steps: Moments to learn from, where the command line does not say.
        learning_rate: Of Adam; it falls to a twentieth.
        width: Of the network's two hidden layers.
        moments: Drawn of every model of an episode.
        episodes: Whose moments are drawn in a round.
        passes: How often each moment is learned from, on average.
        batch_size: Moments in a step.
        most_moments: Kept, the last ones.
        fill: As `KeepWarmConfig.fill`.
    """

    name: str = "reuse"
    total_steps: int = 2_000_000
    learning_rate: float = 2e-3
    width: int = 128
    moments: int = 6
    episodes: int = 20
    passes: int = 12
    batch_size: int = 1024
    most_moments: int = 2_000_000
    fill: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(
            self, 1, "width", "moments", "episodes", "passes", "batch_size", "most_moments", prefix="agent."
        )
        KeepWarmConfig(fill=self.fill)
