"""Parts of a paper's evaluation, and their selection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.configuration.schema import ReproduceConfig
from serving_gym.runners.reporting.progress import progress_bar, say
from serving_gym.runners.reproduction.claims import Claim

# Longest request that the papers' simulated engines take, tokens: replayed traces outgrow the contexts of their models.
TRACE_MODEL_LEN = 32_768

Part = Callable[[], list[Claim]]


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a paper.

    Attributes:
        parts: By name, in the order in which they run; parts share what they measure, and each can run alone.
        num_steps: Steps of the progress bar that the parts of some names take together, at most.
        quick: Names of the parts that `quick=true` makes where none are named; None: all.
    """

    parts: Mapping[str, Part]
    num_steps: Callable[[Collection[str]], int]
    quick: tuple[str, ...] | None = None

    def chosen(self, config: ReproduceConfig) -> list[str]:
        """Names of the parts to make, in the order in which they run.

        Raises:
            ValueError: a name that this paper does not have.
        """
        for name in config.only:
            check_choice(f"part of {config.paper}", name, self.parts)
        every = tuple(self.parts) if self.quick is None or not config.quick else self.quick
        wanted = config.only or every
        return [name for name in self.parts if name in wanted]


def run_parts(
    config: ReproduceConfig, evaluation: Callable[[ReproduceConfig, Any], Evaluation], unit: str
) -> Iterator[list[Claim]]:
    """Claims of each part as soon as it has been made, which are also written beside the progress bar.

    Args:
        config: Words of the command.
        evaluation: Makes a paper's evaluation from the words and a progress bar, which only parts look at.
        unit: Of the progress bar's steps.

    Raises:
        ValueError: the words ask for a part that this paper does not have.
    """
    plan = evaluation(config, None)
    names = plan.chosen(config)
    with progress_bar(plan.num_steps(names), f"reproduce {config.paper}", unit) as bar:
        parts = evaluation(config, bar).parts
        for name in names:
            claims = parts[name]()
            for claim in claims:
                say(bar, f"{name}: {claim.line}")
            yield claims


def num_seeds(config: ReproduceConfig) -> int:
    """Seeds whose episodes are pooled."""
    return 1 if config.quick else config.seeds


def seeds_of(config: ReproduceConfig) -> range:
    """Seeds whose episodes are pooled."""
    return range(config.first_seed, config.first_seed + num_seeds(config))


@dataclass
class PaperStudy:
    """Base of the studies that run the episodes of a paper and keep their results.

    Attributes:
        config: Words of the command.
        bar: Progress bar, one step an episode.
    """

    config: ReproduceConfig
    bar: Any

    @property
    def seeds(self) -> range:
        """Seeds whose episodes are pooled."""
        return seeds_of(self.config)


def total(steps: Mapping[str, int], names: Collection[str]) -> int:
    """Steps of the parts of some names; a part without steps is not listed."""
    return sum(steps.get(name, 0) for name in names)
