"""Constants of the Flying Serving policy and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving_gym.baselines.common.layouts import parse_mode
from serving_gym.baselines.policy import Constants, tunable, tunable_choice
from serving_gym.calibration.fields import check_at_least, check_not_negative, check_positive, check_within
from serving_gym.calibration.lookup import check_choice

_MODES = ("load_merge_mode", "load_split_mode", "priority_mode", "long_mode", "release_mode")
_POSITIVE = (
    "split_waiting_per_gpu",
    "split_requests_per_gpu",
    "split_tokens_per_gpu",
    "rate_smoothing_s",
    "priority_load_limit",
    "max_pause_s",
)
_NOT_NEGATIVE = ("smoothing_s", "dwell_s", "priority_linger_s")
LOAD_SIGNALS = QUEUE, REQUESTS = ("queue", "requests")


@dataclass(frozen=True)
class FlyingServingConfig(Constants):
    """Constants of `FlyingServingPolicy`. The paper names no threshold at all: those are ours, to be tuned.

    Attributes:
        adapt_to_load: Use case 1: groups under light load, DP in bursts. Source: sections 2.3 and 3.
        bind_for_priority: Use case 2: a group for requests of high priority. Source: sections 2.3 and 3.
        bind_for_long_context: Use case 3: a group for requests that no engine holds. Source: sections 2.3 and 3.
        widths: Group lengths from light to heavy load, base engines; empty: the whole node and 1, the two modes that
            the paper evaluates (section 6.2: "remains in TP", "switches to DP").
        load_signal: `queue`: groups are dissolved when "request queues build up" (section 2.3): by requests that wait
            and prompt tokens yet to be computed. `requests`: by all requests in the system in place of those that wait.
        split_waiting_per_gpu: Waiting requests per GPU above which groups are dissolved, with `load_signal=queue`.
            Source: ours.
        split_requests_per_gpu: Requests in the system per GPU above which groups are dissolved, with
            `load_signal=requests`. Source: ours.
        split_tokens_per_gpu: Prompt tokens yet to be computed per GPU above which groups are dissolved: "merge before
            the queue builds, split once it has" (authors' release). Source of the number: ours.
        hysteresis_ratio: Groups are formed again below this share of the load they are dissolved at, 0 to 1. Source:
            ours.
        width_growth_ratio: Thresholds of each narrower width over those of the one before. Source: ours.
        weigh_switch: Whether groups are formed only when few requests are in the system (`split_requests_per_gpu`), or
            when the load has been low for as long as the switch would take now (a drain, and 15 ms) and prompts arrive
            more slowly than when the wider groups last built up a queue; at that rate groups are dissolved ahead of
            the queue. Source: ours, for "without stalling the serving loop" (section 5).
        rate_smoothing_s: Time constant of that rate of arrival, seconds. Source: ours, chosen by light-load TTFT on
            section 6.2's workload, as is that few requests merge at once; of 1, 3, 10 and 30 s also the best on six
            validation episodes of `flying_bursty` and of `chat_code_agents`.
        smoothing_s: Time constant of the mean that a merge waits for, seconds; 0 for none. Source: ours.
        dwell_s: Least time between two switches on account of load, seconds. Source: ours.
        load_merge_mode: Soft preempt (section 5.2.2, "rebalancing as load fluctuates").
        load_split_mode: The text describes no way from TP to DP other than to wait; the authors' release preempts.
        priority_classes: Names of the request classes of high priority. Source: ours.
        priority_share: Share of the node that is bound for them, rounded to a power of two of base engines. Source:
            ours; the text says "a subset of engines".
        priority_only_waiting: Whether a group is bound only while no priority request has its first token, so that hard
            preempt pauses none of them. Off: "immediate service" (section 5.2.3).
        limit_priority_by_load: Whether `priority_load_limit` applies. Off: "immediate service" (section 5.2.3).
        priority_load_limit: Load over the split thresholds (1: the load at which groups are dissolved) above which no
            group is kept for priority, because the rest of the node would not drain its queue: "adapting parallelism
            to drain backlog" (section 6.3). Source of the number: ours.
        priority_mode: Hard preempt (section 5.2.3).
        priority_linger_s: How long the group outlives its last request of high priority, seconds. 0: released "after
            the TP request completes" (section 5.2.3).
        max_pause_s: How long a priority group may keep DP requests paused before another subset takes its turn,
            seconds; without it a steady stream of priority requests would pause them for ever. Source: ours.
        escalate: Whether a priority request that finds every subset in transition hurries the stragglers by hard
            preempt. Source: ours.
        long_classes: Names of request classes of long contexts; their requests in flight keep the group. Source: ours.
        long_groups: `many`: as many groups as the share of long prompts in the work that is queued fills, one request a
            group; `one`: one group.
        long_capacity_ratio: Share of an engine's KV capacity above which a request is long; 1: only what does not fit
            ("exceeds the limits of any single engine", section 2.3).
        long_mode: Soft preempt (section 5.2.2, "parts of use case 3").
        release_mode: How a bound group is given back: sequential waits for what it runs, "engines are released once
            the request progresses past the memory-critical phase" (section 3). Source of the mode: ours.
    """

    adapt_to_load: bool = True
    bind_for_priority: bool = True
    bind_for_long_context: bool = True
    widths: Sequence[int] = ()
    load_signal: str = tunable_choice(QUEUE, REQUESTS)
    split_waiting_per_gpu: float = tunable(0.25, 0.05, 8.0, log=True)
    split_requests_per_gpu: float = tunable(2.0, 0.25, 64.0, log=True)
    split_tokens_per_gpu: float = tunable(4096.0, 256.0, 65536.0, log=True)
    hysteresis_ratio: float = tunable(0.9, 0.1, 0.95)
    width_growth_ratio: float = tunable(2.0, 1.0, 8.0, log=True)
    weigh_switch: bool = tunable_choice(True, False)
    rate_smoothing_s: float = tunable(3.0, 1.0, 30.0, log=True)
    smoothing_s: float = tunable(0.0, 0.0, 30.0)
    dwell_s: float = tunable(1.0, 1.0, 60.0, log=True)
    load_merge_mode: str = tunable_choice("soft", "hard", "sequential")
    load_split_mode: str = tunable_choice("hard", "soft", "sequential")
    priority_classes: Sequence[str] = ("priority",)
    priority_share: float = tunable(0.5, 0.25, 1.0, log=True)
    priority_only_waiting: bool = False
    limit_priority_by_load: bool = False
    priority_load_limit: float = tunable(4.0, 0.5, 20.0, log=True)
    priority_mode: str = "hard"
    priority_linger_s: float = tunable(0.0, 0.0, 10.0)
    max_pause_s: float = tunable(10.0, 2.0, 60.0, log=True)
    escalate: bool = True
    long_classes: Sequence[str] = ("long",)
    long_groups: str = "many"
    long_capacity_ratio: float = tunable(1.0, 0.05, 1.0, log=True)
    long_mode: str = "soft"
    release_mode: str = "sequential"

    def __post_init__(self) -> None:
        for name in _MODES:
            parse_mode(getattr(self, name), name)
        check_choice("load_signal", self.load_signal, LOAD_SIGNALS)
        check_choice("long_groups", self.long_groups, ("many", "one"))
        check_positive(self, *_POSITIVE)
        check_not_negative(self, *_NOT_NEGATIVE)
        check_within(self, "[0, 1)", "hysteresis_ratio")
        check_at_least(self, 1, "width_growth_ratio")
        check_within(self, "(0, 1]", "priority_share", "long_capacity_ratio")
        if list(self.widths) != sorted(set(self.widths), reverse=True):
            raise ValueError(f"widths must descend from light to heavy load, got {list(self.widths)}")
