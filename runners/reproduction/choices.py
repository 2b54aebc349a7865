"""Choices of a study: what a paper leaves open, as words that a user can set and that sensitivity runs vary.

Each paper has one frozen dataclass whose fields are made by `choice`:

    @dataclass(frozen=True)
    class Choices:
        load: float = choice(0.9, 0.7, 1.1, parts=("serving",), why="Section 6.2 names no rates.")
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from serving_gym.calibration.lookup import check_choice

ALL = "all"  # every choice that has alternatives
_CHOICE = "choice"  # key of a field's metadata


@dataclass(frozen=True)
class Choice:
    """What is known of a choice.

    Attributes:
        name: As in `choices.NAME=VALUE`.
        default: What holds where nothing is said.
        alternatives: Other values, which sensitivity runs take in turn.
        parts: Parts of the evaluation that it can change.
        why: What the paper leaves open, in a sentence.
    """

    name: str
    default: Any
    alternatives: tuple[Any, ...]
    parts: tuple[str, ...]
    why: str

    def check(self, value: Any) -> Any:
        """The value as the study takes it.

        Raises:
            ValueError: It is of another kind than the default and the alternatives; or a word, and none of them.
        """
        known = (self.default, *self.alternatives)
        value = _tuples(value)
        numbers = [one for one in known if isinstance(one, (int, float))]
        if value not in known and any(not _possible(part, numbers) for part in _parts(value)):
            raise ValueError(
                f"choices.{self.name} is {value!r}; it must be finite and of the sign of {self.default!r}"
            )
        if value in known and isinstance(value, bool) == any(isinstance(one, bool) for one in known):
            return value
        if any(isinstance(one, str) for one in known):
            check_choice(f"choices.{self.name}", str(value), [str(one) for one in known])
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if any(isinstance(one, float) for one in known):
                return float(value)
            if isinstance(value, int) and any(type(one) is int for one in known):
                return value
        if isinstance(value, tuple) and any(isinstance(one, tuple) for one in known):
            return value
        raise ValueError(
            f"choices.{self.name} is {value!r}; it must be of the kind of {self.default!r}"
            + "".join(f" or {one!r}" for one in self.alternatives)
        )


def choice(default: Any, *alternatives: Any, parts: Sequence[str], why: str) -> Any:
    """A field of a paper's dataclass of choices; arguments as in `Choice`."""
    return field(default=default, metadata={_CHOICE: (alternatives, tuple(parts), why)})


def choices_in(kind: type[Any]) -> dict[str, Choice]:
    """Choices of a paper's dataclass, by name."""
    return {
        item.name: Choice(item.name, item.default, *item.metadata[_CHOICE])
        for item in fields(kind)
        if _CHOICE in item.metadata
    }


def make_choices(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """An instance of a paper's dataclass.

    Args:
        kind: The dataclass.
        values: What was set, by name.

    Raises:
        ValueError: A name that the paper does not have, or a value that does not fit.
    """
    known = choices_in(kind)
    for name in values:
        check_choice("choices", name, known)
    return kind(**{name: known[name].check(value) for name, value in values.items()})


@dataclass(frozen=True)
class Variation:
    """One alternative of one choice.

    Attributes:
        choice: Its name.
        value: The alternative.
        parts: Parts of the evaluation to run again.
    """

    choice: str
    value: Any
    parts: tuple[str, ...]


def check_sensitivity(kind: type[Any], names: Sequence[str]) -> None:
    """Refuses names that are no choice of the paper.

    Raises:
        ValueError: One is not; the message names the nearest.
    """
    for name in names:
        check_choice("sensitivity", name, (*choices_in(kind), ALL))


def variations(choices: Any, names: Sequence[str], parts: Collection[str]) -> Iterator[Variation]:
    """What a sensitivity analysis runs: each other value of each choice, one at a time.

    Args:
        choices: What the evaluation ran with.
        names: Choices to vary; `all`: every one.
        parts: Parts that the evaluation ran; a choice that changes none of them is left out.
    """
    for name, known in choices_in(type(choices)).items():
        affected = tuple(part for part in known.parts if part in parts)
        if not affected or (name not in names and ALL not in names):
            continue
        for value in (known.default, *known.alternatives):
            if value != getattr(choices, name):
                yield Variation(name, value, affected)


def _tuples(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_tuples(one) for one in value)
    return value


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _possible(value: Any, numbers: Sequence[float]) -> bool:
    """Whether a number is finite, and not negative where no known value is."""
    if not isinstance(value, (int, float)):
        return True
    return math.isfinite(value) and (value >= 0 or any(number < 0 for number in numbers))
