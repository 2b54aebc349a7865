"""Constants of SageServe's routing and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from serving_gym.baselines.policy import Tunable
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within

_RATIOS = ("region_threshold_ratio", "one_below_ratio", "two_below_ratio")
_NOT_NEGATIVE = ("deadline_s", "aged_s", "deadline_margin_s")
_PRIORITIES = ("interactive_priority", "niw_priority", "aged_priority")


@dataclass(frozen=True)
class SageServeRoutingConfig:
    """Constants of `SageServeRoutingPolicy`.

    Attributes:
        region_threshold_ratio: Effective memory utilisation under which a region takes an interactive request by
            preference, 0 to 1. Source: section 6.1 ("e.g., 70%, based on production systems").
        proximity: By region that a request comes from, the other regions in order of preference; its own always comes
            first, regions not named come last, by network latency. Source: section 6.1 ("an order of preference, e.g.,
            based on network proximity"); the paper gives no order.
        deployment_instances: Most instances of a deployment. Source: section 7.1 (from two to three).
        niw_classes: Names of the request classes that are not interactive. Source of the names: ours.
        signal_period_s: How often endpoints signal the queue manager, seconds; signals are looked at when a held
            request is offered again, so not more often than that. Source: ours, section 6.1 says "periodically".
        one_below_ratio: Effective memory utilisation of an endpoint below which a signal releases one request, 0 to 1.
            Source: section 6.2.
        two_below_ratio: ... below which it releases two. Source: section 6.2.
        deadline_s: When a non-interactive request must be done, seconds after its arrival. Source: section 6.2 (24 h).
        aged_s: Age above which a non-interactive request is on a par with interactive ones, seconds. Source: section
            6.2 (10 h).
        deadline_margin_s: A request that has no more than this left to its deadline is sent without waiting for a
            signal, seconds. Section 4 says "when the SLA deadline for the request is approaching". Source of the
            number: ours.
        interactive_priority: Priority that engines give interactive requests; null: the request's own, where engines
            tell several interactive tiers apart (section 6.5). Source: section 6.1 (0).
        niw_priority: Priority of non-interactive requests. Source: section 6.2 (1).
        aged_priority: Priority of those that have waited too long. Source: section 6.2 (0).
    """

    region_threshold_ratio: float = 0.7
    proximity: Mapping[str, Sequence[str]] = field(default_factory=dict)
    deployment_instances: int = 3
    niw_classes: Sequence[str] = ("niw", "batch")
    signal_period_s: float = 1.0
    one_below_ratio: float = 0.6
    two_below_ratio: float = 0.5
    deadline_s: float = 24 * 3600.0
    aged_s: float = 10 * 3600.0
    deadline_margin_s: float = 3600.0
    interactive_priority: int | None = 0
    niw_priority: int = 1
    aged_priority: int = 0

    def __post_init__(self) -> None:
        check_within(self, "(0, 1]", *_RATIOS)
        if self.two_below_ratio > self.one_below_ratio:
            raise ValueError(
                f"two_below_ratio must be at most one_below_ratio ({self.one_below_ratio}), got {self.two_below_ratio}"
            )
        check_at_least(self, 1, "deployment_instances")
        check_positive(self, "signal_period_s")
        check_not_negative(self, *_NOT_NEGATIVE)
        for name in _PRIORITIES:
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    @staticmethod
    def tunables() -> dict[str, Tunable]:
        """Constants that a tuner may search."""
        return {
            "region_threshold_ratio": Tunable(0.3, 0.95),
            "one_below_ratio": Tunable(0.5, 0.95),
            "two_below_ratio": Tunable(0.1, 0.5),
            "signal_period_s": Tunable(0.1, 60.0, log=True),
        }
