"""Names, meanings, units and ranges of the numbers of an observation, in the order in which encoders write them."""

from __future__ import annotations

from dataclasses import dataclass

HIGHEST = 64.0  # of any number of an observation


@dataclass(frozen=True)
class Feature:
    """One number of an observation.

    Attributes:
        name: Its name.
        meaning: What it is.
        unit: Unit of the quantity; "": it has none.
        scale: Field of `env.scales` by which the quantity is divided before its log1p is shown, or a number; None: the
            quantity is shown as it is.
        high: Upper bound of what is shown; the lower one is 0.
        binary: Whether it is 0 or 1.
    """

    name: str
    meaning: str
    unit: str = ""
    scale: str | float | None = None
    high: float = HIGHEST
    binary: bool = False


@dataclass(frozen=True)
class Part:
    """One array of an observation.

    Attributes:
        name: Its key in the observation.
        features: Its numbers, or those of each of its rows.
        rows: What there is a row of; "": it has no rows.
        each: What the numbers behind `features` are repeated for; "": there are none.
        repeated: These numbers.
        when: The setting that it comes with; "": it always comes.
    """

    name: str
    features: tuple[Feature, ...]
    rows: str = ""
    each: str = ""
    repeated: tuple[Feature, ...] = ()
    when: str = ""

    def names(self) -> tuple[str, ...]:
        """Names of `features`."""
        return tuple(feature.name for feature in self.features)


def flag(name: str, meaning: str) -> Feature:
    """0 or 1.

    Args:
        name: Its name.
        meaning: When it is 1.
    """
    return Feature(name, meaning, high=1.0, binary=True)


def share(name: str, meaning: str) -> Feature:
    """A ratio of at most 1.

    Args:
        name: Its name.
        meaning: Of what.
    """
    return Feature(name, meaning, "ratio", high=1.0)


def ratio(name: str, meaning: str) -> Feature:
    """A ratio.

    Args:
        name: Its name.
        meaning: Of what.
    """
    return Feature(name, meaning, "ratio")


def log(name: str, meaning: str, unit: str, scale: str | float) -> Feature:
    """log1p(value / scale).

    Args:
        name: Its name.
        meaning: What the value is.
        unit: Of the value.
        scale: Field of `env.scales`, or a number.
    """
    return Feature(name, meaning, unit, scale)
