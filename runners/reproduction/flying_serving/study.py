"""What the sections share: the models, the policies, and the one rule for rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from serving_gym.runners.reproduction.choices import make_choices
from serving_gym.runners.reproduction.claims import claim_of
from serving_gym.runners.reproduction.flying_serving.choices import (
    BETWEEN,
    PUBLISHED,
    FlyingChoices,
)
from serving_gym.runners.reproduction.flying_serving.choices import LENGTHS as LENGTH_RANGES
from serving_gym.runners.reproduction.measures import geometric_mean, request_capacity_rps
from serving_gym.runners.reproduction.parts import PaperStudy
from serving_gym.runners.reproduction.trials import Trials, run_trials

PAPER = "flying_serving"
make_claim = partial(claim_of, PAPER)
TP, DP, FLYING, SHIFT = "static_tp", "static_dp", "flying_serving", "shift_parallelism"
COMPARED = (TP, DP, FLYING)
LOW_RPS, BURST_RPS, PRIORITY_RPS = (2.0, 5.0), (10.0, 30.0), (3.0, 5.0)  # paper, sections 6.1.3 and 6.3
REQUESTS = 4000  # of an episode; paper, section 6.1.3
LENGTHS = "it depends on the lengths, whose ranges the text has lost, and on the engine"

_CAPACITY_REQUESTS = 8000
_AT_ONCE = 1e6  # rate scale at which all requests arrive within milliseconds
_PATIENT = "env.drain_limit_s=36000"  # nothing is cut off


@dataclass(frozen=True)
class Model:
    """A model of section 6.1.2.

    Attributes:
        name: as in the paper.
        words: what sets its cluster and promises.
        has_shift: whether the paper ran Shift Parallelism on it.
        context: its longest supported context in section 6.5, tokens.
    """

    name: str
    words: tuple[str, ...]
    has_shift: bool
    context: int


_ENGINE = 'cluster.engine=""'  # profiles from kernel tables
LLAMA = Model("Llama-70B", ("experiment=llama3_70b", _ENGINE), True, 8 * 1024)
GPT_OSS = Model("GPT-OSS-120B", ("cluster=gpt_oss_120b_h200", _ENGINE), False, 128 * 1024)
NEMOTRON = Model("Nemotron-8B", ("experiment=nemotron_8b", _ENGINE), True, 1024 * 1024)
MODELS = (LLAMA, GPT_OSS, NEMOTRON)


@dataclass
class Study(PaperStudy):
    """Runs policies and remembers capacities."""

    choices: FlyingChoices = field(init=False)
    _capacities: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choices = make_choices(FlyingChoices, self.config.choices)

    @property
    def length_words(self) -> list[str]:
        """Words that set the lengths of `flying_bursty`."""
        prompts, answers = LENGTH_RANGES[self.choices.lengths]
        return [
            f"workload.params.input_tokens=[{prompts[0]},{prompts[1]}]",
            f"workload.params.output_tokens=[{answers[0]},{answers[1]}]",
        ]

    @property
    def requests(self) -> int:
        """Requests of an episode at the paper's rates."""
        whole = REQUESTS if self.config.requests is None else self.config.requests
        return max(1, whole // 4) if self.config.quick else whole

    def run(self, what: str, words: Sequence[str], policy: str, seeds: Sequence[int] | None = None) -> Trials:
        """One policy on one workload; nothing is cut off before it is done."""
        self.bar.set_postfix_str(f"{what}, {policy}", refresh=False)
        split = f"split={self.config.split}"
        chosen = self.seeds if seeds is None else seeds
        name = self.choices.policy if policy == FLYING else policy
        return run_trials([*words, split, _PATIENT], name, chosen, partial(self.bar.update, 1))

    def capacity_rps(self, model: Model, policy: str) -> float:
        """Requests of `flying_bursty` that a static system finishes a second when all arrive at once."""
        key = (model.name, policy)
        if key not in self._capacities:
            words = [
                *model.words,
                "workload=flying_bursty",
                *self.length_words,
                f"workload.num_requests={_CAPACITY_REQUESTS}",
                f"workload.rate_scale={_AT_ONCE}",
            ]
            trials = self.run(f"capacity of {model.name}", words, policy, [self.config.first_seed])
            self._capacities[key] = request_capacity_rps(trials.episodes[0].records)
        return self._capacities[key]

    def busy_range(self, model: Model, published: tuple[float, float]) -> tuple[float, float]:
        """Rates of the paper's bursts, and of its "sustained queueing pressure", by `choices.burst_load`.

        They are more than static TP can serve and no more than static DP can: between the two measured capacities; or
        the published range moved, by a factor, so that its midpoint is their geometric mean; or as published.
        """
        if self.choices.burst_load == PUBLISHED:
            return published
        capacities = sorted(self.capacity_rps(model, policy) for policy in (TP, DP))
        if self.choices.burst_load == BETWEEN:
            return capacities[0], capacities[1]
        factor = geometric_mean(capacities) / float(np.mean(published))
        return published[0] * factor, published[1] * factor


def range_word(key: str, bounds: tuple[float, float]) -> str:
    """A word that sets a range of the workload."""
    return f"workload.params.{key}=[{bounds[0]!r},{bounds[1]!r}]"
