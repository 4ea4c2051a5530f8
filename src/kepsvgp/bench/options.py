"""How a measurement is to be run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Rounds and size of a measurement.

    Attributes:
        rounds: Turns of each contender.
        small: Sizes that serve to try the programs out; their ratios mean nothing.
    """

    rounds: int = 15
    small: bool = False
