"""Configuration of `runners.animate`."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.calibration.fields import check_positive
from serving_gym.envs.registration import usual_policies
from serving_gym.runners.configuration.schema import EnvironmentConfig, check_least

MOST_POLICIES = 3  # side by side; more cannot be read


@dataclass(frozen=True, kw_only=True)
class AnimateConfig(EnvironmentConfig):
    """Configuration of `runners.animate`.

    Attributes:
        out: Run directory.
        policies: One to three policies, drawn side by side on the same episode; None: the first and the last of the
            environment's usual ones.
        split: Split of the workload that the episode is drawn from.
        seed: Seed of the episode.
        from_s: Simulated time at which the animation begins, seconds.
        to_s: Simulated time at which it ends, seconds; None: the end of the episode.
        seconds: Length of the animation, seconds.
        fps: Pictures per second.
        scale: Pixels of a logical unit; a picture has 640 x 500 units.
        max_mb: Largest file, MB; a larger one is written again with every second picture left out.
    """

    out: str
    policies: tuple[str, ...] | None = None
    split: str | None = "test"
    seed: int = 0
    from_s: float = 0.0
    to_s: float | None = None
    seconds: float = 15.0
    fps: float = 6.0
    scale: float = 1.0
    max_mb: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "seconds", "fps", "scale", "max_mb", "to_s", finite=True)
        check_least("seed", self.seed, 0)
        if not 1 <= len(self.shown) <= MOST_POLICIES:
            raise ValueError(
                f"policies must name 1 to {MOST_POLICIES} policies, as in policies=[static_4x2,zoo/dp_tp], "
                f"got {len(self.shown)}"
            )
        if not 0 <= self.from_s < (float("inf") if self.to_s is None else self.to_s):
            raise ValueError(f"from_s must lie between 0 and to_s ({self.to_s}), got {self.from_s}")

    @property
    def shown(self) -> tuple[str, ...]:
        """The policies."""
        if self.policies is not None:
            return self.policies
        usual = usual_policies(self.env["name"])
        return (usual[0], usual[-1])

    @property
    def num_frames(self) -> int:
        """Pictures of the animation."""
        return max(2, round(self.seconds * self.fps))
