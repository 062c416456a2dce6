"""The last operators of a remote worker, left to the trainer: rows travel as they are before they get large.

An operator is left to the trainer only if whatever it does follows from the dtype and shape of the rows, and never
from their values: plain arithmetic of NumPy on each number whose last bit is prescribed, found out by running it on a
`RowsColumn`, which knows no values.  Such a function cannot fail on one row and not on another, draws nothing, and
gives the same bits on any number of rows in any process.  So errors, draws and `on_error` stay with the worker.

Operators keep their places in the worker's plan: a guard in the place of each hands on what its operator would have
changed.  Where a value comes that nothing was proved about, `refused` says so, and nothing that the worker has made
since may leave it (`pecan_ray.runtime.worker`).

Decision: docs/decisions/transport.md#204-the-tail-of-a-pipeline-runs-where-batches-arrive
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from pecan_ray.engines.contract import Unfinished
from pecan_ray.engines.python.channel_arithmetic import CHANNELS, PerChannelFunction
from pecan_ray.engines.python.plain_functions import why_not_plain
from pecan_ray.engines.python.rows import NUMBERS, NotInRowsError, RowsColumn, RowsWatch, array_of
from pecan_ray.errors import ClusterError
from pecan_ray.placement.cut import PipelineCut, TailOp
from pecan_ray.plan.fingerprint import describe_operators
from pecan_ray.plan.operators import (
    Batch,
    Filter,
    Map,
    Op,
    Plan,
    Prefetch,
    Repeat,
    Shuffle,
    Skip,
    Take,
    is_pass_dependent,
)
from pecan_ray.plan.splits import Array

ChooseCut: TypeAlias = Callable[[Sequence[TailOp]], PipelineCut]
TIMED_RUNS = 3
"""An operator is timed so often, and the shortest run counts: the first one pays for fresh memory."""
FINISHED_BYTES = 1 << 20
"""The bytes of a batch that go through all operators at a time.  The cache of a core holds them.  A quarter of them
would take a quarter less CPU time, and wait four times as often for Python's lock, which the training loop has."""
HOLDING = (Shuffle, Prefetch, Take, Skip, Repeat)
"""Operators that see no column."""


def deferrable_ops(plan: Plan, users_parts: Collection[tuple[str, str]]) -> dict[str, tuple[Map, ...]]:
    """Return, by column, the last operators before `batch` that might be left to the trainer.

    `users_parts`: what the user's plan consists of, by `describe_plan`: the trainer knows these operators alone.
    """
    found: dict[str, list[Map]] = {}
    seen: set[str] = set()
    for op in reversed(ops_before_batch(plan)):
        # What stands before an operator that sees a column, or may see all of them, has to be done before it.
        if not isinstance(op, (Map, Filter)) or op.on is None:
            break
        if type(op) is Map and op.on not in seen and may_be_deferred(op, plan, users_parts):
            found.setdefault(op.on, []).append(op)
        else:
            seen.add(op.on)
    return {column: tuple(reversed(chain)) for column, chain in found.items()}


def ops_before_batch(plan: Plan) -> list[Op]:
    """Return the operators before the batch with which a plan ends, but for those that hold elements back."""
    ops = [op for op in plan.ops if not isinstance(op, Prefetch)]
    if not ops or type(ops[-1]) is not Batch:
        return []
    return [op for op in ops[:-1] if not isinstance(op, HOLDING)]


def may_be_deferred(op: Map, plan: Plan, users_parts: Collection[tuple[str, str]]) -> bool:
    """Tell whether the trainer knows an operator, and it draws nothing and names nothing that may change."""
    if op.processes or is_pass_dependent(op) or why_not_plain(written_function(op)):
        return False
    written = replace(op, fn=written_function(op))
    return describe_operators(Plan(head=next(plan.sources()), ops=(written,)))[0] in users_parts


def written_function(op: Map) -> Callable[..., Any]:
    """Return an operator's function as the user gave it."""
    return op.fn.fn if isinstance(op.fn, PerChannelFunction) else op.fn


class Deferral:
    """Which of the last operators of a plan a worker leaves to the trainer; any thread may run its guards."""

    def __init__(self, chains: Mapping[str, Sequence[Map]], choose: ChooseCut) -> None:
        """`choose` is asked once for each column, with what the first element that comes has shown."""
        self._tails = {column: _Tail(chain, choose) for column, chain in chains.items()}

    def guarded(self, plan: Plan) -> Plan:
        """Return the plan in which a guard stands in the place of each operator that may be left to the trainer."""
        guards: dict[str, Op] = {op.name: op for tail in self._tails.values() for op in tail.guards()}
        return replace(plan, ops=tuple(guards.get(op.name, op) for op in plan.ops))

    @property
    def refused(self) -> str:
        """Why nothing that was made since may leave the worker; empty where all is well."""
        return next(filter(None, (tail.refused for tail in self._tails.values())), "")

    @property
    def active(self) -> bool:
        """Return whether anything is left to the trainer."""
        return any(tail.cut is not None for tail in self._tails.values())

    def is_outdated(self) -> bool:
        """Tell whether another cut would be chosen by now."""
        return any(tail.is_outdated() for tail in self._tails.values())

    def unfinished(self, columns: Mapping[str, Any]) -> Unfinished | None:
        """Return what the trainer has to do to a batch, or to a block of rows."""
        left = [tail for column, tail in self._tails.items() if tail.cut is not None and column in columns]
        if not left:
            return None
        return Unfinished(tuple(name for tail in left for name in tail.deferred), "; ".join(one.why for one in left))


class _Tail:
    """The last operators on one column."""

    def __init__(self, chain: Sequence[Map], choose: ChooseCut) -> None:
        self._chain, self._choose = chain, choose
        self._lock = threading.Lock()
        """Guards the decision, and the shapes that are proved."""
        self._sizes: Sequence[TailOp] | None = None
        """What the first element has shown of the last operators that can be left to the trainer; None: undecided."""
        self.cut: int | None = None
        """Number of the first operator that is left to the trainer; None: none is, or it is not decided."""
        self.why = self.refused = ""
        self._dtype = np.dtype(np.uint8)
        """Of the values that are handed on."""
        self._shapes: set[tuple[int, ...]] = set()
        """Of those that are proved to take the same way."""

    def guards(self) -> Iterator[Map]:
        """Yield the operators with guards as functions."""
        for number, op in enumerate(self._chain):
            yield replace(op, fn=_Guard(self, number, op.fn))

    @property
    def deferred(self) -> tuple[str, ...]:
        """The names of those that are left to the trainer."""
        return tuple(op.name for op in self._chain[self.cut :]) if self.cut is not None else ()

    def decide(self, value: Any) -> None:
        """Decide, once, by the first value that comes to the first operator."""
        with self._lock:
            if self._sizes is not None:
                return
            # Functions of operators that cannot be proved may fail, which is said where the element goes through them.
            values, sizes = [value], list[TailOp]()
            first = 0
            for number, op in enumerate(self._chain):
                timed = timed_run(written_function(op), values[-1])
                if timed is None:
                    first, sizes = number + 1, []
                    values.append(op.fn(values[-1]))
                    continue
                made, seconds = timed
                sizes.append(TailOp(op.name, values[-1].nbytes, made.nbytes, seconds))
                values.append(made)
            self._sizes = sizes
            if not sizes:
                return
            chosen = self._choose(sizes)
            self.why, cut = chosen.why, first + chosen.first
            if cut < len(self._chain):
                self._dtype = values[cut].dtype
                self._shapes.add(values[cut].shape)
                self.cut = cut

    def is_outdated(self) -> bool:
        """Tell whether another cut would be chosen by now."""
        if not self._sizes:
            return False
        cut = len(self._chain) if self.cut is None else self.cut
        return len(self._chain) - len(self._sizes) + self._choose(self._sizes).first != cut

    def hands_on(self, value: Any) -> bool:
        """Tell whether the first operator behind the cut hands a value on; if not, note that it must not leave."""
        if not self._is_unfinished(value):
            kind = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
            self._refuse(f"a value is {kind}, where {self._dtype} came before")
            return False
        if value.shape in self._shapes:
            return True
        made: Any = value
        for op in self._chain[self.cut :]:
            if (found := timed_run(written_function(op), made, 1)) is None:
                self._refuse(f"{op.name} does not do the same to values of shape {list(value.shape)}")
                return False
            made = found[0]
        with self._lock:
            self._shapes.add(value.shape)
        return True

    def is_handed_on(self, value: Any) -> bool:
        """Tell whether a later operator behind the cut was given what the first one has handed on."""
        return self._is_unfinished(value)

    def _is_unfinished(self, value: Any) -> bool:
        return type(value) is np.ndarray and value.dtype == self._dtype

    def _refuse(self, why: str) -> None:
        with self._lock:
            self.refused = self.refused or f"{', '.join(self.deferred)} were left to the trainer, but {why}"


class _Guard:
    """Stands in the place of an operator's function, and hands on what is left to the trainer."""

    def __init__(self, tail: _Tail, number: int, fn: Callable[..., Any]) -> None:
        self._tail, self._number, self.fn = tail, number, fn

    def __call__(self, value: Any) -> Any:
        """Return what the function makes of a value, or the value."""
        tail = self._tail
        if self._number == 0:
            tail.decide(value)
        cut = tail.cut
        if cut is None or self._number < cut:
            return self.fn(value)
        handed_on = tail.hands_on(value) if self._number == cut else tail.is_handed_on(value)
        return value if handed_on else self.fn(value)


def timed_run(fn: Callable[..., Any], value: Any, runs: int = TIMED_RUNS) -> tuple[Array, float] | None:
    """Return what a function makes of a value, and its CPU seconds; None where it cannot be left to the trainer."""
    if type(value) is not np.ndarray or not value.size or not _is_numeric(value):
        return None
    seconds = list[float]()
    try:
        for _ in range(runs):
            started = time.thread_time()
            (made,) = _in_rows([fn], value[None])
            seconds.append(time.thread_time() - started)
    except NotInRowsError:
        return None
    # An array without a row's shape would be joined to others.
    return (made, min(seconds)) if made.shape == value.shape and _is_numeric(made) else None


def _is_numeric(array: Array) -> bool:
    return array.ndim > 0 and array.dtype.kind in NUMBERS and array.dtype.isnative


def _in_rows(functions: Sequence[Callable[..., Any]], rows: Array) -> Array:
    """Return what functions make of some rows; raises `NotInRowsError` where they do anything but exact arithmetic."""
    # Constants for each channel are as wide as a row of pixels then, which takes a quarter of the time.
    if rows.ndim == 4 and rows.shape[-1] in CHANNELS:
        try:
            return _watched(functions, rows.reshape(*rows.shape[:2], -1), rows.shape[-1]).reshape(rows.shape)
        except NotInRowsError:
            pass  # they may do with pixels what they do not do with rows of these
    return _watched(functions, rows, 0)


def _watched(functions: Sequence[Callable[..., Any]], rows: Array, channels: int) -> Array:
    watch = RowsWatch(len(rows), exactly=True, channels=channels)
    value: Any = RowsColumn(rows, watch)
    try:
        # What single numbers warn of was warned of where the user tried the function.
        with np.errstate(all="ignore"):
            for fn in functions:
                value = fn(value)
            made = array_of(value, watch)
    except NotInRowsError:
        raise
    except Exception as error:  # what a function raises of a column has nothing to do with its rows
        raise NotInRowsError(str(error)) from error
    if watch.rejected:  # a function may go on in spite of it
        raise NotInRowsError(watch.rejected)
    return made


class FinishesImages(Protocol):
    """What makes arrays of images that workers have not decoded (`pecan_ray.known.accelerated_images`)."""

    def finish(self, packed: Sequence[Any], *, stay: bool = False) -> Any:
        """Return the pixels of a batch; raises `CutError` for an image that it cannot decode.

        `stay`: where they were made, as the tensor that they are there.
        """
        ...


class Finisher:
    """Runs on the trainer's side what workers have left to it."""

    def __init__(self, plan: Plan, images: FinishesImages | None = None, *, stay: bool = False) -> None:
        """`plan`: the user's, in which operators have the names that workers say; `images`: finishes images.

        `stay`: batches go to the loop as they come, which wants images where they were finished.
        """
        self._images, self._stay = images, stay
        self._ops = {op.name: op for op in plan.all_ops() if isinstance(op, Map)}
        self._noted: set[Unfinished] = set()

    def finish(self, unfinished: Unfinished, columns: Mapping[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
        """Return the columns of a batch behind the operators that are left; `note` is told of each new cut."""
        if unfinished not in self._noted:
            self._noted.add(unfinished)
            note(f"batches of {'all' if unfinished.images else 'remote'} workers: {unfinished.why}")
        made = dict(columns)
        if unfinished.images:
            assert self._images is not None, "workers leave images to a trainer that has not offered to finish them"
            # Arithmetic behind is that of NumPy.
            stay = self._stay and not unfinished.ops
            made[unfinished.images] = self._images.finish(made[unfinished.images].tolist(), stay=stay)
        for column, ops in self._by_column(unfinished.ops).items():
            try:
                made[column] = _finished([op.fn for op in ops], made[column])
            except NotInRowsError as error:
                names = ", ".join(op.name for op in ops)
                raise ClusterError(
                    f"{names} cannot be run on a batch where it arrives ({error}), though its worker could: are NumPy "
                    'and the program the same on all nodes? Config(split_pipeline="off") runs all operators on the '
                    "workers.",
                    op=names,
                    column=column,
                ) from error
        return made

    def _by_column(self, names: Sequence[str]) -> dict[str, list[Map]]:
        chains: dict[str, list[Map]] = {}
        for name in names:
            op = self._ops[name]
            assert op.on is not None
            chains.setdefault(op.on, []).append(op)
        return chains


def _finished(functions: Sequence[Callable[..., Any]], column: Array) -> Array:
    """Return a column behind functions, which take a few rows at a time."""
    step, made = max(1, FINISHED_BYTES * len(column) // max(column.nbytes, 1)), None
    for start in range(0, len(column), step):
        part = _in_rows(functions, column[start : start + step])
        if made is None:
            made = np.empty((len(column), *part.shape[1:]), part.dtype)
        made[start : start + step] = part
    assert made is not None, "a batch has rows"
    return made
