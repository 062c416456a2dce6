"""Trying the rewrite "rows at once": maps between a source with columns and `batch` run on many elements at a time.

For tiny elements most of the time goes into calling functions, and into making an object of a row.  Both are saved
where all maps back to the source can be run so, and only there.  A map that does nothing but arithmetic on each number
by itself gives equal results on many rows.  That is watched, while a job runs too (`pecan_ray.engines.python.rows`);
the sample is run besides, and compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pecan_ray.autoorder.accepted import NOTHING_TAKEN_OVER, RejectedOrder, TakenOver
from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token
from pecan_ray.autoorder.op_samples import OpSample
from pecan_ray.autoorder.rewrites import ROWS_AT_ONCE, rows_at_once
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.python.row_maps import ROWS_BYTES, RowMaps, is_numbers, rows_at_a_time, stacked
from pecan_ray.engines.python.rows import NotInRowsError
from pecan_ray.plan.operators import Map
from pecan_ray.reorder import Mode

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
"""Times that the maps have to become as fast."""
ROUNDS = 5
"""Runs of either kind, in turn, of which the shortest counts."""


def try_in_rows(sampled: Sampled, maps: Sequence[Map], mode: Mode) -> TakenOver:
    """Return whether the maps of a sampled stretch, which are all of it, can be run in rows, and are worth it."""
    ops = sampled.profile().ops
    if not maps or mode in ("pecan", "off") or len(sampled.held) < LEAST_ELEMENTS or not all(map(is_tiny, ops)):
        return NOTHING_TAKEN_OVER
    rewrite = rows_at_once(maps, exactly=mode == "strict")
    try:
        # A function that draws, or remembers, means something else for many rows than for one.
        if any(op.profiled.random or op.stats.draws or op.stats.unequal for op in ops):
            raise NotInRowsError("one of them draws random numbers, or holds state")
        measured = _measured(sampled, RowMaps(maps, EngineOptions(), exactly=mode == "strict"))
    except NotInRowsError as error:
        why = str(error).partition("\n")[0]
    except OP_FAILURES as error:
        why = f"it fails: {error.message.splitlines()[0]}"
    else:
        return TakenOver((rewrite,), measured=measured)
    return TakenOver(rejected=(RejectedOrder(rewrite.ops, f"(rule {ROWS_AT_ONCE}) {why}"),))


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
    # In groups as well: a result that depends on the number of rows shows there.
    for size in (count, GROUP):
        for start in range(0, count, size):
            part = slice(start, start + size)
            _check_equal(maps, tokens[0], before[part], after[part])
    found = _speed(sampled, stage, maps, tokens)
    if found.speedup < LEAST_GAIN:
        raise NotInRowsError(f"it is not worth it: {found.description()}")
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
    # In turn, so that both have met the machine's load of the same moments.
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
    # The shortest: whatever disturbs a run makes it longer.
    before, after = (seconds.min(axis=0) / count).tolist()
    # The standard error of a round's ratio.
    error = float(np.std(seconds[:, 0] / seconds[:, 1]) / ROUNDS**0.5)
    return SpeedComparison(before / max(after, 1e-12), error, before, after, count)
