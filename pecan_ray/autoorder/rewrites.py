"""What a rewrite is, and the one pass that does those that an order names.

A rule says of operators that follow one another what could stand in their place.  What it is worth, and whether values
may be others so, is not its matter: it is run on the sample like an order is (`pecan_ray.autoorder.trial`,
`in_rows`), within the bounds of docs/rewrites.md.

Decisions: docs/decisions/rewrites.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Join, Op, Plan
from pecan_ray.plan.splits import Source

ROWS_AT_ONCE = "rows at once"
"""The rule of `pecan_ray.autoorder.in_rows`."""


@dataclass(frozen=True)
class Pushed:
    """What a rule does to operators."""

    rule: str
    ops: tuple[str, ...]
    """The operators in whose place others stand now."""
    decoder: str
    """What an order calls it by."""
    why: str
    """What is done, in words."""
    reduces: bool = False
    """Whether values may be others, as images that are decoded smaller or interpolated once have them."""
    only_parts: bool = False
    """Whether the decoder does nothing else than decoding a part, by a library of its own (python engine)."""

    def told(self) -> str:
        """Say it in words."""
        return f"{self.why} (rule {self.rule})"


class Match(NamedTuple):
    """A rule fits."""

    rewrite: Pushed
    replaced: int
    """So many operators are replaced, from the first one on,"""
    made: tuple[Op, ...]
    """by these."""


class Rule(Protocol):
    """One kind of rewrite."""

    def matches(self, ops: Sequence[Op], engine: EngineName, source: Source | None) -> Iterator[Match]:
        """Yield what the first of some operators can become with those behind it, what gains most first.

        `source`: what they are given the elements of as they are; None: something else stands before them.
        """
        ...


def matches(
    rules: Sequence[Rule], ops: Sequence[Op], engine: EngineName, source: Source | None = None
) -> Iterator[Match]:
    """Yield what all rules make of the first of some operators, what gains most first."""
    for rule in rules:
        yield from rule.matches(ops, engine, source)


def rewritten(
    rules: Sequence[Rule], plan: Plan, engine: EngineName, names: Collection[str] | None
) -> tuple[Plan, tuple[Pushed, ...]]:
    """Return the plan with what an order's `names` say done to it, to joins' inputs too, and that.

    None: in each place the first that fits.
    """
    if names is not None and not names:
        return plan, ()
    head, before, source = plan.head, list[Pushed](), None
    if isinstance(head, Join):
        branches = [rewritten(rules, branch, engine, names) for branch in head.inputs]
        before = [one for _, some in branches for one in some]
        head = replace(head, inputs=tuple(branch for branch, _ in branches))
    else:
        source = head
    ops, done = rewritten_ops(rules, plan.ops, engine, names, source)
    return replace(plan, head=head, ops=ops), (*before, *done)


def rewritten_ops(
    rules: Sequence[Rule],
    given: Sequence[Op],
    engine: EngineName,
    names: Collection[str] | None,
    source: Source | None = None,
) -> tuple[tuple[Op, ...], tuple[Pushed, ...]]:
    """Do the same to operators."""
    ops, done, at = list(given), list[Pushed](), 0
    while at < len(ops):
        found = matches(rules, ops[at:], engine, None if at else source)
        taken = next((one for one in found if names is None or one.rewrite.decoder in names), None)
        if taken is not None:
            ops[at : at + taken.replaced] = taken.made
            done.append(taken.rewrite)
        at += 1
    return tuple(ops), tuple(done)
