"""Rewrites: what could stand in the place of operators that follow one another, and the one pass that puts it there.

What a rewrite is worth, and whether values may be others so, is not a rule's matter: it is run on the sample like an
order is (`pecan_ray.autoorder.trial`, `in_rows`), within the bounds of docs/rewrites.md.

Decoding at a reduced size averages pixels that a bilinear resize would skip, and is for modes that may change them
(docs/howto/ordering.md).  Decoding a part leaves pixels as they are.  What is known of functions, the package's own and
those of other libraries, is in `pecan_ray.known`.  All rules are those of the python engine: a graph of TensorFlow has
no place for functions that are watched while they run.

Decisions: docs/decisions/rewrites.md.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from pecan_ray import images
from pecan_ray.engines.python.channel_arithmetic import PerChannelFunction, is_channel_arithmetic
from pecan_ray.engines.python.rows import RowsColumn, RowsWatch, array_of
from pecan_ray.known.detect_steps import OWN, known_functions, steps_of
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import (
    Batch,
    BatchInRows,
    ElementOp,
    Join,
    Map,
    Op,
    Plan,
    acting_ops,
    is_pass_dependent,
)
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Source, as_columnar

ROWS_AT_ONCE = "rows at once"
"""The rule that `pecan_ray.autoorder.in_rows` tries."""


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

    def description(self) -> str:
        """Say it in words."""
        return f"{self.why} (rule {self.rule})"


class Match(NamedTuple):
    """A rule fits."""

    rewrite: Pushed
    replaced: int
    """Operators that are replaced, from the first one on."""
    replacement: tuple[Op, ...]
    """The operators that take their place."""


Rule: TypeAlias = Callable[[Sequence[Op], Source | None], Iterator[Match]]
"""One kind of rewrite: yields what the first of some operators can become with those behind it, what gains most first.

The source is what they are given the elements of as they are; None: something else stands before them.
"""

CASTING = frozenset(("astype", "np", "numpy", "float16", "float32", "float64", "copy"))
"""Names in a function that casts."""
KNOWN_FUNCTIONS = "known functions"
EXACTLY = " exactly"
"""Behind the names of operators, joined by a plus: how an order names a rewrite that leaves results equal."""
BY_ROWS_OF_PIXELS = " by rows of pixels"
"""How an order names arithmetic of pixels, after the operator."""
IN_ROWS = " in rows"
"""And one that runs them on many elements at a time."""


def known_at_once(ops: Sequence[Op], source: Source | None) -> Iterator[Match]:
    """Yield several functions that are known done at once, with other pixels and with equal ones.

    Where pixels may be others, a cast of bytes to floats between the package's own is done to what comes out.
    """
    maps = _maps(ops)
    # One that turns images has other boxes, and takes nothing over.
    decoder = [op for op in maps[:1] if isinstance(op.fn, images.Decode) and not op.fn.upright]
    # Only behind a decoder it is known that images are bytes.
    casts = {op.name for op in maps[1:] if decoder and only_casts(op)}
    # With equal pixels too: mode "strict" has nothing else, and the first may be no faster.
    for reduces, between in ((True, casts), (False, set[str]())):
        run = _known_run(maps[len(decoder) :], between)
        yield from _at_once(decoder, run, [op for op in run if op.name in between], reduces=reduces)


def _at_once(decoder: list[Map], run: list[Map], casts: list[Map], *, reduces: bool) -> Iterator[Match]:
    """Yield what a run of known functions becomes behind a decoder, if there is one, if anything is gained by it."""
    moving = [op for op in run if op not in casts]
    found = known_functions([(op.name, op.fn) for op in moving], decodes=bool(decoder), reduces=reduces)
    if found is None:
        return
    merged, steps = found
    names = tuple(op.name for op in (*decoder, *run))
    behind = f", behind which comes {', '.join(op.name for op in casts)}" if casts else ""
    why = f"{', '.join(names)} are one, since AutoOrder knows {', '.join(steps)}{behind}"
    only_parts = not reduces and all(type(op.fn) in OWN for op in moving)
    name = "+".join(names) + EXACTLY * (not reduces)
    rewrite = Pushed(KNOWN_FUNCTIONS, names, name, why, reduces, only_parts=only_parts)
    # It draws by the names of all that it replaces, so random numbers stay what they were.
    yield Match(rewrite, len(names), (replace(moving[0], fn=merged), *casts))


def _known_run(maps: Sequence[Map], casts: Collection[str]) -> list[Map]:
    """Return the first maps whose functions are known, with casts between if all of them are the package's own."""
    run = list(itertools.takewhile(lambda op: op.name in casts or steps_of(op.fn) is not None, maps))
    # Of functions of other libraries it is not known that a cast behind them does the same.
    if not all(op.name in casts or type(op.fn) in OWN for op in run):
        run = list(itertools.takewhile(lambda op: op.name not in casts, run))
    # A cast behind which nothing comes that is known stays an operator of its own.
    while run and run[-1].name in casts:
        run.pop()
    return run


def arithmetic_of_pixels(ops: Sequence[Op], source: Source | None) -> Iterator[Match]:
    """Yield a normalization in NumPy, with a number for each channel, on whole rows of an image; results are equal."""
    for op in _maps(ops)[:1]:
        if is_channel_arithmetic(op):
            why = f"{op.name} computes with rows of pixels where it does nothing but arithmetic"
            rewrite = Pushed("arithmetic of pixels", (op.name,), op.name + BY_ROWS_OF_PIXELS, why)
            yield Match(rewrite, 1, (replace(op, fn=PerChannelFunction(op.fn)),))


def only_casts(op: Map) -> bool:
    """Tell whether an operator does nothing to images of bytes but make floats of them, values as they are.

    Only a function is asked that names nothing but what a cast needs, so that asking it changes nothing: it is run on
    each byte.
    """
    plain = isinstance(op.fn, types.FunctionType) and not op.fn.__closure__
    by_name = plain and set(op.fn.__code__.co_names) <= CASTING
    if is_pass_dependent(op) or not (by_name or type(op.fn) is operator.methodcaller):
        return False
    given, watch = np.arange(256, dtype=np.uint8).reshape(256, 1, 1, 1), RowsWatch(256, exactly=True)
    try:
        made = array_of(op.fn(RowsColumn(given, watch)), watch)
    except Exception:  # what it raises it may raise of this alone
        return False
    return not watch.rejected and made.dtype.kind == "f" and np.array_equal(made, given)


def _maps(ops: Sequence[Op]) -> list[Map]:
    """Return the first operators, as far as they are maps of one column that may be merged."""
    first = ops[0]
    if not isinstance(first, Map) or first.on is None:
        return []
    run = list[Map]()
    for op in ops:
        if not isinstance(op, Map) or op.on != first.on or op.keep_position or op.processes:
            break
        run.append(op)
    return run


def maps_from_source(plan: Plan) -> tuple[Map, ...]:
    """Return the maps between a source and `batch`, behind which nothing comes, if all may be run so; else none."""
    ops = acting_ops(plan.ops)
    if len(ops) < 2 or not isinstance(ops[-1], Batch):
        return ()
    maps = [op for op in ops[:-1] if isinstance(op, Map) and _may_run_in_rows(op)]
    if len(maps) < len(ops) - 1:
        return ()
    if isinstance(plan.head, Join) or plan_shape(plan, order=False).serial:
        return ()
    return tuple(maps) if as_columnar(plan.head) is not None else ()  # asked last: it may look at all of the data


def _may_run_in_rows(op: Map) -> bool:
    return not (op.keep_position or op.processes or is_pass_dependent(op))


def in_rows(ops: Sequence[Op], source: Source | None) -> Iterator[Match]:
    """Yield all maps from the source to `batch` on many elements at a time.

    With all arithmetic, and with that alone whose last bit is prescribed.
    """
    maps = maps_from_source(Plan(head=source, ops=tuple(ops))) if source is not None else ()
    for exactly in (False, True) if maps else ():
        rewrite = rows_at_once(maps, exactly=exactly)
        yield Match(rewrite, len(ops), tuple(_in_rows(op, rewrite.ops, exactly=exactly) for op in ops))


def rows_at_once(maps: Sequence[Map], *, exactly: bool) -> Pushed:
    """Return the rewrite of maps that run on many elements at a time."""
    names = tuple(op.name for op in maps)
    # A job in this process is there to be stepped through.
    why = f"{', '.join(names)} run on many elements at a time (with debug=True one by one)"
    return Pushed(ROWS_AT_ONCE, names, "+".join(names) + IN_ROWS + EXACTLY * exactly, why)


def _in_rows(op: Op, maps: tuple[str, ...], *, exactly: bool) -> Op:
    if not isinstance(op, Batch):
        return op
    return BatchInRows(name=op.name, size=op.size, drop_remainder=op.drop_remainder, maps=maps, exactly=exactly)


RULES: tuple[Rule, ...] = (known_at_once, arithmetic_of_pixels, in_rows)


def matches(ops: Sequence[Op], engine: EngineName, source: Source | None = None) -> Iterator[Match]:
    """Yield what all rules make of the first of some operators, what gains most first."""
    for rule in RULES if engine == "python" else ():
        yield from rule(ops, source)


def apply_rewrites(plan: Plan, engine: EngineName, names: Collection[str]) -> tuple[Plan, tuple[Pushed, ...]]:
    """Return the plan with what an order's `names` say done to it, to joins' inputs too, and that."""
    if not names:
        return plan, ()
    head, found = plan.head, list[Pushed]()
    if isinstance(head, Join):
        branches = [apply_rewrites(branch, engine, names) for branch in head.inputs]
        found += [one for _, some in branches for one in some]
        head = replace(head, inputs=tuple(branch for branch, _ in branches))
    ops, done = _rewrite_ops(plan.ops, engine, names, None if isinstance(head, Join) else head)
    return replace(plan, head=head, ops=ops), (*found, *done)


def rewrite_ops(ops: Sequence[ElementOp], engine: EngineName, names: Collection[str]) -> list[ElementOp]:
    """Do the same to operators on elements."""
    found = _rewrite_ops(ops, engine, names)[0] if names else ops
    return [op for op in found if isinstance(op, ElementOp)]


def _rewrite_ops(
    given: Sequence[Op], engine: EngineName, names: Collection[str], source: Source | None = None
) -> tuple[tuple[Op, ...], tuple[Pushed, ...]]:
    ops, done, at = list(given), list[Pushed](), 0
    while at < len(ops):
        # The first operator alone is given the source's elements as they are.
        found = matches(ops[at:], engine, None if at else source)
        taken = next((one for one in found if one.rewrite.decoder in names), None)
        if taken is not None:
            ops[at : at + taken.replaced] = taken.replacement
            done.append(taken.rewrite)
        at += 1
    return tuple(ops), tuple(done)


def choices(ops: Sequence[Op], engine: EngineName) -> list[list[Pushed]]:
    """Return what each operator could become with those behind it, what gains most first."""
    found, behind = list[list[Pushed]](), 0
    for at in range(len(ops)):
        # What another one could take over begins nothing of its own.
        ways = [one.rewrite for one in matches(ops[at:], engine)] if at >= behind else []
        behind = max([behind, *(at + len(one.ops) for one in ways)])
        if ways:
            found.append(ways)
    return found
