"""Adding up what single runs of one operator have shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pecan_ray.autoorder.element_spec import has_custom_type, kind_of, leaves, rank_of, shape_of
from pecan_ray.autoorder.op_samples import OpSample
from pecan_ray.engines.counting import OpCount, element_bytes
from pecan_ray.plan.operators import ElementOp, Filter, FlatMap, is_pass_dependent, wants_epoch
from pecan_ray.plan.splits import Element
from pecan_ray.reorder.never import OpProperties
from pecan_ray.reorder.profile import ProfiledOp

OUTLIER_SHARE = 1 / 32
"""Share of the longest times that is left out: they are those of a machine that did something else."""
NOT_MEASURED = "it was not reached by the sample"
HOLDS_STATE = "gives other results for an equal element, so it seems to hold state (random=True says that it does not)"
BY_EPOCH = "is given the epoch's number, and a sample shows the first epoch alone"


@dataclass
class OpAccumulator:
    """The sums of one operator."""

    op: ElementOp
    count: OpCount = field(default_factory=OpCount)
    timed: list[float] = field(default_factory=list)
    """Seconds of runs."""
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    creates: set[str] = field(default_factory=set)
    drops: set[str] = field(default_factory=set)
    extra_s: float = 0.0
    """Time that the watched runs have taken in addition."""
    draws: bool = False
    """Whether it draws from a generator that others share, and so other numbers in every run."""
    unequal: bool = False
    """Whether two runs on an equal element have differed."""
    arrays: set[str] = field(default_factory=set)
    """Columns that were arrays of numbers, or held some."""
    lengths: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """Of columns with one or two dimensions that it changed: how long they were before and behind it."""
    changed_axes: dict[str, set[int]] = field(default_factory=dict)
    """The axes whose length it changed."""
    input_types: dict[str, str] = field(default_factory=dict)
    ranks_in: dict[str, int] = field(default_factory=dict)
    created_types: set[str] = field(default_factory=set)
    created_rank: int = 0
    """Most dimensions of a created column."""
    changes_kind: bool = False
    changes_rank: bool = False
    custom_dtype_cast: bool = False

    def ran(self, before_bytes: int, outputs: Sequence[Element], seconds: float) -> None:
        """Add one timed run."""
        self.count += OpCount(1, len(outputs), before_bytes, sum(element_bytes(output) for output in outputs))
        self.timed.append(seconds)

    def compare(self, before: Element, outputs: Sequence[Element]) -> None:
        """Compare an element with what it became: columns, kinds, dimensions, types."""
        for name, value in before.items():
            self.input_types[name] = kind_of(value)
            self.ranks_in[name] = rank_of(value) or 0
            if any(isinstance(leaf, np.ndarray) and leaf.ndim > 0 for leaf in leaves({name: value}).values()):
                self.arrays.add(name)
        for output in outputs:
            self._compare_output(before, output)

    def _compare_output(self, before: Element, output: Element) -> None:
        self.creates |= output.keys() - before.keys()
        self.drops |= before.keys() - output.keys()
        for name, value in output.items():
            if name not in before:
                self.created_types |= set() if _is_nothing(value) else {kind_of(value)}
                self.created_rank = max(self.created_rank, rank_of(value) or 0)
            elif value is not before[name]:
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

    def _replaces_kind(self) -> bool:
        """Tell whether it makes numbers or images from text, or text from numbers, under another name."""
        read = {self.input_types[name] for name in self.reads if name in self.input_types}
        if "text" in read and self.created_types & {"number", "picture", "other"}:
            return True
        return ("number" in self.created_types and "picture" in read) or (
            bool(self.created_types & {"text", "picture"}) and read == {"number"}
        )

    def _replaces_rank(self) -> bool:
        """Tell whether columns that it reads and drops go on in others, of more or fewer dimensions."""
        used_up = [self.ranks_in[name] for name in self.drops & self.reads if name in self.ranks_in]
        return bool(used_up and self.creates) and max(used_up) != self.created_rank

    def sample(self) -> OpSample:
        """Return the sums as facts."""
        seconds = trimmed_mean(self.timed) if self.timed else None
        several = isinstance(self.op, FlatMap)
        facts = (self._profiled(seconds), self._stats())
        return OpSample(self.op.name, *facts, **vars(self.count), seconds=seconds, yields_several=several)

    def _profiled(self, seconds: float | None) -> ProfiledOp:
        count, keeps = self.count, self.op.keep_position
        if not all(vars(count).values()):
            return ProfiledOp(self.op.name, 1.0, keep_position=keeps, fixed=NOT_MEASURED, random=self._random())
        # `random=True` says that unequal results are chance, and no state.
        stateful = self.unequal and self.op.random is not True
        return ProfiledOp(
            name=self.op.name,
            inflation=count.bytes_out / count.bytes_in,
            keep_position=keeps,
            changes_kind=self.changes_kind or self._replaces_kind(),
            changes_rank=self.changes_rank or self._replaces_rank(),
            custom_dtype_cast=self.custom_dtype_cast,
            reads=frozenset(self.reads),
            writes=frozenset(self.writes),
            creates=frozenset(self.creates),
            drops=frozenset(self.drops),
            elements=count.elements_out / count.elements_in,
            seconds=seconds,
            random=self._random(),
            fixed=HOLDS_STATE if stateful else BY_EPOCH if wants_epoch(self.op.fn) else "",
        )

    def _stats(self) -> OpProperties:
        count, random = self.count, self._random()
        # Other numbers of outputs for other elements: it decides which there are, as a filter does.
        uneven = isinstance(self.op, FlatMap) and (not count.elements_in or count.elements_out % count.elements_in != 0)
        return OpProperties(
            name=self.op.name,
            reads=frozenset(self.reads),
            writes=frozenset(self.writes | self.creates | self.drops),
            arrays=frozenset(self.arrays & self.reads),
            decides=isinstance(self.op, Filter) or uneven,
            draws=self.draws,
            # What draws differs by that, and need hold no state.
            unequal=self.unequal and not self.draws,
            filtered_columns=frozenset(
                name for name, sizes in self.lengths.items() if not random and _by_content(sizes)
            ),
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
