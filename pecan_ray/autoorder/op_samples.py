"""What a sample tells of a pipeline: frozen values, one per operator, stretch and pipeline; and sums that make them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pecan_ray.autocache.decision import SampledCosts
from pecan_ray.autoorder.element_spec import has_custom_type, kind_of, leaves, rank_of, shape_of
from pecan_ray.cache.execution_profile import OperatorCost, SourceCost
from pecan_ray.engines.counting import OpCount
from pecan_ray.plan.operators import ElementOp, Filter, FlatMap, Plan, is_pass_dependent, wants_epoch
from pecan_ray.plan.shape import element_ops_from
from pecan_ray.plan.splits import Element
from pecan_ray.reorder.profile import ProfiledOp
from pecan_ray.sources.memory import Arrays, Items


@dataclass(frozen=True)
class OpSample:
    """What was measured of one operator, in the order of the user's pipeline."""

    name: str
    profiled: ProfiledOp
    """As the ordering policies take it."""
    elements_in: int = 0
    elements_out: int = 0
    bytes_in: int = 0
    """Bytes of all elements that it was given, over all columns."""
    bytes_out: int = 0
    seconds: float | None = None
    """Mean seconds per element that it was given; None: not measured."""
    yields_several: bool = False
    """Whether one element can become several."""

    @property
    def measured(self) -> bool:
        """Return whether there is a factor: something went in, and something came out."""
        return self.elements_in > 0 and self.elements_out > 0 and self.bytes_in > 0 and self.bytes_out > 0

    @property
    def inflation(self) -> float:
        """Bytes out over bytes in, elements that were dropped or added included; 1 where it is not known."""
        return self.profiled.inflation


@dataclass(frozen=True)
class OpSequenceSample:
    """What was measured of one linear stretch of operators."""

    ops: tuple[OpSample, ...]
    elements: int = 0
    """Elements that went in."""
    notes: tuple[str, ...] = ()
    reading_s: float | None = None
    """Seconds for an element that enters it: reading, and all operators before; None: not measured."""

    @property
    def seconds(self) -> float | None:
        """Mean seconds of all its operators per element that enters it; None where one was not measured."""
        if not self.elements or any(op.seconds is None for op in self.ops):
            return None
        return sum((op.seconds or 0.0) * op.elements_in for op in self.ops) / self.elements

    @property
    def profiled(self) -> tuple[ProfiledOp, ...]:
        """The operators as the ordering policies take them, in the user's order."""
        return tuple(op.profiled for op in self.ops)


@dataclass(frozen=True)
class SampleProfile:
    """What was measured of a pipeline on its first elements."""

    sequences: tuple[OpSequenceSample, ...]
    """The linear stretches, those of a join's inputs first."""
    profiled: tuple[ProfiledOp, ...]
    """All operators of the pipeline as `auto_order` takes them, those on the sequence or on batches as barriers."""
    elements: int
    """The most elements that any stretch was given."""
    seconds: float
    """How long the sampling took."""
    notes: tuple[str, ...] = ()

    @property
    def ops(self) -> tuple[OpSample, ...]:
        """The operators on elements, those of a join's inputs first."""
        return tuple(op for stretch in self.sequences for op in stretch.ops)

    def __getitem__(self, name: str) -> OpSample:
        """Return what was measured of an operator."""
        for op in self.ops:
            if op.name == name:
                return op
        raise KeyError(name)


# --- adding up what single runs of one operator have shown ----------------------------------------------------

OUTLIER_SHARE = 1 / 32
"""Share of the longest times that is left out: they are those of a machine that did something else."""
NOT_MEASURED = "it was not reached by the sample"
HOLDS_STATE = "gives other results for an equal element, so it seems to hold state (random=True says that it does not)"
BY_EPOCH = "is given the epoch's number, and a sample shows the first epoch alone"


@dataclass
class ColumnUses:
    """The columns that runs of an operator have read, written, made and dropped."""

    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    creates: set[str] = field(default_factory=set)
    drops: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)
    """Columns that were arrays of numbers, or held some."""


@dataclass
class OpAccumulator:
    """The sums of one operator."""

    op: ElementOp
    count: OpCount = field(default_factory=OpCount)
    timed: list[float] = field(default_factory=list)
    """Seconds of runs."""
    columns: ColumnUses = field(default_factory=ColumnUses)
    extra_s: float = 0.0
    """Time that the watched runs have taken in addition."""
    draws: bool = False
    """Whether it draws from a generator that others share, and so other numbers in every run."""
    unequal: bool = False
    """Whether two runs on an equal element have differed."""
    lengths: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """Of columns with one or two dimensions that it changed: how long they were before and behind it."""
    changed_axes: dict[str, set[int]] = field(default_factory=dict)
    """The axes whose length it changed."""
    changes_kind: bool = False
    changes_rank: bool = False
    custom_dtype_cast: bool = False

    def compare(self, before: Element, outputs: Sequence[Element]) -> None:
        """Compare an element with what it became: columns, kinds, dimensions, types."""
        for name, value in before.items():
            if any(isinstance(leaf, np.ndarray) and leaf.ndim > 0 for leaf in leaves({name: value}).values()):
                self.columns.arrays.add(name)
        for output in outputs:
            self._compare_output(before, output)

    def _compare_output(self, before: Element, output: Element) -> None:
        self.columns.creates |= output.keys() - before.keys()
        self.columns.drops |= before.keys() - output.keys()
        for name, value in output.items():
            if value is not before.get(name, value):
                self._compare_column(name, before[name], value)
            self.custom_dtype_cast |= has_custom_type(value) and not has_custom_type(before.get(name))

    def _compare_column(self, name: str, before: Any, after: Any) -> None:
        kinds, ranks = (kind_of(before), kind_of(after)), (rank_of(before), rank_of(after))
        self.changes_kind |= kinds[0] != kinds[1] and not (_is_nothing(before) or _is_nothing(after))
        self.changes_rank |= None not in ranks and ranks[0] != ranks[1]
        sides, made = shape_of(before), shape_of(after)
        if sides and len(sides) == len(made):
            changed = {axis for axis, side in enumerate(sides) if side != made[axis]}
            self.changed_axes.setdefault(name, set()).update(changed)
            if len(sides) <= 2:
                self.lengths.setdefault(name, set()).add((sides[0], made[0]))

    def sample(self) -> OpSample:
        """Return the sums as facts."""
        seconds = trimmed_mean(self.timed) if self.timed else None
        facts, several = self._profiled(seconds), isinstance(self.op, FlatMap)
        return OpSample(self.op.name, facts, **vars(self.count), seconds=seconds, yields_several=several)

    def _fixed(self) -> str:
        # `random=True` says that unequal results are chance, and no state.
        if self.unequal and self.op.random is not True:
            return HOLDS_STATE
        return BY_EPOCH if wants_epoch(self.op.fn) else ""

    def _profiled(self, seconds: float | None) -> ProfiledOp:
        count, columns, keeps, random = self.count, self.columns, self.op.keep_position, self._random()
        if not all(vars(count).values()):
            return ProfiledOp(self.op.name, 1.0, keep_position=keeps, fixed=NOT_MEASURED, random=random)
        # Other numbers of outputs for other elements: it decides which there are, as a filter does.
        uneven = isinstance(self.op, FlatMap) and count.elements_out % count.elements_in != 0
        filtered = () if random else (name for name, sizes in self.lengths.items() if _by_content(sizes))
        return ProfiledOp(
            name=self.op.name,
            inflation=count.bytes_out / count.bytes_in,
            keep_position=keeps,
            changes_kind=self.changes_kind,
            changes_rank=self.changes_rank,
            custom_dtype_cast=self.custom_dtype_cast,
            reads=frozenset(columns.reads),
            writes=frozenset(columns.writes),
            creates=frozenset(columns.creates),
            drops=frozenset(columns.drops),
            elements=count.elements_out / count.elements_in,
            seconds=seconds,
            random=random,
            fixed=self._fixed(),
            arrays=frozenset(columns.arrays & columns.reads),
            decides=isinstance(self.op, Filter) or uneven,
            draws=self.draws,
            # What draws differs by that, and need hold no state.
            unequal=self.unequal and not self.draws,
            filtered_columns=frozenset(filtered),
            changed_axes={name: frozenset(axes) for name, axes in self.changed_axes.items() if axes},
        )

    def _random(self) -> bool | None:
        # What the user has said counts for more than what a sample shows.
        if self.op.random is not None:
            return self.op.random
        if is_pass_dependent(self.op) or self.draws or self.unequal:
            return True
        return False if self.count.elements_in else None


def _by_content(lengths: set[tuple[int, int]]) -> bool:
    """Tell whether new lengths do not follow from the old ones: not a constant, a bound, a difference or a ratio."""
    if all(a == b for a, b in lengths):
        return False
    made = [b for _, b in lengths]
    most, least = max(made), min(made)
    ratio = sum(made) / max(sum(a for a, _ in lengths), 1)
    rules = (
        most == least,
        all(b == min(a, most) for a, b in lengths),
        all(b == max(a, least) for a, b in lengths),
        len({b - a for a, b in lengths}) == 1,
        # A ratio is rounded to whole entries.
        all(abs(b - ratio * a) <= 1 for a, b in lengths),
    )
    return not any(rules)


def _is_nothing(value: Any) -> bool:
    """Tell whether a value is of no kind: a missing one, or an empty list."""
    return value is None or (isinstance(value, (list, tuple)) and not value)


def reading_seconds(seconds: Sequence[float], fetched: int, used: int) -> float | None:
    """Return what reading an element takes, by what each took; None: nothing was read.

    The longest times are left out.  Not where `fetched` bytes came from an object store meanwhile: those are its
    answers, which have many elements each, also such as are not sampled.  Of the time that was waited for all that
    came, the share counts of the `used` bytes, those of the elements.
    """
    if not seconds:
        return None
    if not fetched:
        return trimmed_mean(seconds)
    return statistics.fmean(seconds) * min(1.0, used / fetched)


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the longest times."""
    kept = sorted(values)[: len(values) - int(len(values) * OUTLIER_SHARE)]
    return statistics.fmean(kept)


# --- what caching decides by -----------------------------------------------------------------------------------

REMOTE_WAITING = 0.9
"""Share of reading from a bucket in which a thread needs no CPU."""


def costs_of(plan: Plan, sequences: Sequence[OpSequenceSample]) -> SampledCosts | None:
    """Return what reading and the operators of a plan cost, as a sample shows it; None where it does not."""
    samples = {op.name: op for one in sequences for op in one.ops if op.elements_in > 0 and op.seconds is not None}
    names = [op.name for op in element_ops_from(plan, 0)]
    # All or nothing: with an operator left out, keeping would seem to gain less than it does.
    if not names or not samples.keys() >= set(names):
        return None
    head = samples[names[0]]
    # Of the sequence that begins at the source.
    reading_s = next((one.reading_s for one in sequences if head in one.ops), None)
    if reading_s is None:
        return None
    source = _source_cost(plan.head, reading_s, head.bytes_in / head.elements_in)
    return SampledCosts(source, tuple(_cost(samples[name]) for name in names))


def _source_cost(source: object, reading_s: float, element_bytes: float) -> SourceCost:
    # What lies in memory is read no faster from a disk, whatever the sample says.
    in_memory = type(source) in (Arrays, Items)
    # By the path alone: opening a storage to ask would be a request.
    remote = "://" in str(getattr(source, "patterns", "") or getattr(source, "root", ""))
    return SourceCost(0.0 if in_memory else reading_s, element_bytes, REMOTE_WAITING if remote else 0.0)


def _cost(op: OpSample) -> OperatorCost:
    size = op.bytes_out / op.elements_out if op.elements_out else 0.0
    return OperatorCost(op.name, op.seconds or 0.0, size, op.elements_out / op.elements_in, op.profiled.random)
