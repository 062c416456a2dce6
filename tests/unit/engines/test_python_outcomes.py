"""What comes out of small pipelines in the python engine, written down: values, types, errors, and what is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import BadElement, EngineOptions, Produced
from pecan_ray.engines.in_process import InProcessEpoch
from pecan_ray.engines.python import PythonEngine, complete_calls
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.errors import PecanError
from pecan_ray.options import OnError
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from tests.unit.engines.bad_cases import BAD_CASES
from tests.unit.engines.engine_leases import ListedLeases, delivered, whole_leases
from tests.unit.engines.operator_cases import OPERATOR_CASES, Build

WRITTEN = Path(__file__).with_name("python_outcomes.txt")
"""A paragraph for each case; `python -m tests.unit.engines.test_python_outcomes` writes all anew."""
CASES = {**OPERATOR_CASES, **BAD_CASES}
EPOCH = 2
MARKS = re.compile("; partial|; in no slot")
"""A debug run marks no batches."""
LOTS = 12
"""Every so many-th case is one of the same test."""
MOST_OUTPUTS = 1000
"""So many elements at most come of one, in place of a million."""


@dataclass(frozen=True)
class Run:
    """What a pipeline produces, in words, and the error that ends it."""

    lines: tuple[str, ...]
    error: str

    def told_like(self, other: Run) -> bool:
        """Return whether the batches and what is left out are the same."""
        unmarked, others = ([re.sub(MARKS, "", line) for line in one.lines] for one in (self, other))
        return unmarked == others


def outcome(name: str, case: Build | dict[str, Build]) -> str:
    """Return what comes of a pipeline, in the engine and in a debug run, with errors raised or not."""
    builds = case if isinstance(case, dict) else {"": case}
    lines, before = [name], dict[str, list[Run]]()
    for on_error in ("raise", "quarantine"):
        runs = {variant: _runs(build, on_error) for variant, build in builds.items()}
        if runs != before:
            lines += _in_words(runs, on_error)
        if not any(run.error for several in runs.values() for run in several):
            break
        before = runs
    return "\n".join(lines)


def _runs(build: Build, on_error: OnError) -> list[Run]:
    """Run a pipeline in the engine, and in a debug run if that gives anything else."""
    try:
        plan = build().plan
    except PecanError as error:
        return [Run((), f"when it is written: {_words_of_error(error)}")]
    in_engine = _in_engine(plan, 1, on_error)
    assert _in_engine(plan, 3, on_error) == in_engine, "more threads change nothing"
    debugged = _run(InProcessEpoch(plan, epoch=EPOCH, on_error=on_error, source_order=True).produced())
    same = debugged.told_like(in_engine) and debugged.error == in_engine.error
    return [in_engine] if same else [in_engine, debugged]


def _in_words(runs: dict[str, list[Run]], on_error: str) -> Iterator[str]:
    """Yield what came of each variant of a pipeline; what is alike, once."""
    groups: dict[tuple[Run, ...], list[str]] = {}
    for variant, several in runs.items():
        groups.setdefault(tuple(several), []).append(variant)
    for (in_engine, *debugged), variants in groups.items():
        title = [*([] if on_error == "raise" else [on_error]), *(variants if len(groups) > 1 else [])]
        yield from [f"  {', '.join(title)}:"] if title else []
        yield from in_engine.lines
        yield from [f"    {in_engine.error}"] if in_engine.error else []
        yield from [] if in_engine.lines or in_engine.error else ["    nothing"]
        for run in debugged:
            if run.told_like(in_engine):
                yield f"    in debug: {run.error or 'no error'}"
            else:
                yield from ["  in debug:", *run.lines, f"    {run.error or 'no error'}"]


def _in_engine(plan: Plan, threads: int, on_error: OnError) -> Run:
    sources = tuple(plan.sources())
    leases = ListedLeases(whole_leases(sources, epoch=EPOCH, num_passes=plan_shape(plan).num_passes or 1))
    options = EngineOptions(threads=threads, order="strict", on_error=on_error)
    came: list[Produced] = []
    with closing(PythonEngine(plan, sources, options, HeapSlots())) as engine:
        run = _run(engine.batches(leases), came)
    if not plan_shape(plan).serial and not run.error:
        assert delivered(came) == leases.target(), "every position is dealt with once"
    return run


def _run(produced: Iterator[Produced], came: list[Produced] | None = None) -> Run:
    lines: list[str] = []
    bad: list[BadElement] = []
    failed = ""
    try:
        for one in produced:
            in_slot = came is None or all(_lies_in_slot(values, one) for values in one.columns.values())
            lines += [f"    {_words_of_batch(one)}{'' if in_slot else '; in no slot'}"] if one.rows else []
            lines += [f"    {one.dropped} elements dropped"] if one.dropped else []
            bad += one.bad
            if came is not None:
                came.append(one)
    except Exception as error:
        failed = _words_of_error(error)
    told = [] if failed else _words_of_bad(bad)  # how much of it is told before an error depends on the threads
    return Run((*lines, *told), failed)


def _words_of_bad(bad: list[BadElement]) -> Iterator[str]:
    """Yield what is left out, by whom and where; for the first one also why."""
    for number, one in enumerate(sorted(bad, key=lambda one: (one.op, one.where))):
        element = "" if one.element is None else f", {_words_of(one.element)}"
        why = "" if number else f": {_first_line(one.error)}"
        yield f"    left out {one.elements_left_out} by {one.op}, {one.where}{element}{why}"


def _words_of_batch(one: Produced) -> str:
    columns = ", ".join(f"{name} {_words_of(values)}" for name, values in one.columns.items())
    is_array = isinstance(next(iter(one.columns.values()), None), np.ndarray)
    return f"{columns}{'' if is_array else f'; {one.rows} rows'}{'; partial' if one.partial else ''}"


def _lies_in_slot(values: Any, produced: Produced) -> bool:
    """Return whether values that a slot can hold lie in one."""
    if not isinstance(values, np.ndarray) or values.dtype.hasobject or not values.nbytes:
        return True
    slot = produced.slot
    return slot is not None and np.shares_memory(values.view(np.uint8), np.frombuffer(slot.buffer, np.uint8))


def _words_of(values: Any) -> str:
    """Return values with their type and shape."""
    if isinstance(values, dict):
        return "{" + ", ".join(f"{name}: {_words_of(one)}" for name, one in values.items()) + "}"
    if isinstance(values, tuple):
        return "(" + ", ".join(map(_words_of, values)) + ")"
    if isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype.hasobject):
        kind = f"object{list(values.shape)}" if isinstance(values, np.ndarray) else "list"
        return f"{kind} [{', '.join(map(_words_of, values))}]"
    if isinstance(values, (np.ndarray, np.generic)):
        return f"{values.dtype}{list(values.shape)} {values.tolist()}"
    return repr(values) if type(values).__module__ == "builtins" else type(values).__name__


def _words_of_error(error: Exception) -> str:
    fields = getattr(error, "fields", {})
    where = ", ".join(f"{name} {fields[name]!r}" for name in ("op", "file", "element", "column") if fields.get(name))
    return f"{type(error).__name__}{f' ({where})' if where else ''}: {_first_line(str(error))}"


def _first_line(text: str) -> str:
    return re.sub("0x[0-9a-f]+", "0x...", text.split("\n")[0])


def paragraphs(lot: int = 0, lots: int = 1) -> Iterator[str]:
    """Yield what comes of everything, or of one lot of several."""
    for name, build in list(CASES.items())[lot::lots]:
        yield outcome(name, build)


@pytest.mark.filterwarnings("ignore:coroutine")  # that nobody awaits, as is refused
@pytest.mark.parametrize("lot", range(LOTS))
def test_what_comes_of_a_pipeline_is_what_is_written_down(lot: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete_calls, "MOST_OUTPUTS", MOST_OUTPUTS)
    assert list(paragraphs(lot, LOTS)) == WRITTEN.read_text().strip().split("\n\n")[lot::LOTS]


if __name__ == "__main__":
    complete_calls.MOST_OUTPUTS = MOST_OUTPUTS
    WRITTEN.write_text("\n\n".join(paragraphs()) + "\n")
