"""AutoOrder: from profiled ops to an order and its reasons.

Modes:

- ``"pecan"``: Pecan's Algorithm 2 (`algorithm2`); where columns are known, an op still waits for those that it
  depends on (`dependencies`).
- ``"strict"`` and ``"safe"``: ops by what they save for their time (`by_saving`), as far as `commutes` allows the
  exchanges.  The two differ in what commutes, which is not decided here.
- ``"off"``: the user's order.

Pure: nothing here runs an op.  Whoever calls runs the order on the sample before adopting it, and asks again, with
what has failed `forbidden`.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias, get_args

from pecan_ray.errors import PlanError
from pecan_ray.reorder.profile import ProfiledOp, sections

Mode: TypeAlias = Literal["strict", "safe", "pecan", "off"]


class Move(NamedTuple):
    """An op that changed place among its neighbours; those that only made room are not listed."""

    name: str
    from_: int
    """Its index in the user's pipeline (`from` is a word of Python)."""
    to: int
    """Its index in the new order."""
    reason: str


class Fixed(NamedTuple):
    """An op that AutoOrder may not move, nor anything across it."""

    name: str
    reason: str


@dataclass(frozen=True)
class OrderPlan:
    """An order of the ops, with its reasons."""

    ops: tuple[ProfiledOp, ...]
    """The ops in the user's order, as they were measured."""
    order: tuple[str, ...]
    """Names in the order to run."""
    mode: Mode
    moves: tuple[Move, ...] = ()
    fixed: tuple[Fixed, ...] = ()
    forbidden: frozenset[tuple[str, str]] = frozenset()
    """Pairs of ops that were not to be exchanged."""
    neutral_band: float = 0.0
    reason: str = ""
    """Of a plan that replaces another one: what changed."""

    @property
    def changed(self) -> bool:
        """Return whether the order differs from the user's."""
        return self.order != tuple(op.name for op in self.ops)


Pair: TypeAlias = tuple[str, str]
Commutes: TypeAlias = Callable[[Pair], bool]
"""Which two ops may be exchanged in modes "strict" and "safe"; asked once, with names in the user's order."""
Constraint: TypeAlias = tuple[int, int]
"""Indices of ops: the first must stay before the second."""
LEAST = 1e-200
"""Seconds for a byte of an op that took no time that could be measured, and bytes that a thousand halvings leave."""


def auto_order(
    ops: Iterable[ProfiledOp],
    mode: Mode = "pecan",
    *,
    commutes: Commutes = lambda pair: False,
    forbidden: Collection[Pair] = (),
    neutral_band: float = 0.0,
) -> OrderPlan:
    """Return the order to run, and why.

    `ops` are in the user's order.  `forbidden` are pairs that must not be exchanged (an exchange failed on the
    sample).  Factors within `neutral_band` of 1 count as 1: 0 is the paper's rule, `NEUTRAL_BAND` is right for sampled
    factors.

    Raises `PlanError` for unknown modes or names, and for two ops of one name.
    """
    ops = tuple(ops)
    _check(ops, mode, forbidden, neutral_band)
    names = [op.name for op in ops]
    order, moves = list(range(len(ops))), list[Move]()
    # Each pair is asked about once: an answer may cost runs on the sample.
    may = functools.cache(commutes)
    for section in sections(ops) if mode != "off" else ():
        needs = [*dependencies(ops, section), *_forbidden(names, forbidden, section)]
        # Both look at factors and times alone; what would make the pipeline fail is taken out of it behind them.
        if mode == "pecan":
            arranged = nearest_valid_order(algorithm2(ops, section, neutral_band), needs)
        else:
            desired = by_saving(ops, section, neutral_band)
            arranged = _allowed_order(desired, needs, lambda a, b: may((names[a], names[b])))
        order[section.start : section.stop] = arranged
        moves += moves_with_reason(ops, section, arranged, neutral_band)
    return OrderPlan(
        ops=ops,
        order=tuple(names[index] for index in order),
        mode=mode,
        moves=tuple(moves),
        # Those that keep their place, with the reasons (Pecan §5.2).
        fixed=tuple(Fixed(op.name, op.fixed_reason) for op in ops if op.fixed_reason),
        forbidden=frozenset((first, second) for first, second in forbidden),
        neutral_band=neutral_band,
    )


def _allowed_order(desired: Sequence[int], needs: list[Constraint], may: Callable[[int, int], bool]) -> list[int]:
    """Return the valid order that is nearest to a desired one and makes only exchanges that are allowed."""
    arranged = nearest_valid_order(desired, needs)
    # Only exchanges of this order are asked about.  Each round adds constraints and takes none away, so this ends.
    while rejected := [(b, a) for a, b in itertools.combinations(arranged, 2) if b < a and not may(b, a)]:
        needs = [*needs, *rejected]
        arranged = nearest_valid_order(desired, needs)
    return arranged


def revalidate(old: OrderPlan, ops: Sequence[ProfiledOp]) -> OrderPlan | None:
    """Return the plan of mode "pecan" for the next epoch, or None to go on with `old` (Pecan §5.2).

    `ops` are those of `old`, with the factors of a whole pass.  A changed verdict changes the order.  What `old` was
    forbidden stays so.  The plan's `reason` says what changed; run it on the sample before adopting it.
    """
    band = old.neutral_band
    reasons = [
        f"{new.name!r} {new.comparison_result(band)} (factor {new.inflation:.3g}), "
        f"and not {past.comparison_result(band)} ({past.inflation:.3g})"
        for past, new in zip(old.ops, ops, strict=True)
        if past.comparison_result(band) != new.comparison_result(band)
    ]
    new = auto_order(ops, "pecan", forbidden=old.forbidden, neutral_band=band)
    return replace(new, reason="; ".join(reasons)) if reasons and new.order != old.order else None


def algorithm2(ops: Sequence[ProfiledOp], section: Sequence[int], neutral_band: float = 0.0) -> list[int]:
    """Return the section's indices in the order of Pecan's Algorithm 2, to the letter.

    A deflating op goes to the front of the prefix, a neutral one to the end of the prefix, an inflating one to the end
    of the suffix; the section becomes prefix + suffix.  Since deflating ops are *prepended*, two of them change places.
    A deflating cast to a custom type (bfloat16) goes behind the suffix: CPUs compute slowly with it (footnote 1).
    """
    prefix: deque[int] = deque()
    suffix: list[int] = []
    end: list[int] = []
    for index in section:
        comparison_result = ops[index].comparison_result(neutral_band)
        if comparison_result == "inflates":
            suffix.append(index)
        elif comparison_result == "neutral":
            prefix.append(index)
        elif ops[index].custom_dtype_cast:
            end.append(index)
        else:
            prefix.appendleft(index)
    return [*prefix, *suffix, *end]


def by_saving(ops: Sequence[ProfiledOp], section: Sequence[int], neutral_band: float = 0.0) -> list[int]:
    """Return the section's indices, those first that save most of what comes behind them for the time that they take.

    An op's rank is (I - 1) / c, with its factor I of bytes and its seconds c for a byte.  If time goes with the bytes,
    no other order takes less: c1 + I1 c2 <= c2 + I2 c1 says of two neighbours the same as the order of their ranks.
    It need not go so (a resize behind a crop has an output of fixed size), so an order is run before it is adopted.
    """
    # Of an element as it comes to each op, by that of the first one.
    sizes = itertools.accumulate((op.inflation / op.elements for op in ops), operator.mul, initial=1.0)
    # A look has measured them all; without times the factors alone decide.
    rates = [(op.seconds or 0.0) / max(size, LEAST) for op, size in zip(ops, sizes, strict=False)]
    ranks = {
        index: 0.0
        if ops[index].comparison_result(neutral_band) == "neutral"
        else (ops[index].inflation - 1.0) / max(rates[index], LEAST)
        for index in section
    }
    # Of equal ranks the user's order stays: sorting is stable.
    return sorted(section, key=ranks.__getitem__)


def dependencies(ops: Sequence[ProfiledOp], section: Sequence[int]) -> Iterator[Constraint]:
    """Yield what would make a pipeline fail, or a column mean something else.

    That both ops write column `image` forbids nothing: augmentations may be exchanged (Pecan §3.2).  With a before b in
    the user's order, b stays behind a if a *defines* a column (creates it, or writes it without reading it) that b
    reads, writes or drops; if b drops a column that a reads or writes, or a one that b defines anew; and if b defines a
    column that a reads or writes.  An op of which no column is known is under no constraint.
    """
    known = [index for index in section if ops[index].columns]
    for first, second in itertools.combinations(known, 2):
        a, b = ops[first], ops[second]
        if a.columns & (b.defines | b.drops) or b.columns & (a.defines | a.drops):
            yield first, second


def _check(ops: Sequence[ProfiledOp], mode: Mode, forbidden: Collection[Pair], neutral_band: float) -> None:
    if other := next((op for op in ops if not isinstance(op, ProfiledOp)), None):
        raise PlanError(f"auto_order needs ProfiledOp(name, inflation, ...), but got {type(other).__name__}.")
    names = [op.name for op in ops]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise PlanError(f"two ops are named {twice!r}: give each op a name of its own.")
    if mode not in get_args(Mode):
        raise PlanError(f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, but got {mode!r}.")
    if not 0 <= neutral_band < 1:
        raise PlanError(f"neutral_band must be in [0, 1), but got {neutral_band}.")
    if unknown := sorted(set(chain.from_iterable(forbidden)) - set(names)):
        raise PlanError(f"forbidden names the op {unknown[0]!r}, but there are only {list(names)}.")


def nearest_valid_order(desired: Sequence[int], constraints: Iterable[Constraint]) -> list[int]:
    """Return the order nearest to `desired` that holds to the constraints.

    Again and again the op that is wanted first, of those before which nothing more has to run.
    """
    needs: dict[int, set[int]] = {index: set() for index in desired}
    for first, second in constraints:
        needs[second].add(first)
    # A dict keeps the order in which ops were taken.
    taken: dict[int, None] = {}
    while len(taken) < len(desired):
        index = next(one for one in desired if one not in taken and needs[one] <= taken.keys())
        taken[index] = None
    return list(taken)


def _forbidden(names: Sequence[str], pairs: Collection[Pair], section: range) -> list[Constraint]:
    # A pair may be given either way round.
    found = [sorted((names.index(one), names.index(other))) for one, other in sorted(pairs)]
    return [(first, second) for first, second in found if first in section and second in section and first != second]


def ops_to_move(
    ops: Sequence[ProfiledOp], section: range, order: Sequence[int], neutral_band: float = 0.0
) -> list[int]:
    """Return the ops whose moving turns the section into `order`, in the user's order.

    The others, which only make room, form a rising subsequence: the one with the most neutral ops, since those are
    never the cause, and of several the longest.
    """
    neutral = len(section) + 1
    chains: list[tuple[int, tuple[int, ...]]] = []
    for index in order:
        before = [chain for chain in chains if chain[1][-1] < index]
        weight, chain = max(before, key=lambda one: one[0], default=(0, ()))
        # One neutral op weighs more than all others together, so the number of ops decides only between equals.
        weight += neutral if ops[index].comparison_result(neutral_band) == "neutral" else 1
        chains.append((weight, (*chain, index)))
    _, stay = max(chains, key=lambda one: one[0], default=(0, ()))
    return [index for index in section if index not in stay]


def moves_with_reason(
    ops: Sequence[ProfiledOp], section: range, order: Sequence[int], neutral_band: float = 0.0
) -> list[Move]:
    """Return the section's moves with their reasons, in the user's order."""
    moved = ops_to_move(ops, section, order, neutral_band)
    out = []
    for index in moved:
        place = order.index(index)
        # It overtook the op that made room below it, or else fell behind the one above.
        below = next((one for one in order[place + 1 :] if one not in moved), -1)
        up = 0 <= below < index
        neighbour = below if up else next(one for one in reversed(order[:place]) if one not in moved)
        reason = _reason(ops[index], ops[neighbour], up=up, neutral_band=neutral_band)
        out.append(Move(ops[index].name, index, section.start + place, reason))
    return out


def _reason(op: ProfiledOp, neighbour: ProfiledOp, *, up: bool, neutral_band: float) -> str:
    where = f"{'before' if up else 'after'} {neighbour.name!r}"
    comparison_result = op.comparison_result(neutral_band)
    factor = f"factor {op.inflation:.3g}"
    if up and comparison_result == "deflates":
        return f"makes the data smaller ({factor}): runs earlier, {where}"
    if not up and comparison_result == "inflates":
        return f"makes the data larger ({factor}): runs later, {where}"
    if not up and op.custom_dtype_cast:
        return f"casts to a type with which CPUs compute slowly ({factor}): runs later, {where}"
    return f"it saves more for the time that it takes ({factor}): runs {where}"


# --- which two ops are never exchanged in modes "strict" and "safe", whatever a sample shows -------------------

# What an op does only to few elements a sample may not show, and what it means is not in the numbers of one column.  So
# what is known of how ops are made decides first; what passes here is then measured.


def never(first: ProfiledOp, second: ProfiledOp) -> str:
    """Return why two ops are never exchanged; empty if they may be."""
    # Both ways: what one op is may forbid the exchange whichever stands first.
    return next(_reason_texts(first, second), "") or next(_reason_texts(second, first), "") or _both(first, second)


def _both(a: ProfiledOp, b: ProfiledOp) -> str:
    if a.draws and b.draws:
        return f"{a.name!r} and {b.name!r} draw random numbers from one generator: each would draw the other's"
    for column in sorted(a.changes & b.changes):
        if a.changed_axes.get(column, frozenset()) & b.changed_axes.get(column, frozenset()):
            return f"{a.name!r} and {b.name!r} both cut or rescale column {column!r}"
    return ""


def _reason_texts(a: ProfiledOp, b: ProfiledOp) -> Iterator[str]:
    """Yield what speaks against it for what `a` is."""
    if a.decides and (columns := a.reads & b.changes):
        yield f"{a.name!r} decides by column {min(columns)!r} which elements there are, and {b.name!r} changes it"
    # Columns that both read and write are left to the measurement: mostly they are augmentations of one image.
    if columns := (a.reads - a.changes) & b.changes:
        yield f"{a.name!r} derives from column {min(columns)!r}, which {b.name!r} changes"
    if a.unequal and a.changes & (b.reads | b.changes):
        yield f"{a.name!r} makes something else of an equal element each time: nothing shows what an exchange changes"
    if columns := a.filtered_columns & b.changes:
        yield f"{a.name!r} takes parts of column {min(columns)!r} away by what they are, and {b.name!r} changes it"
    # Boxes beside an image: an op that moves pixels without the boxes breaks what belongs together. One that
    # leaves each pixel in its place does not.
    both, others = a.changes & b.changes, a.arrays - b.changes
    if others and both and not b.pointwise:
        yield (
            f"{a.name!r} reads column {min(others)!r} beside {min(both)!r}, of which {b.name!r} "
            "moves or cuts one without the other"
        )
