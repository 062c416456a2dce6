"""The rewrite rule "rows at once": maps between a source with columns and `batch` run on many elements at a time.

For tiny elements most of the time goes into calling functions, and into making an object of a row.  Both are saved
where all maps back to the source can be run so, and only there.  A map that does nothing but arithmetic on each number
by itself gives equal results on many rows.  That is watched, while a job runs too (`pecan_ray.engines.python.rows`);
the sample is run besides, and compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.facts import OpSample
from pecan_ray.autoorder.op_runner import OP_FAILURES
from pecan_ray.autoorder.rewrites import Match, Pushed
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.row_maps import ROWS_BYTES, RowMaps, is_numbers, rows_at_a_time, stacked
from pecan_ray.engines.python.rows import NotInRowsError
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Batch, BatchInRows, Join, Map, Op, Plan, Prefetch, Repeat, is_idle, varies_by_pass
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Source, as_columnar
from pecan_ray.reorder import Mode

RULE = "rows at once"
SUFFIX = " in rows"
"""How an order names it: after the operators, joined by a plus."""
EXACTLY = " exactly"
"""Behind that: only arithmetic whose last bit is prescribed may run so (mode "strict")."""
LEAST_ELEMENTS = 16
"""On fewer nothing is proven."""
MOST_PROVEN = 96
"""Elements of the sample that are compared,"""
GROUP = 7
"""all at once, and so many at a time: what is left of the last group is a short one."""
TIME_SHARE = 0.02
"""Share of the time that is left in which the operators run them, once."""
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
    """What the rule has found of the maps of a pipeline."""

    ops: tuple[str, ...] = ()
    """Those that run on many elements at a time; empty: none does."""
    measured: SpeedComparison | None = None
    """These, which are all operators of the stretch, one by one and with it."""
    exactly: bool = False
    refused: str = ""
    """Why they stay as they are; empty where they do not, or the rule says nothing of them."""

    @property
    def name(self) -> str:
        """What an order calls it by."""
        return "+".join(self.ops) + SUFFIX + EXACTLY * self.exactly

    @property
    def why(self) -> str:
        """What is done, in words."""
        return f"{', '.join(self.ops)} run on many elements at a time"

    def told(self) -> str:
        """Say it with what it gains."""
        gain = f": these {self.measured.told()}" if self.measured is not None else ""
        return f"{self.why} (rule {RULE}){gain}"


NOTHING_IN_ROWS = InRows()


def maps_from_source(plan: Plan) -> tuple[Map, ...]:
    """Return the maps between a source and `batch` if all may be run so, as far as the plan tells; else none."""
    if int(np.__version__.partition(".")[0]) < 2 or isinstance(plan.head, Join) or plan_shape(plan).serial:
        return ()  # before NumPy 2 the dtype of a result depended on whether there was one number or several
    ops = [op for op in plan.ops if not isinstance(op, (Prefetch, Repeat)) and not is_idle(op)]
    maps = tuple(op for op in itertools.takewhile(_may_be, ops) if isinstance(op, Map))
    if not maps or len(ops) != len(maps) + 1 or not isinstance(ops[-1], Batch):
        return ()
    return maps if as_columnar(plan.head) is not None else ()  # asked last: it may look at all of the data


def _may_be(op: Op) -> bool:
    return isinstance(op, Map) and not (op.keep_position or op.processes or varies_by_pass(op))


class RowsAtOnce:
    """All maps from the source to `batch` run on many elements at a time."""

    def matches(self, ops: Sequence[Op], engine: EngineName, source: Source | None) -> Iterator[Match]:
        """Yield it with all arithmetic, and with that alone whose last bit is prescribed."""
        maps = maps_from_source(Plan(head=source, ops=tuple(ops))) if engine == "python" and source is not None else ()
        for exactly in (False, True) if maps else ():
            found = InRows(tuple(op.name for op in maps), exactly=exactly)
            rewrite = Pushed(RULE, found.ops, found.name, found.why)
            yield Match(rewrite, len(ops), tuple(_in_rows(op, found) for op in ops))


def _in_rows(op: Op, found: InRows) -> Op:
    if not isinstance(op, Batch):
        return op
    return BatchInRows(
        name=op.name, size=op.size, drop_remainder=op.drop_remainder, maps=found.ops, exactly=found.exactly
    )


def try_in_rows(sampled: Sampled, maps: Sequence[Map], mode: Mode) -> InRows:
    """Return whether the maps of a sampled stretch, which are all of it, can be run in rows, and are worth it."""
    ops = sampled.profile().ops
    if not maps or mode in ("pecan", "off") or len(sampled.held) < LEAST_ELEMENTS or not all(map(is_tiny, ops)):
        return NOTHING_IN_ROWS
    if any(op.random or op.draws or op.unequal or op.stateful for op in ops):
        return InRows(refused="one of them draws random numbers, or holds state")
    return _tried(sampled, maps, exactly=mode == "strict")


def _tried(sampled: Sampled, maps: Sequence[Map], *, exactly: bool) -> InRows:
    """Run maps in rows beside one by one, and return whether they are worth it."""
    trial = _RowsTrial(sampled, RowMaps(maps, EngineOptions(), exactly=exactly))
    try:
        measured = trial.measured()
    except NotInRowsError as error:
        return InRows(refused=str(error).partition("\n")[0])
    except OP_FAILURES as error:
        return InRows(refused=f"it fails: {error.message.splitlines()[0]}")
    whole = measured.seconds_before + (sampled.runner.reading_s or 0.0)
    saved = measured.seconds_before - measured.seconds_after
    if measured.speedup >= LEAST_GAIN and saved >= LEAST_SAVED_S and saved >= LEAST_SHARE * whole:
        return InRows(tuple(op.name for op in maps), measured, exactly)
    return InRows(refused=f"it is not worth it: {measured.told()}, {1e6 * saved:.1f} us of an element")


def is_tiny(op: OpSample) -> bool:
    """Tell whether elements are so small that calls of functions take much of their time."""
    return max(op.bytes_in, op.bytes_out) <= LARGEST * max(op.elements_in, 1)


class _RowsTrial:
    """Runs the maps of a stretch in rows on its sample; raises `NotInRowsError` where they cannot be run so."""

    def __init__(self, sampled: Sampled, maps: RowMaps) -> None:
        self._sampled, self._runner, self._maps = sampled, sampled.runner, maps
        (self._stage,) = self._runner.stages([op.name for op in maps.ops], fused=True)
        each = sum(op.seconds or 0.0 for op in sampled.profile().ops)
        affordable = TIME_SHARE * sampled.left_s() / max(each, 1e-9)
        count = int(min(len(sampled.held), MOST_PROVEN, affordable))
        if count < LEAST_ELEMENTS:
            raise NotInRowsError("there was no time to run it")
        self._tokens = sampled.held[:count]

    def measured(self) -> SpeedComparison:
        """Return what the maps gain, if their results in rows are those of one by one."""
        pairs = list[tuple[Mapping[str, Any], Mapping[str, Any]]]()
        for token in self._tokens:
            (made,) = self._stage(self._runner.fresh(token))
            pairs.append((self._runner.columns(token), self._runner.columns(made)))
        for size in (len(pairs), GROUP):
            for start in range(0, len(pairs), size):
                self._check_part(pairs[start : start + size])
        return self._compare_speed()

    def _check_part(self, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
        columns = stacked([before for before, _ in pairs])
        if columns is None or not any(is_numbers(column) for column in columns.values()):
            raise NotInRowsError("its elements hold no numbers of NumPy, or are unlike each other")
        with np.errstate(all="ignore"):
            made = self._maps.run(columns, len(pairs), self._first)
        for row, (_, after) in enumerate(pairs):
            if list(made) != list(after):
                raise NotInRowsError(f"the columns are {list(made)} in rows, and {list(after)} one by one")
            for name, value in after.items():
                if not equal(made[name][row], value):
                    raise NotInRowsError(f"column {name!r} is another in rows")

    @property
    def _first(self) -> Item:
        assert isinstance(self._tokens[0], Item)
        return self._tokens[0]

    def _compare_speed(self) -> SpeedComparison:
        """Run the maps one by one and in rows, in turn."""
        alone, together, timer = list[float](), list[float](), self._runner.timer()
        columns, count = stacked([self._runner.columns(token) for token in self._tokens]), len(self._tokens)
        assert columns is not None
        step = rows_at_a_time(columns, count)
        for _ in range(ROUNDS):
            tokens = [self._runner.fresh(token) for token in self._tokens]
            timer.start()
            for token in tokens:
                self._stage(token)
            alone.append(timer.stop())
            timer.start()
            for start in range(0, count, step):
                part = {name: column[start : start + step] for name, column in columns.items()}
                self._maps.run(part, min(step, count - start), self._first)
            together.append(timer.stop())
        before, after = (min(times) / count for times in (alone, together))
        error = float(np.std([a / b for a, b in zip(alone, together, strict=True)]) / ROUNDS**0.5)
        return SpeedComparison(before / max(after, 1e-12), error, before, after, count)
