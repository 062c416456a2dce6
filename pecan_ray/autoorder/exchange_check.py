"""May two operators be exchanged?  Structure decides first, and then what the exchange does to each sampled element.

Of an element the pair is run both ways behind the operators that come before it; what each of the two makes of it alone
comes out on the way, and is what the difference is compared with (`pecan_ray.reorder.relative_bound`).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.autoorder.element_moved import element_moved
from pecan_ray.autoorder.element_spec import array_of, equal
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token, run_through
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.engines.foreign import with_array
from pecan_ray.engines.python.remembering import why_apart
from pecan_ray.plan.splits import Array
from pecan_ray.reorder import ProfiledOp
from pecan_ray.reorder.policy import Pair, never
from pecan_ray.reorder.relative_bound import CHANNELS, EQUAL, SMALL, Moved, moved

OpOrder: TypeAlias = tuple[str, ...]
FIRST_ELEMENTS = 16
"""Elements on which a pair is tried before an order is proposed, and that show whether one is worth being measured."""
LEAST_ACTED = 4
"""If results differ, so many elements have to be changed by both: one alone shows little."""
TRIED = 2
"""On so many elements values are put to other places, to see whether an operator looks at them one by one.  The second
one is for what the first happens not to show."""
HALF_STEP = 0.5
"""Integers may be rounded otherwise, by twice so much: a mean that is subtracted is summed up in another sequence."""
NO_TIME = "there was no time to run it"


@dataclass(frozen=True)
class ExchangeResult:
    """Two operators that were exchanged, and what that has changed of the elements that were compared."""

    first: str
    second: str
    """In the user's order."""
    elements: int = 0
    changed: int = 0
    """How many are not exactly equal."""
    changed_by_both: int = 0
    """How many each of the two has changed."""
    subtle: int = 0
    """Of how many one changes no more than rounding does."""
    share: float = 0.0
    """The mean E / D of the elements: 0 if they are equal but for rounding."""
    worst: Moved = EQUAL
    """What became of the most different element."""
    element: str = ""
    """Which element this is."""
    failed: str = ""
    """How the operators fail in the other order; empty if they do not."""

    def description(self) -> str:
        """Say it in words."""
        message = f"{self.second!r} before {self.first!r}"
        if not self.changed:
            return f"{message} leaves all {self.elements} elements that were compared equal"
        if not self.share:
            return f"{message} rounds values elsewhere and changes nothing else ({self.elements} elements)"
        return (
            f"{message} changes {_percent(self.share)} of what they do to {self.worst.column!r}; the most different of "
            f"{self.elements} elements is {self.element}: {_percent(self.worst.share)}, in a part of it "
            f"{_percent(self.worst.local)}"
        )

    def rejection_reason(self, *, exactly: bool) -> str:
        """Return why the elements speak against the exchange; empty if they do not."""
        if self.failed:
            return self.failed
        if exactly and self.changed:
            return f"{self.element} becomes another one, where it has to stay equal"
        where = f"column {self.worst.column!r} of {self.element}"
        return f"{where}: {self.worst.description()}" if self.worst.rejected else ""


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{share:.0%}"


class ExchangeCheck:
    """Exchanges of the operators of one sampled stretch."""

    def __init__(self, sampled: Sampled, *, exactly: bool) -> None:
        """`exactly`: results have to be equal."""
        self._sampled, self._runner, self._exactly = sampled, sampled.runner, exactly
        self._user: OpOrder = sampled.sequence.names
        self._measured: dict[Pair, ExchangeResult] = {}
        self._why: dict[Pair, str] = {}

    @functools.cached_property
    def op_properties(self) -> dict[str, ProfiledOp]:
        """What is known of the operators, with whether they look at values one by one."""
        pointwise: dict[str, list[bool]] = {name: [] for name in self._user}
        for number in range(min(TRIED, len(self._sampled.held))):
            pieces = [self._sampled.token(number)]
            for stage in self._runner.stages(self._user):
                pointwise[stage.names[0]] += [_is_pointwise(self._sampled, stage, number, piece) for piece in pieces]
                pieces = [made for piece in pieces for made in stage.run(piece)]
        ops = self._sampled.profile().profiled
        return {one.name: replace(one, pointwise=all(pointwise[one.name] or [False])) for one in ops}

    def may(self, pair: Pair) -> bool:
        """Tell whether two operators, in the user's order, may be exchanged, by the first elements."""
        if pair not in self._why:
            self._why[pair] = self._evaluate(pair)
        return not self._why[pair]

    def rejects(self) -> dict[Pair, str]:
        """Return the pairs that were asked about and may not be exchanged, and why."""
        return {pair: why for pair, why in self._why.items() if why}

    def rejected_on(self, order: OpOrder, numbers: range) -> tuple[Pair | None, int]:
        """Try the exchanges of an order on more elements; return one that is refused there, and how many were tried."""
        # Element by element, so that all exchanges have had the same elements when the time is over.
        for tried, number in enumerate(numbers):
            if not self._sampled.in_time():
                return None, tried
            for pair in exchanges(self._user, order):
                if why := self._measure(pair, number):
                    self._why[pair] = why
                    return pair, tried
        return None, len(numbers)

    def found(self, order: OpOrder) -> tuple[ExchangeResult, ...]:
        """Return what the exchanges of an order change."""
        return tuple(self._measured[pair] for pair in exchanges(self._user, order) if pair in self._measured)

    def _evaluate(self, pair: Pair) -> str:
        # Decision 114: structure decides before numbers, because a sample seldom shows what happens to few elements.
        a, b = (self.op_properties[name] for name in pair)
        ops = [op for op in self._sampled.sequence.ops if op.name in pair]
        if why := never(a, b) or why_apart(*ops, meet=_meet(a, b), skips=self._sampled.limits.skip_bad):
            return why
        for number in range(min(FIRST_ELEMENTS, len(self._sampled.held))):
            if not self._sampled.in_time():
                return NO_TIME
            if why := self._measure(pair, number):
                return why
        return self._insufficient_evidence(pair)

    def _insufficient_evidence(self, pair: Pair) -> str:
        one, (a, b) = self._measured[pair], (self.op_properties[name] for name in pair)
        # On columns of their own they cannot meet, so no element has to show it.
        if not _meet(a, b):
            return ""
        # Decision 99: equal results prove something only if both operators have changed the same element.
        if 2 * one.subtle > one.changed:
            return "one of them does no more than rounding does: nothing shows what an exchange changes"
        least = min(LEAST_ACTED, one.elements) if one.changed else 1
        enough = one.changed_by_both >= least
        return "" if enough else f"{one.changed_by_both} of {one.elements} elements were changed by both: too few"

    def _measure(self, pair: Pair, number: int) -> str:
        """Exchange two operators on one more element; return why that is refused by now, or ""."""
        one = self._measured.get(pair, ExchangeResult(*pair))
        before = self._user[: self._user.index(pair[0])]
        try:
            usual, other = (self._runner.stages((*before, *names)) for names in (pair, pair[::-1]))
            entering = run_through(usual[:-2], self._sampled.token(number))
            for piece in entering:
                # The exchanged ones first: what one leaves in a variable for the other is that of another element.
                exchanged = self._both(other[-2:], number, piece)
                one = self._compared(one, number, piece, (self._both(usual[-2:], number, piece), exchanged))
        except OP_FAILURES as error:
            one = replace(one, failed=f"it fails: {error.message.splitlines()[0]}")
        self._measured[pair] = one
        return one.rejection_reason(exactly=self._exactly)

    def _both(self, stages: Sequence[Any], number: int, piece: Token) -> tuple[list[Any], list[Any]]:
        """Return what becomes of a copy of an element behind the first of two operators, and behind both."""
        # Both ways begin with the same numbers of shared generators, so that only the exchange makes a difference.
        middle = self._sampled.run(stages[:1], number, piece)
        # A copy, because the second operator may write into what the first has made.
        kept = [dict(self._runner.columns(self._runner.fresh(one))) for one in middle]
        return kept, [self._runner.columns(output) for one in middle for output in stages[1].run(one)]

    def _compared(
        self, one: ExchangeResult, number: int, piece: Token, sides: Sequence[tuple[list[Any], list[Any]]]
    ) -> ExchangeResult:
        """Return what is known of an exchange with one more element."""
        (middle, made), (alone, exchanged) = sides
        given = self._runner.columns(piece)
        # Each alone, behind the same operators: what the other one does to the element is not in it.
        acted = not equal(middle, [given]) and not equal(alone, [given])
        count, changed, where = one.elements + 1, not equal(made, exchanged), self.place(number, piece)
        if changed and {len(made), len(exchanged), len(middle), len(alone)} != {1}:
            counts = f"{len(exchanged)} elements instead of {len(made)}" if len(exchanged) != len(made) else "others"
            return replace(one, failed=f"{where} becomes {counts}")
        found = EQUAL
        if changed:
            mixing = self.mixing((one.first, one.second))
            found = element_moved(made[0], exchanged[0], [middle[0], alone[0]], given, mixing)
            if not one.element or found.excess > one.worst.excess:
                one = replace(one, worst=found, element=where)
        share = (one.share * one.elements + found.share) / count
        one = replace(one, subtle=one.subtle + found.subtle, changed_by_both=one.changed_by_both + acted)
        return replace(one, elements=count, share=share, changed=one.changed + changed)

    def mixing(self, pair: Pair) -> int:
        """Return how many of two operators mix values."""
        return sum(not self.op_properties[name].pointwise for name in pair)

    def place(self, number: int, token: Token) -> str:
        """Return an element's name, for people."""
        where = getattr(token, "where", None)
        return f"element #{self._sampled.positions[number]}" if where is None else str(where())


def _meet(a: ProfiledOp, b: ProfiledOp) -> bool:
    return bool(a.changes & b.columns or b.changes & a.columns)


def exchanges(user: OpOrder, order: OpOrder) -> list[Pair]:
    """Return the pairs, as in the user's order, that another order has the other way round."""
    place = {name: number for number, name in enumerate(order)}
    return [(first, second) for first, second in combinations(user, 2) if place[first] > place[second]]


def _large_numbers(columns: Mapping[str, Any], names: Collection[str]) -> dict[str, Array]:
    """Return columns as arrays if all of them are numbers, so many that their places tell; else none."""
    arrays = {}
    for name in names:
        array = array_of(columns.get(name))
        if array is None or array.size <= SMALL or array.dtype.kind not in "iuf":
            return {}
        arrays[name] = array
    return arrays


def _is_pointwise(sampled: Sampled, stage: Stage, number: int, token: Token) -> bool:
    """Tell whether an operator, given values at other places, makes the same of them there."""
    tally, columns = sampled.accumulators[stage.names[0]], sampled.runner.columns(token)
    changed = _large_numbers(columns, tally.columns.reads & tally.columns.writes)
    if not changed or tally.columns.creates or tally.columns.drops:
        return False
    # Values at other places: whoever looks at them one by one makes the same of each.
    shuffled = {name: with_array(columns[name], _shuffled(array)) for name, array in changed.items()}
    try:
        plain = sampled.run([stage], number, token)
        other = sampled.run([stage], number, sampled.runner.replaced(token, shuffled))
    except OP_FAILURES:
        return False
    if len(plain) != 1 or len(other) != 1:
        return False
    results = [sampled.runner.columns(one) for one in (plain[0], other[0])]
    return all(_same_elsewhere(*(array_of(one.get(name)) for one in results), like=changed[name]) for name in changed)


def _same_elsewhere(plain: Array | None, other: Array | None, *, like: Array) -> bool:
    if plain is None or other is None or plain.shape != like.shape:
        return False
    step = HALF_STEP if plain.dtype.kind in "iu" else 0.0
    return not moved(_shuffled(plain), other, (), step, mixing=0).rejected


def _shuffled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array whose rows and columns have changed places, its channels where they were."""
    for axis in range(array.ndim):
        if array.shape[axis] > CHANNELS:
            places: Sequence[int] = np.random.default_rng(axis).permutation(array.shape[axis]).tolist()
            # The axis is the seed: input and result are moved alike.
            array = np.take(array, places, axis=axis)
    return np.ascontiguousarray(array)
