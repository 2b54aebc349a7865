"""What Flying Serving's evaluation leaves open."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.runners.reproduction.choices import choice

P90_TTFT, MEAN_TTFT, MEAN_E2E = "P90 TTFT", "mean TTFT", "mean latency"
BETWEEN, SCALED, PUBLISHED = "between", "scaled", "published"

# Tokens of prompts and of answers, uniform (section 6.1.3). Source: ours: ranges whose means are of the order of the
# three datasets: ShareGPT 161 and 338 (Kwon et al., 2023, figure 11), long code conversations, short code problems.
LENGTHS: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "mixed": ((512, 4096), (64, 512)),
    "sharegpt": ((4, 320), (4, 672)),
    "code_act": ((512, 2432), (32, 256)),
    "humaneval": ((64, 256), (16, 256)),
}


@dataclass(frozen=True)
class FlyingChoices:
    """Choices of the study."""

    burst_load: str = choice(
        BETWEEN, SCALED, PUBLISHED, parts=("bursts", "priority"),
        why="Section 6.2's bursts overload TP and not DP, at rates that depend on lengths the text has lost: between "
        "the two measured capacities; the published range scaled to their geometric mean; or as published.",
    )  # fmt: skip
    lengths: str = choice(
        "mixed", "sharegpt", "code_act", "humaneval", parts=("bursts",),
        why="Section 6.1.3 names three datasets and uniform lengths, whose ranges the text has lost.",
    )  # fmt: skip
    low_duration_s: tuple[float, float] = choice(
        (40.0, 80.0),
        (80.0, 160.0),
        parts=("bursts",),
        why="How long low load lasts is not stated (section 6.1.3).",
    )
    burst_duration_s: tuple[float, float] = choice(
        (15.0, 40.0),
        (30.0, 80.0),
        parts=("bursts",),
        why="How long a burst lasts is not stated (section 6.1.3).",
    )
    speedup: str = choice(
        P90_TTFT, MEAN_TTFT, MEAN_E2E, parts=("bursts",), why="Section 1 names no metric of its two speedups."
    )
    policy: str = choice(
        "flying_serving", "flying_serving_requests", "flying_serving_hard", "flying_serving_gated",
        parts=("bursts", "priority", "long_context"),
        why="Sections 2.3 and 5.2 name no trigger: queues and the cost of a switch now, or requests in the system; "
        "nor how engines come together for light load, nor how much priority may cost the others.",
    )  # fmt: skip
    priority_share: float = choice(
        0.2, 0.05, 0.5, parts=("priority",), why="Section 6.3 does not state the share of priority requests."
    )
    at_once: int = choice(
        64,
        16,
        parts=("long_context",),
        why="Section 6.5 does not state how many prompts its throughput is of.",
    )
    alone_share: float = choice(
        0.02, 0.2, parts=("long_context",),
        why="Section 6.5 does not state the load of its latencies, as a share of the throughput.",
    )  # fmt: skip
