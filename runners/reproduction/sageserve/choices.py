"""What SageServe's text leaves open, and what is taken here."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.runners.reproduction.choices import choice

SCALING = ("peak", "november", "ablations", "scout", "burst", "pools", "week")
THRESHOLDS = {"70/30": (0.7, 0.3), "50/25": (0.5, 0.25)}  # add above, take away below


@dataclass(frozen=True)
class SageServeChoices:
    """Choices of the study of SageServe; `why` of each field says what is open."""

    thresholds: str = choice(
        "70/30",
        "50/25",
        parts=SCALING,
        why="Sections 4 and 6.4 say 70 and 30 %; the authors' public code has 50 and 25 %.",
    )
    scale_in: str = choice(
        "below_ratio",
        "immediate",
        parts=SCALING,
        why="Section 6.4 takes instances away below 30 %; the public code goes down to the plan at once.",
    )
    forecaster: str = choice(
        "arima",
        "arima_daily",
        "oracle",
        parts=SCALING,
        why="Section 6.3 says ARIMA, with orders by AIC, and names no season; oracle: the expected traffic, a bound.",
    )
    beta: float = choice(
        0.1,
        1.0,
        parts=SCALING,
        why="Section 6.3 sets 10 %, which leaves no room for the other 90 % of the non-interactive load.",
    )
    priorities: str = choice(
        "one",
        "by tier",
        parts=SCALING,
        why="Section 6.1 gives all interactive requests priority 0; by tier: IW-N stands behind IW-F and "
        "behind aged NIW.",
    )
    release: str = choice(
        "completion",
        "signal",
        parts=SCALING,
        why="Section 6.1 says that endpoints signal periodically; the public simulator looks at each completion.",
    )
    load: str = choice(
        "realised",
        "noiseless",
        parts=SCALING,
        why="The load is not published; the tokens of each seed's day, or those of the day without noise, are set.",
    )
    theta_probes: int = choice(
        20_000,
        1500,
        parts=SCALING,
        why="Section 5 says that theta is benchmarked, and not on how many requests; ours.",
    )
    a100: str = choice(
        "section 2.1",
        "measured",
        parts=("ablations", "pools"),
        why="Section 2.1: an A100 serves 0.56 to 0.72 of H100's tokens/s at the target latency (Llama-2, Q3 and Q1); "
        "measured: by the second to the first token of IW-F.",
    )
    kv_heads: str = choice(
        "all",
        "grouped",
        parts=SCALING,
        why="The simulator that the paper extends knows a model's hidden size alone and keeps keys and "
        "values of all heads.",
    )
    decision_s: float = choice(
        15.0,
        60.0,
        parts=SCALING,
        why="The paper decides with each request, within a cooldown of 15 s; here by period.",
    )
    burst_s: float = choice(
        3600.0, 900.0, parts=("burst",), why="Section 7.2.7 gives a burst's height, not its length."
    )
    light_ratio: float = choice(
        0.05,
        0.1,
        parts=("pools",),
        why="Section 4 says that the small models stay at their fewest instances, not at which load.",
    )

    epsilon: float = choice(
        0.8,
        1.0,
        parts=("planning", "regions"),
        why="Section 5 allows any share in (0, 1] of its own peak that a region serves itself, and names none.",
    )
    machines: int = choice(
        16,
        40,
        parts=("regions",),
        why="Section 7.1 gives 20 instances of a model in a region, not a region's machines; 16 for two models are "
        "scarce, 40 as many as both may want.",
    )
    iw_n_sla_s: float = choice(
        5.6,
        60.0,
        parts=("tiers",),
        why="Section 2.2 says less than a minute; but a quarter of IW-N violates its SLA under FCFS, and Q3 of its "
        "TTFT is 5.6 s.",
    )
    tau_n_s: float = choice(
        5.0, 1.0, 20.0, parts=("tiers",), why="Section 6.5 gives no threshold of severe expiry."
    )
    tau_p_s: float = choice(
        1.0, 0.25, 4.0, parts=("tiers",), why="Section 6.5 gives no threshold of urgency."
    )

    @property
    def ratios(self) -> dict[str, float]:
        """Thresholds of the scalers."""
        above, below = THRESHOLDS[self.thresholds]
        return {"out_above_ratio": above, "in_below_ratio": below}
