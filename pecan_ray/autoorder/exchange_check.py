"""May two operators be exchanged?  Structure decides first, and then what the exchange does to each sampled element.

Of an element the pair is run both ways behind the operators that come before it; what each of the two makes of it alone
comes out on the way, and is what the difference is compared with (`pecan_ray.reorder.relative_bound`).
"""

from __future__ import annotations

import base64
import functools
import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.autoorder.element_moved import ColumnMoved, element_moved
from pecan_ray.autoorder.element_spec import array_of, equal, leaves
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token, run_through
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.engines.foreign import with_array
from pecan_ray.plan.splits import Array
from pecan_ray.reorder.never import OpProperties, never
from pecan_ray.reorder.policy import Pair
from pecan_ray.reorder.relative_bound import CHANNELS, SMALL, Moved, moved
from pecan_ray.warps import opencv

OpOrder: TypeAlias = tuple[str, ...]
FIRST_ELEMENTS = 16
"""Elements on which a pair is tried before an order is proposed."""
LEAST_ACTED = 4
"""If results differ, so many elements have to be changed by both: one alone shows little."""
SHOWN = 6
"""Values of the most different element that are told."""
NO_TIME = "there was no time to run it"


@dataclass(frozen=True)
class ExchangeResult:
    """Two operators that were exchanged, and what that has changed."""

    first: str
    second: str
    """In the user's order."""
    elements: int
    """Elements that were compared."""
    changed: int = 0
    """Of those, how many are not exactly equal."""
    share: float = 0.0
    """The mean E / D of the elements: 0 if they are equal but for rounding."""
    worst: float = 0.0
    """That of the most different element,"""
    local: float = 0.0
    """and of the block of an element where it is largest."""
    element: str = ""
    """Which is the most different one."""
    column: str = ""
    """Where."""
    values: tuple[str, str] = ("", "")
    """Some values of it there in the user's order, and in the other one,"""
    images: tuple[str, str] = ("", "")
    """and pictures of both, as data URLs, if it is an image."""

    def description(self) -> str:
        """Say it in words."""
        message = f"{self.second!r} before {self.first!r}"
        if not self.changed:
            return f"{message} leaves all {self.elements} elements that were compared equal"
        if not self.share:
            return (
                f"{message} rounds values elsewhere, and changes nothing else ({self.elements} elements were compared)"
            )
        return (
            f"{message} changes {_percent(self.share)} of what they do to {self.column!r}; the most different of "
            f"{self.elements} elements is {self.element}: {_percent(self.worst)}, in a part of it "
            f"{_percent(self.local)} (values from its middle: {self.values[0]}; now {self.values[1]})"
        )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{share:.0%}"


@dataclass
class _Measured:
    """What was seen of one exchange."""

    changed_by_both: int = 0
    changed: int = 0
    shares: list[float] = field(default_factory=list)
    """Of each element that was compared."""
    worst: ColumnMoved = field(default_factory=lambda: ColumnMoved("", Moved(0.0)))
    where: str = ""
    """Which element is moved most,"""
    results: tuple[Any, ...] = ()
    """and what becomes of it in the user's order, and in the other one."""
    failed: str = ""


class ExchangeCheck:
    """Exchanges of the operators of one sampled stretch."""

    def __init__(self, sampled: Sampled, *, exactly: bool) -> None:
        """`exactly`: results have to be equal."""
        self._sampled, self._runner, self._exactly = sampled, sampled.runner, exactly
        self._user: OpOrder = sampled.sequence.names
        self._measured: dict[Pair, _Measured] = {}
        self._why: dict[Pair, str] = {}

    @functools.cached_property
    def op_properties(self) -> dict[str, OpProperties]:
        """What is known of how the operators are made."""
        return op_properties(self._sampled)

    def may(self, pair: Pair) -> bool:
        """Tell whether two operators, in the user's order, may be exchanged, by the first elements."""
        if pair not in self._why:
            self._why[pair] = self._evaluate(pair)
        return not self._why[pair]

    def rejects(self) -> dict[Pair, str]:
        """Return the pairs that were asked about and may not be exchanged, and why."""
        return {pair: why for pair, why in self._why.items() if why}

    def rejected_on(self, order: OpOrder, numbers: range) -> Pair | None:
        """Try the exchanges of an order on more elements; return one that is refused there."""
        # Element by element, so that all exchanges have had the same elements when the time is over.
        for number in numbers:
            for pair in exchanges(self._user, order):
                if not self._sampled.in_time():
                    return None
                self._measure(pair, number)
                if why := self._rejection_reason(pair):
                    self._why[pair] = why
                    return pair
        return None

    def found(self, order: OpOrder) -> tuple[ExchangeResult, ...]:
        """Return what the exchanges of an order change."""
        return tuple(self._exchange(pair) for pair in exchanges(self._user, order) if pair in self._measured)

    def _exchange(self, pair: Pair) -> ExchangeResult:
        one = self._measured[pair]
        most, mean = one.worst.moved, sum(one.shares) / max(len(one.shares), 1)
        found = ExchangeResult(
            *pair, len(one.shares), one.changed, mean, most.share, most.local, one.where, one.worst.column
        )
        values = [leaves(result).get(one.worst.column) for result in one.results if mean]
        made = [value for value in values if isinstance(value, np.ndarray)]
        if len(made) != 2:
            return found
        user, other = made
        pictures = (thumbnail(user), thumbnail(other))
        return replace(found, values=(_some_values(user), _some_values(other)), images=pictures)

    def _evaluate(self, pair: Pair) -> str:
        # Decision 114: structure decides before numbers, because a sample seldom shows what happens to few elements.
        if why := never(self.op_properties[pair[0]], self.op_properties[pair[1]]):
            return why
        for number in range(min(FIRST_ELEMENTS, len(self._sampled.held))):
            if not self._sampled.in_time():
                return NO_TIME
            self._measure(pair, number)
            if why := self._rejection_reason(pair):
                return why
        return self._insufficient_evidence(pair)

    def _rejection_reason(self, pair: Pair) -> str:
        one = self._measured[pair]
        if one.failed:
            return one.failed
        if self._exactly and one.changed:
            return f"{one.where} becomes another one, where it has to stay equal"
        if one.worst.moved.rejected:
            return f"column {one.worst.column!r} of {one.where}: {one.worst.moved.description()}"
        return ""

    def _insufficient_evidence(self, pair: Pair) -> str:
        one, (a, b) = self._measured[pair], (self.op_properties[name] for name in pair)
        # On columns of their own they cannot meet, so no element has to show it.
        if not (a.writes & (b.reads | b.writes) or b.writes & (a.reads | a.writes)):
            return ""
        # Decision 99: equal results prove something only if both operators have changed the same element.
        least = min(LEAST_ACTED, len(one.shares)) if one.changed else 1
        if one.changed_by_both >= least:
            return ""
        return f"only {one.changed_by_both} of {len(one.shares)} elements were changed by both operators: too few"

    def _measure(self, pair: Pair, number: int) -> None:
        one = self._measured.setdefault(pair, _Measured())
        before = self._user[: self._user.index(pair[0])]
        try:
            usual, other = (self._runner.stages((*before, *names)) for names in (pair, pair[::-1]))
            entering = run_through(usual[:-2], self._sampled.token(number))
            for piece in entering:
                # The exchanged ones first: what one leaves in a variable for the other is that of another element.
                exchanged = self._both(other[-2:], number, piece)
                sides = (self._both(usual[-2:], number, piece), exchanged)
                self._compare(one, number, piece, sides, each=all(self.op_properties[name].pointwise for name in pair))
        except OP_FAILURES as error:
            one.failed = f"it fails: {error.message.splitlines()[0]}"

    def _both(self, stages: Sequence[Any], number: int, piece: Token) -> tuple[list[Any], list[Any]]:
        """Return what becomes of a copy of an element behind the first of two operators, and behind both."""
        # Both ways begin with the same numbers of shared generators, so that only the exchange makes a difference.
        self._sampled.seed(number)
        middle = stages[0](self._runner.fresh(piece))
        # A copy, because the second operator may write into what the first has made.
        kept = [dict(self._runner.columns(self._runner.fresh(one))) for one in middle]
        made = [output for one in middle for output in stages[1](one)]
        return kept, [self._runner.columns(one) for one in made]

    def _compare(
        self,
        one: _Measured,
        number: int,
        piece: Token,
        sides: Sequence[tuple[list[Any], list[Any]]],
        *,
        each: bool,
    ) -> None:
        (middle, made), (alone, exchanged) = sides
        given = self._runner.columns(piece)
        # Each alone, behind the same operators: what the other one does to the element is not in it.
        one.changed_by_both += not equal(middle, [given]) and not equal(alone, [given])
        if equal(made, exchanged):
            one.shares.append(0.0)
            return
        one.changed += 1
        where = self.place(number, piece)
        if len(made) != 1 or len(exchanged) != 1 or len(middle) != 1 or len(alone) != 1:
            one.where, one.failed = where, f"{where} becomes {len(exchanged)} elements instead of {len(made)}"
            return
        found = element_moved(made[0], exchanged[0], [middle[0], alone[0]], given, each=each)
        one.shares.append(found.moved.share)
        if not one.where or found.moved.excess > one.worst.moved.excess:
            one.worst, one.where, one.results = found, where, (made[0], exchanged[0])

    def place(self, number: int, token: Token) -> str:
        """Return an element's name, for people."""
        where = getattr(token, "where", None)
        return f"element #{self._sampled.positions[number]}" if where is None else str(where())


def _some_values(array: np.ndarray[Any, Any]) -> str:
    """Return values from the middle of an array."""
    middle = array.ravel()[array.size // 2 :][:SHOWN]
    return ", ".join(f"{value:.4g}" for value in middle.tolist()) if array.dtype.kind in "iuf" else ""


def exchanges(user: OpOrder, order: OpOrder) -> list[Pair]:
    """Return the pairs, as in the user's order, that another order has the other way round."""
    place = {name: number for number, name in enumerate(order)}
    return [(first, second) for first, second in combinations(user, 2) if place[first] > place[second]]


# --- how operators are made, from running them on elements --------------------------------------------------------

TRIED = 2
"""On so many elements values are put to other places, to see whether an operator looks at them one by one."""
HALF_STEP = 0.5
"""Integers may be rounded otherwise, by twice so much: a mean that is subtracted is summed up in another sequence."""


def op_properties(sampled: Sampled) -> dict[str, OpProperties]:
    """Return the facts of all operators of a stretch, with whether they look at values one by one."""
    pointwise: dict[str, list[bool]] = {name: [] for name in sampled.accumulators}
    for number in range(min(TRIED, len(sampled.held))):
        pieces = [sampled.token(number)]
        for stage in sampled.runner.stages(sampled.sequence.names):
            (name,) = stage.names
            pointwise[name] += [_is_pointwise(sampled, stage, number, piece) for piece in pieces]
            pieces = [made for piece in pieces for made in stage(piece)]
    facts = [one.stats for one in sampled.profile().ops]
    return {one.name: replace(one, pointwise=all(pointwise[one.name] or [False])) for one in facts}


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
    changed = _large_numbers(columns, tally.reads & tally.writes)
    if not changed or tally.creates or tally.drops:
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
    return not moved(_shuffled(plain), other, (), step, each=True).rejected


def _shuffled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array whose rows and columns have changed places, its channels where they were."""
    for axis in range(array.ndim):
        if array.shape[axis] > CHANNELS:
            places: Sequence[int] = np.random.default_rng(axis).permutation(array.shape[axis]).tolist()
            # The axis is the seed: input and result are moved alike.
            array = np.take(array, places, axis=axis)
    return np.ascontiguousarray(array)


# --- a picture of an element, for people ---------------------------------------------------------------------

SIDE = 160
"""Pixels of the longer side."""
CHANNELS_OF_PICTURES = (1, 3, 4)
LEAST_SIDE = 4


def thumbnail(array: np.ndarray[Any, Any]) -> str:
    """Return a picture as a data URL; empty for an array that is none, and where OpenCV is not installed."""
    if importlib.util.find_spec("cv2") is None or array.dtype.kind not in "uif" or array.ndim not in (2, 3):
        return ""
    image = np.atleast_3d(array)
    if image.shape[-1] not in CHANNELS_OF_PICTURES and image.shape[0] in CHANNELS_OF_PICTURES:
        image = np.moveaxis(image, 0, -1)
    if image.shape[-1] not in CHANNELS_OF_PICTURES or min(image.shape[:2]) < LEAST_SIDE:
        return ""
    step = -(-max(image.shape[:2]) // SIDE)
    # OpenCV has blue first; how opaque a pixel is, is left out.
    small = np.nan_to_num(image[::step, ::step, 2::-1]).astype(np.float32)
    if array.dtype != np.uint8:
        small = (small - small.min()) * (255 / max(float(np.ptp(small)), 1e-12))
    file = opencv().imencode(".png", small.astype(np.uint8))[1]
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"
