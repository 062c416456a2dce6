"""The rewrite rule "rows at once": maps between a source with columns and `batch` run on many elements at a time.

For tiny elements most of the time goes into calling functions, and into making an object of a row.  Both are saved
where all maps back to the source can be run so, and only there.  A map that does nothing but arithmetic on each number
by itself gives equal results on many rows.  That is watched, while a job runs too (`pecan_ray.engines.python.rows`);
the sample is run besides, and compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pecan_ray.autoorder.adopted import NOTHING_TAKEN_OVER, Refused, TakenOver
from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.facts import OpSample
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token
from pecan_ray.autoorder.rewrites import ROWS_AT_ONCE, Match, Pushed
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.python.row_maps import ROWS_BYTES, RowMaps, is_numbers, rows_at_a_time, stacked
from pecan_ray.engines.python.rows import NotInRowsError
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import (
    Batch,
    BatchInRows,
    Join,
    Map,
    Op,
    Plan,
    Prefetch,
    Repeat,
    is_idle,
    is_pass_dependent,
)
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Source, as_columnar
from pecan_ray.reorder import Mode

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


def maps_from_source(plan: Plan) -> tuple[Map, ...]:
    """Return the maps between a source and `batch` if all may be run so, as far as the plan tells; else none."""
    if int(np.__version__.partition(".")[0]) < 2 or isinstance(plan.head, Join) or plan_shape(plan).serial:
        return ()  # before NumPy 2 the dtype of a result depended on whether there was one number or several
    maps = _maps_and_then_batch(plan)
    return maps if maps and as_columnar(plan.head) is not None else ()  # asked last: it may look at all of the data


def _maps_and_then_batch(plan: Plan) -> tuple[Map, ...]:
    """Return the maps of a plan that has nothing else before its `batch`, and nothing behind it; else none."""
    ops = [op for op in plan.ops if not isinstance(op, (Prefetch, Repeat)) and not is_idle(op)]
    maps = tuple(op for op in itertools.takewhile(_may_be, ops) if isinstance(op, Map))
    if len(ops) != len(maps) + 1 or not isinstance(ops[-1], Batch):
        return ()
    return maps


def _may_be(op: Op) -> bool:
    return isinstance(op, Map) and not (op.keep_position or op.processes or is_pass_dependent(op))


class RowsAtOnce:
    """All maps from the source to `batch` run on many elements at a time."""

    def matches(self, ops: Sequence[Op], engine: EngineName, source: Source | None) -> Iterator[Match]:
        """Yield it with all arithmetic, and with that alone whose last bit is prescribed."""
        maps = maps_from_source(Plan(head=source, ops=tuple(ops))) if engine == "python" and source is not None else ()
        for exactly in (False, True) if maps else ():
            rewrite = _rewrite(maps, exactly=exactly)
            yield Match(rewrite, len(ops), tuple(_in_rows(op, rewrite.ops, exactly=exactly) for op in ops))


def _rewrite(maps: Sequence[Map], *, exactly: bool) -> Pushed:
    names = tuple(op.name for op in maps)
    name = "+".join(names) + SUFFIX + EXACTLY * exactly
    return Pushed(ROWS_AT_ONCE, names, name, f"{', '.join(names)} run on many elements at a time")


def _in_rows(op: Op, maps: tuple[str, ...], *, exactly: bool) -> Op:
    if not isinstance(op, Batch):
        return op
    return BatchInRows(name=op.name, size=op.size, drop_remainder=op.drop_remainder, maps=maps, exactly=exactly)


def try_in_rows(sampled: Sampled, maps: Sequence[Map], mode: Mode) -> TakenOver:
    """Return whether the maps of a sampled stretch, which are all of it, can be run in rows, and are worth it."""
    ops = sampled.profile().ops
    if not maps or mode in ("pecan", "off") or len(sampled.held) < LEAST_ELEMENTS or not all(map(is_tiny, ops)):
        return NOTHING_TAKEN_OVER
    rewrite = _rewrite(maps, exactly=mode == "strict")
    try:
        if any(op.random or op.draws or op.unequal or op.stateful for op in ops):
            raise NotInRowsError("one of them draws random numbers, or holds state")
        measured = _measured(sampled, RowMaps(maps, EngineOptions(), exactly=mode == "strict"))
    except NotInRowsError as error:
        why = str(error).partition("\n")[0]
    except OP_FAILURES as error:
        why = f"it fails: {error.message.splitlines()[0]}"
    else:
        return TakenOver((rewrite,), measured=measured)
    return TakenOver(refused=(Refused(rewrite.ops, f"(rule {ROWS_AT_ONCE}) {why}"),))


def is_tiny(op: OpSample) -> bool:
    """Tell whether elements are so small that calls of functions take much of their time."""
    return max(op.bytes_in, op.bytes_out) <= LARGEST * max(op.elements_in, 1)


def _measured(sampled: Sampled, maps: RowMaps) -> SpeedComparison:
    """Return what maps gain on a sample; raise `NotInRowsError` if results in rows are others, or it is too little."""
    runner = sampled.runner
    (stage,) = runner.stages([op.name for op in maps.ops], fused=True)
    each = sum(op.seconds or 0.0 for op in sampled.profile().ops)
    count = int(min(len(sampled.held), MOST_PROVEN, TIME_SHARE * sampled.left_s() / max(each, 1e-9)))
    if count < LEAST_ELEMENTS:
        raise NotInRowsError("there was no time to run it")
    tokens = sampled.held[:count]
    before = [runner.columns(token) for token in tokens]
    after = [runner.columns(stage(runner.fresh(token))[0]) for token in tokens]
    for size in (count, GROUP):
        for start in range(0, count, size):
            part = slice(start, start + size)
            _check_equal(maps, tokens[0], before[part], after[part])
    found = _speed(sampled, stage, maps, tokens)
    saved = found.seconds_before - found.seconds_after
    share = LEAST_SHARE * (found.seconds_before + (runner.reading_s or 0.0))
    if found.speedup < LEAST_GAIN or saved < max(LEAST_SAVED_S, share):
        raise NotInRowsError(f"it is not worth it: {found.told()}, {1e6 * saved:.1f} us of an element")
    return found


def _check_equal(
    maps: RowMaps, first: Token, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> None:
    columns = stacked(before)
    if columns is None or not any(is_numbers(column) for column in columns.values()):
        raise NotInRowsError("its elements hold no numbers of NumPy, or are unlike each other")
    with np.errstate(all="ignore"):
        made = maps.run(columns, len(before), first)
    for row, one in enumerate(after):
        if list(made) != list(one):
            raise NotInRowsError(f"the columns are {list(made)} in rows, and {list(one)} one by one")
        for name, value in one.items():
            if not equal(made[name][row], value):
                raise NotInRowsError(f"column {name!r} is another in rows")


def _speed(sampled: Sampled, stage: Stage, maps: RowMaps, tokens: Sequence[Token]) -> SpeedComparison:
    """Run the maps one by one and in rows, in turn."""
    runner, count, timer = sampled.runner, len(tokens), sampled.runner.timer()
    columns = stacked([runner.columns(token) for token in tokens])
    assert columns is not None
    step, seconds = rows_at_a_time(columns, count), np.zeros((ROUNDS, 2))
    for times in seconds:
        fresh = [runner.fresh(token) for token in tokens]
        timer.start()
        for token in fresh:
            stage(token)
        times[0] = timer.stop()
        timer.start()
        for start in range(0, count, step):
            part = {name: column[start : start + step] for name, column in columns.items()}
            maps.run(part, min(step, count - start), tokens[0])
        times[1] = timer.stop()
    before, after = (seconds.min(axis=0) / count).tolist()
    error = float(np.std(seconds[:, 0] / seconds[:, 1]) / ROUNDS**0.5)
    return SpeedComparison(before / max(after, 1e-12), error, before, after, count)
