"""Pipelines as data, so that one row of the table builds the same one with us and with its peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Step: TypeAlias = "tuple[str, dict[str, Any]]"
"""The name of an operator, and its arguments."""


@dataclass(frozen=True)
class Chain:
    """A source of numbered elements, or a join, and the operators behind it.

    `noise` draws a random number for each element, the column `x`; `even` and `nothing` filter.
    """

    head: Step
    steps: tuple[Step, ...] = ()

    def noise(self) -> Chain:
        return self._then("noise")

    def even(self) -> Chain:
        return self._then("even")

    def nothing(self) -> Chain:
        return self._then("nothing")

    def cache(self) -> Chain:
        return self._then("cache")

    def shuffle(self, buffer: int, seed: int | None = 1, *, reshuffle: bool = True) -> Chain:
        return self._then("shuffle", buffer=buffer, seed=seed, reshuffle=reshuffle)

    def take(self, count: int) -> Chain:
        return self._then("take", count=count)

    def skip(self, count: int) -> Chain:
        return self._then("skip", count=count)

    def repeat(self, count: int | None = None) -> Chain:
        return self._then("repeat", count=count)

    def batch(self, size: int, *, drop_remainder: bool = False) -> Chain:
        return self._then("batch", size=size, drop_remainder=drop_remainder)

    def unbatch(self) -> Chain:
        return self._then("unbatch")

    def prefetch(self, count: int) -> Chain:
        return self._then("prefetch", count=count)

    def split(self, share: float, part: int) -> Chain:
        """Keep one of two parts; the first has this share.  The split is random, and the same in all passes."""
        return self._then("split", share=share, part=part)

    def _then(self, name: str, **arguments: Any) -> Chain:
        return Chain(self.head, (*self.steps, (name, arguments)))


def rows(count: int, *, column: str = "i", first: int = 0) -> Chain:
    return Chain(("rows", {"count": count, "column": column, "first": first}))


def zip_inputs(*inputs: Chain) -> Chain:
    return Chain(("zip", {"inputs": inputs}))


def concat(*inputs: Chain) -> Chain:
    return Chain(("concat", {"inputs": inputs}))


def mixed(*inputs: Chain) -> Chain:
    """Draw from several chains at random, evenly, until one of them has run out."""
    return Chain(("mix", {"inputs": inputs}))


N = 20
"""Elements: two random orders of so many are equal once in 10^18."""
PLAIN, SHUFFLED, RANDOM = rows(N).batch(8), rows(N).shuffle(N).batch(8), rows(N).noise().shuffle(N).batch(8)
LENGTHS = [8, 8, 4]
"""Of their batches."""
LONG = rows(160).batch(8)
"""More batches than libraries read ahead."""
LONG_SHUFFLED = rows(160).shuffle(160).batch(8)


def two_sides(left: int | None, right: int | None) -> Chain:
    """Return pairs of equal numbers that were shuffled apart, with these seeds."""
    return zip_inputs(rows(N).shuffle(N, left), rows(N, column="j").shuffle(N, right))
