"""The rewrite rule "rows at once": the last maps before `batch` run on many elements at a time.

For tiny elements most of the time goes into calling functions.  A map of which the sample shows that it does nothing
but arithmetic on each number by itself gives equal results on many rows: it is run so on the sample, in groups of
several sizes, forwards and backwards, with values at the ends of the range among them, and compared to the last bit.
What is not in the sample is watched while a job runs (`pecan_ray.engines.python.rows`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.facts import OpSample
from pecan_ray.autoorder.op_runner import OP_FAILURES, Token
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.row_maps import ROWS_BYTES, RowMaps, is_numbers, rows_at_a_time, stacked
from pecan_ray.engines.python.rows import NotInRowsError
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Batch, BatchInRows, ElementOp, Join, Map, Op, Plan, Prefetch, wants_rng
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Element, as_columnar
from pecan_ray.plan.stretches import Stretch, stretches
from pecan_ray.reorder import Mode

RULE = "rows at once"
SUFFIX = " in rows"
"""How an order names it: after the operators, joined by a plus."""
EXACTLY = " exactly"
"""Behind that: only arithmetic whose last bit is prescribed may run so (mode "strict")."""
LEAST_ELEMENTS = 16
"""On fewer nothing is proven."""
MOST_PROVEN = 96
"""Elements of the sample that the proof takes; together with unusual ones."""
GROUPS = (1, 2, 3, 7, 16)
"""Rows at a time in the proof, besides all at once: what is left of the last group is a short one."""
TIME_SHARE = 0.02
"""Share of the time that is left in which the operators run the elements of a proof, once."""
LARGEST = ROWS_BYTES // 4
"""Bytes of an element beyond which its own work, and not the calls, takes the time."""
LEAST_GAIN = 1.5
"""Times that the maps have to become as fast,"""
LEAST_SAVED_S = 1e-6
"""seconds that must be saved of an element,"""
LEAST_SHARE = 0.05
"""and the share of the time of reading and all operators that this must be."""
ROUNDS = 5
"""Runs of either kind, in turn, of which the shortest counts."""


@dataclass(frozen=True)
class InRows:
    """What the rule has found of the maps before `batch`."""

    ops: tuple[str, ...] = ()
    """Those that run on many elements at a time; empty: none does."""
    measured: SpeedComparison | None = None
    """These alone."""
    stretch_speedup: float = 1.0
    """Seconds of all operators of the stretch, one by one, over those with it."""
    exactly: bool = False
    refused: tuple[tuple[str, str], ...] = ()
    """The operators that stay as they are, and why."""

    @property
    def name(self) -> str:
        """What an order calls it by."""
        return "+".join(self.ops) + SUFFIX + EXACTLY * self.exactly

    def told(self) -> str:
        """Say it in words."""
        gain = f": these {self.measured.told()}" if self.measured is not None else ""
        return f"{', '.join(self.ops)} run on many elements at a time (rule {RULE}){gain}"


NOTHING_IN_ROWS = InRows()


def maps_before_batch(plan: Plan, names: Sequence[str]) -> tuple[ElementOp, ...]:
    """Return the maps at the end of a stretch that may be run so, as far as the plan tells."""
    if int(np.__version__.partition(".")[0]) < 2 or isinstance(plan.head, Join) or plan_shape(plan).serial:
        return ()  # before NumPy 2 the dtype of a result depended on whether there was one number or several
    places = [place for place, op in enumerate(plan.ops) if op.name in names]
    behind = plan.ops[places[-1] + 1 :] if places else ()
    if not behind or not isinstance(behind[0], Batch) or not all(isinstance(op, Prefetch) for op in behind[1:]):
        return ()
    ops = [plan.ops[place] for place in places]
    found = list(itertools.takewhile(_may_be, reversed(ops)))
    return tuple(op for op in reversed(found) if isinstance(op, Map))


def _may_be(op: Op) -> bool:
    if not isinstance(op, Map) or op.keep_position or op.processes or op.random:
        return False
    return not wants_rng(op.fn)


def choices_in_rows(plan: Plan, engine: EngineName) -> list[str]:
    """Return what an order of a plan may name."""
    if engine != "python":
        return []
    found = [maps_before_batch(plan, one.names) for one in stretches(plan)]
    tails = [[op.name for op in ops[at:]] for ops in found for at in range(len(ops))]
    return [InRows(tuple(names), exactly=exactly).name for names in tails for exactly in (False, True)]


def with_maps_in_rows(plan: Plan, engine: EngineName, chosen: Collection[str]) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan with those maps in rows that `chosen` names, and what that is in words."""
    for name in chosen if engine == "python" else ():
        names, found, exactly = name.partition(SUFFIX)
        for place, op in enumerate(plan.ops):
            maps = tuple(before.name for before in plan.ops[max(place - names.count("+") - 1, 0) : place])
            if found and isinstance(op, Batch) and "+".join(maps) == names:
                batch = BatchInRows(
                    name=op.name, size=op.size, drop_remainder=op.drop_remainder, maps=maps, exactly=bool(exactly)
                )
                told = InRows(maps).told()
                return replace(plan, ops=(*plan.ops[:place], batch, *plan.ops[place + 1 :])), (told,)
    return plan, ()


def try_in_rows(stretch: Stretch, sampled: Sampled, maps: Sequence[ElementOp], mode: Mode) -> InRows:
    """Return which of the maps before `batch`, the last ones, can be run in rows, and are worth it."""
    if not maps or mode in ("paper", "off") or len(sampled.held) < LEAST_ELEMENTS:
        return NOTHING_IN_ROWS
    last = next(op for op in sampled.profile().ops if op.name == maps[-1].name)
    if not is_tiny(last):
        return NOTHING_IN_ROWS
    trial = _RowsTrial(stretch, sampled, exactly=mode == "strict")
    proven: list[ElementOp] = []
    refused: list[tuple[str, str]] = []
    try:
        for op in reversed(maps):
            if why := trial.refused(op):
                refused.append((op.name, why))
                break
            proven.insert(0, op)
        if proven and (why := trial.refused(*proven) if len(proven) > 1 else ""):
            return InRows(refused=(*refused, ("+".join(op.name for op in proven), why)))
        if not proven:
            return InRows(refused=tuple(refused))
        return trial.judged(proven, tuple(refused))
    except OP_FAILURES as error:
        return InRows(refused=((maps[-1].name, f"it fails: {error.message.splitlines()[0]}"),))


def is_tiny(op: OpSample) -> bool:
    """Tell whether elements are so small that calls of functions take much of their time."""
    return max(op.bytes_in, op.bytes_out) <= LARGEST * max(op.elements_in, 1)


class _RowsTrial:
    """Runs maps in rows on the sample."""

    def __init__(self, stretch: Stretch, sampled: Sampled, *, exactly: bool) -> None:
        self._sampled, self._runner, self._exactly = sampled, sampled.runner, exactly
        self._names = stretch.names
        self._as_columns = _gives_columns(stretch.prefix)
        """Its elements need not be put together: the source gives columns."""
        self._ops = sampled.profile().ops
        """What the sample shows of them."""
        each = sum(op.seconds or 0.0 for op in self._ops)
        affordable = TIME_SHARE * sampled.left_s() / max(each, 1e-9)
        self._count = int(min(len(sampled.held), MOST_PROVEN, affordable))

    def refused(self, *ops: ElementOp) -> str:
        """Return why operators, which follow one another, cannot be run in rows; empty if they can."""
        for op in ops:
            tally = self._ops[self._names.index(op.name)]
            if tally.random or tally.draws or tally.unequal or tally.stateful:
                return "it draws random numbers, or holds state"
            if not is_tiny(tally):
                return f"its elements have more than {LARGEST >> 10} KiB"
        maps = RowMaps(ops, EngineOptions(), exactly=self._exactly)
        if why := self._refused_at_once(ops[0], maps):
            return why
        given = self._given(ops[0], self._count)
        if len(given) < LEAST_ELEMENTS:
            return f"{len(given)} elements are too few, or what comes before it is slow"
        stage = self._runner.stages([op.name for op in ops], fused=True)[0]
        pairs: list[tuple[Element, Element]] = []
        for number, token in enumerate([*given, *self._unusual(given)]):
            if not self._sampled.in_time():
                return "there was no time to run it"
            try:
                with np.errstate(all="ignore"):
                    (made,) = stage(self._runner.fresh(token))
            except (*OP_FAILURES, ValueError) as error:
                if number < len(given):
                    return f"it fails: {str(error).splitlines()[0]}"
                continue  # on a value that elements may never have
            pairs.append((self._runner.columns(token), dict(self._runner.columns(made))))
        return self._differs(maps, pairs)

    def _refused_at_once(self, op: ElementOp, maps: RowMaps) -> str:
        """Return why maps refuse the very first elements; most that cannot be run so do."""
        columns = stacked([self._runner.columns(token) for token in self._given(op, 2)][:1] * 2)
        if columns is None or not any(is_numbers(column) for column in columns.values()):
            return "its elements hold no numbers of NumPy"
        try:
            with np.errstate(all="ignore"):
                maps.run(columns, 2, _item(self._sampled.held[0]))
        except NotInRowsError as error:
            return str(error).partition(": ")[2] or str(error)
        return ""

    def _given(self, op: ElementOp, count: int) -> list[Token]:
        """Return what an operator is given in the user's order, as copies."""
        stages = self._runner.stages(self._names[: self._names.index(op.name)], fused=True)
        tokens: list[Token] = []
        for number in range(count):
            pieces = [self._sampled.token(number)]
            for stage in stages:
                pieces = [made for piece in pieces for made in stage(piece)]
            tokens += pieces
        return [self._runner.fresh(token) for token in tokens[:MOST_PROVEN]]

    def _unusual(self, given: Sequence[Token]) -> list[Token]:
        """Return elements in which numbers are at the ends of their range, are none, or are 0 or 1."""
        found, first = [], self._runner.columns(given[0])
        for place in range(max((len(_ends(value)) for value in first.values()), default=0)):
            columns = {}
            for name, value in first.items():
                if ends := _ends(value):
                    one = ends[place % len(ends)]
                    columns[name] = np.full_like(value, one) if isinstance(value, np.ndarray) else type(value)(one)
            found.append(self._runner.replaced(given[0], columns))
        return found

    def _differs(self, maps: RowMaps, pairs: Sequence[tuple[Element, Element]]) -> str:
        """Return how the results in rows differ from those one by one; empty if they are equal."""
        alike: dict[Any, list[tuple[Element, Element]]] = {}
        for pair in pairs:
            alike.setdefault(_form(pair[0]), []).append(pair)
        for group in alike.values():
            for size in (*GROUPS, len(group)):
                for order in (group, group[::-1]):
                    for start in range(0, len(order), size):
                        if why := self._part_differs(maps, order[start : start + size]):
                            return why
        return ""

    def _part_differs(self, maps: RowMaps, pairs: Sequence[tuple[Element, Element]]) -> str:
        columns = stacked([before for before, _ in pairs])
        if columns is None or not any(is_numbers(column) for column in columns.values()):
            return "its elements hold no numbers of NumPy"
        try:
            with np.errstate(all="ignore"):
                made = maps.run(columns, len(pairs), _item(self._sampled.held[0]))
        except NotInRowsError as error:
            return str(error).partition(": ")[2] or str(error)
        for row, (_, after) in enumerate(pairs):
            if list(made) != list(after):
                return f"it gives the columns {list(made)} in rows, and {list(after)} one by one"
            for name, value in after.items():
                if not _same(made[name][row], value):
                    return f"column {name!r} is another in rows"
        return ""

    def judged(self, ops: Sequence[ElementOp], refused: tuple[tuple[str, str], ...]) -> InRows:
        """Return what proven maps gain in rows, if that is worth it."""
        names, given = tuple(op.name for op in ops), self._given(ops[0], self._count)
        stage = self._runner.stages(names, fused=True)[0]
        maps = RowMaps(ops, EngineOptions(), exactly=self._exactly)
        alone, together = list[float](), list[float]()
        elements = [self._runner.columns(token) for token in given]
        columns, timer = stacked(elements), self._runner.timer()
        for _ in range(ROUNDS):
            tokens = [self._runner.fresh(token) for token in given]
            timer.start()
            for token in tokens:
                stage(token)
            alone.append(timer.stop())
            timer.start()
            if not self._as_columns:
                columns = stacked(elements)
            if columns is None:
                return InRows(refused=(*refused, ("+".join(names), "its elements are of unlike shapes")))
            step = rows_at_a_time(columns, len(given))
            for start in range(0, len(given), step):
                part = {name: column[start : start + step] for name, column in columns.items()}
                maps.run(part, min(step, len(given) - start), _item(self._sampled.held[0]))
            together.append(timer.stop())
        before, after = (min(times) / len(given) for times in (alone, together))
        error = float(np.std([a / b for a, b in zip(alone, together, strict=True)]) / ROUNDS**0.5)
        measured = SpeedComparison(before / max(after, 1e-12), error, before, after, len(given))
        return self._worth(InRows(names, measured, exactly=self._exactly, refused=refused))

    def _worth(self, found: InRows) -> InRows:
        """Return it if the pipeline gains enough; the seconds of all operators are those of the sample."""
        assert found.measured is not None
        sample, measured = self._sampled.profile(), found.measured
        saved = measured.seconds_before - measured.seconds_after
        others = sum((op.seconds or 0.0) * op.elements_in for op in sample.ops if op.name not in found.ops)
        whole = others / max(sample.elements, 1) + measured.seconds_before
        share = saved / (whole + (sample.reading_s or 0.0))
        if measured.speedup >= LEAST_GAIN and saved >= LEAST_SAVED_S and share >= LEAST_SHARE:
            return replace(found, stretch_speedup=whole / max(whole - saved, 1e-12))
        why = f"it is not worth it: {measured.told()}, {1e6 * saved:.1f} us of an element"
        return InRows(refused=(*found.refused, ("+".join(found.ops), why)))


def _gives_columns(plan: Plan) -> bool:
    return not plan.ops and not isinstance(plan.head, Join) and as_columnar(plan.head) is not None


def _item(token: Token) -> Item:
    assert isinstance(token, Item)
    return token


def _form(element: Element) -> Any:
    """Return what elements must have in common to be rows."""
    return tuple((name, type(value), np.shape(value), getattr(value, "dtype", None)) for name, value in element.items())


def _ends(value: Any) -> list[Any]:
    """Return numbers of a value's dtype that are unusual."""
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return []
    if dtype.kind == "f":
        about = np.finfo(dtype)
        ends = [0.0, -0.0, 1.0, -1.0, 0.5, 255.0, -300.0, np.inf, -np.inf, np.nan, about.max, about.min, about.tiny]
        return [*ends, about.smallest_subnormal, about.eps]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return [0, 1, limits.max, limits.min, limits.max // 2 + 1, 100]
    return [False, True] if dtype.kind == "b" else []


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal to the last bit; what is not a number is so in any spelling."""
    if not isinstance(other, (np.ndarray, np.generic)) or np.asarray(other).dtype.kind not in "biuf":
        return type(one) is type(other) and equal(one, other)
    mine, its = np.asarray(one), np.asarray(other)
    if mine.dtype != its.dtype or mine.shape != its.shape:
        return False
    if mine.tobytes() == its.tobytes():
        return True
    if its.dtype.kind != "f":
        return False
    numbers = ~np.isnan(its)
    return bool((np.isnan(mine) == ~numbers).all()) and mine[numbers].tobytes() == its[numbers].tobytes()
