"""What PreServe's text leaves open, and what this reproduction takes."""

from __future__ import annotations

from dataclasses import dataclass

from serving_gym.runners.reproduction.choices import choice

STRONG, LITERAL = "strong", "literal"
END_TO_END, QUANTILES = "end_to_end", "quantiles"
PUBLISHED, ISOLATED = "published", "isolated"
TOKENS, LONGEST = "tokens", "longest"
PROPORTIONAL, ABSOLUTE = "proportional", "absolute"
PRESENT, FINAL = "present", "final"
RULE, AS_PUBLISHED = "rule", "as_published"
FLOORED, SUSTAINED, AT_ONCE = "floored", "sustained", "at_once"

_ROUTING = ("routing", "overhead")
_SCALING = ("scaling",)


@dataclass(frozen=True)
class PreServeChoices:
    """Choices of PreServe's reproduction; each `why` says what the text leaves open."""

    reading: str = choice(
        STRONG, LITERAL, parts=("routing", "scaling"),
        why="Sections 4.3.2 and 4.3.3 do not say whether overload counts the request, prompts that wait, or leaves "
        "instances out of the arg min, nor whether an instance that stays overloaded is answered once.",
    )  # fmt: skip
    answers: str = choice(
        END_TO_END, QUANTILES, parts=_ROUTING,
        why="Section 5.5's 19.4 s at 72.9 ms a token are answers of 266 tokens; the log-normal through section 3.1.2's "
        "quantiles, cut at 1024, has 159.",
    )  # fmt: skip
    rates: str = choice(
        RULE, AS_PUBLISHED, parts=("routing",),
        why="Section 5.4's rates are its engines'; ours end light load at another one, which stands for its 9.3 by "
        "rule.",
    )  # fmt: skip
    slo: str = choice(
        PUBLISHED, ISOLATED, parts=("routing",),
        why="Section 5.1's 0.2 s are three times the latency of an isolated request on its engines; ours are faster "
        "alone.",
    )  # fmt: skip
    gauges_s: float = choice(
        5.0, 0.0, parts=_ROUTING,
        why="Section 3.2.2 does not say how often MU reads utilisation; monitoring scrapes engines every few seconds.",
    )  # fmt: skip
    magnus_memory: str = choice(
        PRESENT, FINAL, parts=("routing",),
        why="Magnus' memory rule is for static batches; section 5.4 does not say what it becomes on engines that batch "
        "continuously.",
    )  # fmt: skip
    link_bytes_per_s: float = choice(
        12.5e9, 25e9, parts=("routing",),
        why="Section 5.1 has A40s on PCIe and no NVLink: a copy through the host's memory passes a 25 GB/s link twice.",
    )  # fmt: skip
    decision_time: bool = choice(
        True, False, parts=("routing",),
        why="Section 5.5 has 35.9 ms for a prediction and 9.7 ms for the rest, and does not say whether figure 10's "
        "TTFT contains them.",
    )  # fmt: skip
    queue_capacity: int = choice(
        1_000_000, 1_000, parts=("routing",),
        why="Section 4.3.3 aborts a request when the queue's capacity is surpassed, and gives none.",
    )  # fmt: skip
    start_s: float = choice(
        45.0, 300.0, parts=_SCALING,
        why="A start takes 'dozens of seconds' in section 4.1 and 'several minutes' in section 5.2.1.",
    )  # fmt: skip
    scale_in: str = choice(
        FLOORED, SUSTAINED, AT_ONCE, parts=_SCALING,
        why="Section 4.3.2's scale-in within a window comes once usage is 'consistently' low; whether it takes away "
        "what the forecast asked for is open.",
    )  # fmt: skip
    promise: str = choice(
        TOKENS, LONGEST, parts=_SCALING,
        why="Section 5.1 promises 0.2 s a token over the whole latency; a first token after 0.2 s times the service's "
        "median answer keeps it, 9 s are what three times the longest prompt takes alone.",
    )  # fmt: skip
    errors: str = choice(
        PROPORTIONAL, ABSOLUTE, parts=_SCALING,
        why="Section 5.3 draws errors from 'the error proportion distribution' of table 2, which has absolute errors.",
    )  # fmt: skip
    load: float = choice(
        0.8, 0.6, parts=_SCALING,
        why="Section 5.3 does not say how the trace's 44 million requests were thinned for eight A40s.",
    )  # fmt: skip
