"""Parts of a paper's evaluation, and their selection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serving_gym.calibration.lookup import check_choice
from serving_gym.runners.reporting.progress import progress_bar, say
from serving_gym.runners.reproduction.choices import check_sensitivity, make_choices, variations
from serving_gym.runners.reproduction.claims import Claim, with_spread, with_variation
from serving_gym.runners.reproduction.config import DEFAULT_SEEDS, ReproduceConfig

# Longest request that the papers' simulated engines take, tokens: replayed traces outgrow the contexts of their models.
TRACE_MODEL_LEN = 32_768

Claims = dict[str, list[Claim]]  # by part
Part = Callable[[], list[Claim]]


@dataclass(frozen=True)
class Paper:
    """How a paper is evaluated.

    Attributes:
        evaluation: Makes its parts from the words of the command and a progress bar, which only parts look at.
        unit: Of the progress bar's steps.
        choices: Dataclass of its choices (see `choices.py`).
        cut: What `quick=true` leaves out, in words.
        alone: Parts that share no measurement with others; `paper=all` runs each in a process of its own.
        seeds: Seeds that `paper=all` takes where none are given, so that all papers end within an hour; None: as many
            as the paper's own command.
    """

    evaluation: Callable[[ReproduceConfig, Any], Evaluation]
    unit: str
    choices: type[Any]
    cut: str = ""
    alone: tuple[str, ...] = ()
    seeds: int | None = None


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
    config: ReproduceConfig, paper: Paper, quiet: bool = False, bar: bool = True
) -> Iterator[tuple[str, list[Claim]]]:
    """Name and claims of each part as soon as it has been made; they are also written beside the progress bar.

    Args:
        config: Words of the command.
        paper: The paper.
        quiet: Whether claims are not written beside the bar.
        bar: Whether progress is shown.

    Raises:
        ValueError: the words ask for a part or a choice that this paper does not have.
    """
    make_choices(paper.choices, config.choices)
    check_sensitivity(paper.choices, config.sensitivity)
    plan = paper.evaluation(config, None)
    names = plan.chosen(config)
    steps = progress_bar(plan.num_steps(names), f"reproduce {config.paper}", paper.unit, shown=bar)
    with steps:
        parts = paper.evaluation(config, steps).parts
        for name in names:
            claims = parts[name]()
            for claim in claims if not quiet else ():
                say(steps, f"{name}: {claim.line}")
            yield name, claims


def spread_over_seeds(config: ReproduceConfig, paper: Paper, made: Mapping[str, Sequence[Claim]]) -> Claims:
    """Claims of parts, with the range of their figures over the seeds, each of which is run alone."""
    alone = [dict(run_parts(_of_seed(config, seed), paper, quiet=True)) for seed in seeds_of(config)]
    return {name: with_spread(claims, [run[name] for run in alone]) for name, claims in made.items()}


def _of_seed(config: ReproduceConfig, seed: int) -> ReproduceConfig:
    return replace(config, seeds=1, first_seed=seed)


def varied(config: ReproduceConfig, paper: Paper, made: Mapping[str, Sequence[Claim]]) -> Iterator[Claims]:
    """Claims of parts with our figures under other choices, after each run of another choice."""
    found = {name: list(claims) for name, claims in made.items()}
    for variation in variations(make_choices(paper.choices, config.choices), config.sensitivity, made):
        words = {**config.choices, variation.choice: variation.value}
        other = replace(config, choices=words, only=variation.parts, save=False)
        for name, claims in run_parts(other, paper, quiet=True):
            found[name] = with_variation(found[name], variation.choice, variation.value, claims)
        yield found


def num_seeds(config: ReproduceConfig) -> int:
    """Seeds whose episodes are pooled."""
    return 1 if config.quick else config.seeds or DEFAULT_SEEDS


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
