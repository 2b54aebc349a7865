"""What vllm-router is asked, and with which options: prompts sent, held open and finished, and prunings waited for.

A step is ["send", prompt, held], ["finish", number of the request] or ["prune"]. Prompts are token ids, which the
router takes without a tokenizer; a held request is one that its worker has not answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Step = list  # JSON: ["send", [1, 2, 3], True], ["finish", 0], ["prune"]

PRUNE_INTERVAL_S = 1


@dataclass(frozen=True)
class Script:
    """One run of the router.

    Attributes:
        name: What it is called.
        policy: Name of the policy, in vllm-router as here.
        num_workers: Workers behind it.
        options: Constants of the policy, by their names here.
        steps: What happens.
    """

    name: str
    policy: str
    num_workers: int
    steps: list[Step]
    options: dict[str, float] = field(default_factory=dict)


def scripts() -> list[Script]:
    """All of them."""
    return [
        Script("round_robin", "round_robin", 3, _traffic(0, 30)),
        Script("power_of_two", "power_of_two", 2, _traffic(1, 120)),
        Script("power_of_four", "power_of_two", 4, _traffic(2, 120)),
        Script("cache_aware", "cache_aware", 4, _traffic(3, 150)),
        Script(
            "cache_aware_balancing",
            "cache_aware",
            3,
            _traffic(4, 150),
            {"cache_threshold": 0.5, "balance_abs_threshold": 2, "balance_rel_threshold": 1.5},
        ),
        Script(
            "cache_aware_by_ratio",
            "cache_aware",
            3,
            _traffic(5, 150),
            {"cache_threshold": 0.7, "balance_abs_threshold": 1, "balance_rel_threshold": 2.0},
        ),
        Script("cache_aware_thresholds", "cache_aware", 3, _thresholds(), {"cache_threshold": 0.7}),
        Script(
            "cache_aware_pruned",
            "cache_aware",
            3,
            _pruned(6),
            {"eviction_interval_s": PRUNE_INTERVAL_S, "max_tree_size": 8 * 40},
        ),
    ]


def _traffic(seed: int, num_sent: int) -> list[Step]:
    """Prompts of a few families that grow from common beginnings; requests end at random."""
    rng = np.random.default_rng(seed)
    families = [rng.integers(1, 500, 16).tolist() for _ in range(5)]
    steps: list[Step] = []
    running: list[int] = []
    for number in range(num_sent):
        family = families[rng.integers(len(families))]
        prompt = [*family[: rng.integers(1, 17)], *rng.integers(1, 500, rng.integers(0, 9)).tolist()]
        held = bool(rng.random() < 0.7)
        steps.append(["send", prompt, held])
        if held:
            running.append(number)
        while running and rng.random() < 0.35:
            steps.append(["finish", running.pop(int(rng.integers(len(running))))])
    return steps


def _thresholds() -> list[Step]:
    """Shares of 0.6, 0.7 and 0.875 around a threshold of 0.7, which in single precision is a little less."""
    steps: list[Step] = [["send", list(range(1, 8)), True]]  # seven tokens, to the first worker
    for number, shared in enumerate((6, 7, 7)):  # of ten
        rest = range(100 * (number + 1), 100 * (number + 1) + 10 - shared)
        steps.append(["send", [*range(1, 1 + shared), *rest], True])
    steps.append(["send", list(range(1, 9)), True])  # seven of eight
    return steps


def _pruned(seed: int) -> list[Step]:
    """Bursts of prompts with a pruning before each; more of them than a worker may hold in the tree."""
    rng = np.random.default_rng(seed)
    families = [rng.integers(1, 500, 10).tolist() for _ in range(8)]
    steps: list[Step] = []
    for burst in range(12):
        steps.append(["prune"])
        for _ in range(8):
            family = families[rng.integers(len(families))]
            prompt = [*family[: rng.integers(3, 11)], *rng.integers(1, 500, rng.integers(0, 6)).tolist()]
            steps.append(["send", prompt, True])
        steps += [["finish", number] for number in range(8 * burst, 8 * burst + 8)]
    return steps
