"""Trying the rewrite "rows at once": maps between a source with columns and `batch` run on many elements at a time.

For tiny elements most of the time goes into calling functions, and into making an object of a row.  Both are saved
where all maps back to the source can be run so, and only there.  A map that does nothing but arithmetic on each number
by itself gives equal results on many rows.  That is watched, while a job runs too (`pecan_ray.engines.python.rows`);
the sample is run besides, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pecan_ray.autoorder.accepted import NOTHING_TAKEN_OVER, RejectedOrder, TakenOver
from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token
from pecan_ray.autoorder.op_samples import OpSample
from pecan_ray.autoorder.rewrites import ROWS_AT_ONCE, rows_at_once
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.speed import SpeedComparison, compare_ways
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.python.plain_functions import why_not_plain
from pecan_ray.engines.python.row_maps import ROWS_BYTES, RowMaps, is_numbers, rows_at_a_time, stacked
from pecan_ray.engines.python.rows import NotInRowsError
from pecan_ray.plan.operators import Map
from pecan_ray.reorder import Mode

LEAST_ELEMENTS = 16
"""On fewer nothing is proven: three groups of `GROUP` elements, one of them short."""
MOST_PROVEN = 96
"""Elements of the sample that are compared all at once: 13 groups of `GROUP` and a short one."""
GROUP = 7
"""They are compared again so many at a time: the last group is a short one."""
TIME_SHARE = 0.02
"""Share of the time that is left in which the operators run them, once."""
LARGEST = ROWS_BYTES // 4
"""Bytes of an element beyond which its own work, and not the calls, takes the time."""
LEAST_GAIN = 1.5
"""Times that the maps have to become as fast.  Chosen: maps that run in rows and fail go through twice, so a small gain
is none."""


def try_in_rows(sampled: Sampled, maps: Sequence[Map], mode: Mode) -> TakenOver:
    """Return whether the maps of a sampled stretch, which are all of it, can be run in rows, and are worth it."""
    ops = sampled.profile().ops
    # Of larger ones calls of functions take little of the time.
    tiny = all(max(op.bytes_in, op.bytes_out) <= LARGEST * max(op.elements_in, 1) for op in ops)
    if not maps or mode in ("pecan", "off") or len(sampled.held) < LEAST_ELEMENTS or not tiny:
        return NOTHING_TAKEN_OVER
    rewrite = rows_at_once(maps, exactly=mode == "strict")
    try:
        _check_alike(maps, ops)
        measured = _measured(sampled, RowMaps(maps, EngineOptions(), exactly=mode == "strict"))
    except NotInRowsError as error:
        why = str(error).partition("\n")[0]
    except OP_FAILURES as error:
        why = f"it fails: {error.message.splitlines()[0]}"
    else:
        return TakenOver((rewrite,), measured=measured)
    return TakenOver(rejected=(RejectedOrder(rewrite.ops, f"they stay one by one (rule {ROWS_AT_ONCE}): {why}"),))


def _check_alike(maps: Sequence[Map], ops: Sequence[OpSample]) -> None:
    """Raise `NotInRowsError` for what draws, or may remember: its code tells, where a sample is too short."""
    if told := [f"{op.name}: {why}" for op in maps if (why := why_not_plain(op.fn))]:
        raise NotInRowsError(told[0])
    if any(op.profiled.random or op.profiled.draws or op.profiled.unequal for op in ops):
        raise NotInRowsError("one of them draws random numbers, or holds state")


def _measured(sampled: Sampled, maps: RowMaps) -> SpeedComparison:
    """Return what maps gain on a sample; raise `NotInRowsError` if results in rows are others, or it is too little."""
    runner = sampled.runner
    (stage,) = runner.stages([op.name for op in maps.ops], fused=True)
    each = max(sum(op.seconds or 0.0 for op in sampled.profile().ops), 1e-9)
    count = int(min(len(sampled.held), MOST_PROVEN, TIME_SHARE * (sampled.limits.deadline - sampled.clock()) / each))
    if count < LEAST_ELEMENTS:
        raise NotInRowsError("there was no time to run it")
    tokens = sampled.held[:count]
    before = [runner.columns(token) for token in tokens]
    after = [runner.columns(stage.run(runner.fresh(token))[0]) for token in tokens]
    # In groups as well: a result that depends on the number of rows shows there.
    for size in (count, GROUP):
        for start in range(0, count, size):
            part = slice(start, start + size)
            _check_equal(maps, tokens[0], before[part], after[part])
    found = _speed(sampled, stage, maps, tokens)
    if found is None:
        raise NotInRowsError("there was no time to measure it")
    if found.speedup < LEAST_GAIN:
        raise NotInRowsError(f"the maps need to become {LEAST_GAIN} times as fast: {found.description()}")
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


def _speed(sampled: Sampled, stage: Stage, maps: RowMaps, tokens: Sequence[Token]) -> SpeedComparison | None:
    """Run the maps one by one and in rows, in turn."""
    runner, count = sampled.runner, len(tokens)
    columns = stacked([runner.columns(token) for token in tokens])
    assert columns is not None
    step = rows_at_a_time(columns, count)

    def one_by_one(group: int) -> Callable[[], object]:
        fresh = [runner.fresh(token) for token in tokens[group * step : (group + 1) * step]]
        return lambda: [stage.run(token) for token in fresh]

    def in_rows(group: int) -> Callable[[], object]:
        part = {name: column[group * step : (group + 1) * step] for name, column in columns.items()}
        return partial(maps.run, part, min(step, count - group * step), tokens[0])

    found = compare_ways(sampled, (one_by_one, in_rows), -(-count // step), LEAST_GAIN)
    return found and replace(found, elements=count)
