"""Pipelines as data, so that one row of the table builds the same one with us and with its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Step: TypeAlias = "tuple[str, dict[str, Any]]"
"""The name of an operator, and its arguments."""
OPERATORS: dict[str, dict[str, Any]] = {
    "noise": {},
    "even": {},
    "nothing": {},
    "cache": {},
    "shuffle": {"buffer": None, "seed": 1, "reshuffle": True},
    "take": {"count": None},
    "skip": {"count": None},
    "repeat": {"count": None},
    "batch": {"size": None, "drop_remainder": False},
    "unbatch": {},
    "prefetch": {"count": None},
    "split": {"share": None, "part": None},
}
"""The arguments of operators in their order, with what they are if nothing is given.

`noise` draws a random number for each element, the column `x`; `even` and `nothing` filter; `split` keeps one of two
parts, of which the first has this share: a random split, the same in all passes.
"""


@dataclass(frozen=True)
class Chain:
    """A source of numbered elements, or a join, and the operators behind it, each of which is a method."""

    head: Step
    steps: tuple[Step, ...] = ()

    def __getattr__(self, operator: str) -> Callable[..., Chain]:
        if operator not in OPERATORS:
            raise AttributeError(operator)

        def with_step(*given: Any, **named: Any) -> Chain:
            usual = OPERATORS[operator]
            arguments = {**usual, **dict(zip(usual, given, strict=False)), **named}
            return Chain(self.head, (*self.steps, (operator, arguments)))

        return with_step


def rows(count: int, *, column: str = "i", first: int = 0) -> Chain:
    return Chain(("rows", {"count": count, "column": column, "first": first}))


def joined(how: str, *inputs: Chain) -> Chain:
    """Join chains: by "zip", by "concat", or by "mix", which draws evenly until one of them has run out."""
    return Chain((how, {"inputs": inputs}))


N = 20
"""Elements: two random orders of so many are equal once in 10^18."""
PLAIN, SHUFFLED, RANDOM = rows(N).batch(8), rows(N).shuffle(N).batch(8), rows(N).noise().shuffle(N).batch(8)
LONG = rows(160).batch(8)
"""More batches than libraries read ahead."""
LONG_SHUFFLED = rows(160).shuffle(160).batch(8)


def two_sides(left: int | None, right: int | None) -> Chain:
    """Return pairs of equal numbers that were shuffled apart, with these seeds."""
    return joined("zip", rows(N).shuffle(N, left), rows(N, column="j").shuffle(N, right))
