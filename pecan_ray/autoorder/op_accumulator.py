"""Adding up what single runs of one operator have shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pecan_ray.autoorder.element_spec import has_custom_type, kind_of, leaves, rank_of, shape_of
from pecan_ray.autoorder.facts import OpSample, Point
from pecan_ray.engines.counting import OpCount, column_bytes, element_bytes
from pecan_ray.plan.operators import ElementOp, is_pass_dependent
from pecan_ray.plan.splits import Element

LEAST_PER_POINT = 16
"""Runs of which a mean tells something."""
DISTINCT = 2.0
"""Sizes whose largest is not more than this times the smallest tell nothing of how the time depends on the size."""
OUTLIER_SHARE = 1 / 32
"""Share of the longest times that is left out: they are those of a machine that did something else."""
LEAST_TIMED = 8


@dataclass
class OpAccumulator:
    """The sums of one operator."""

    op: ElementOp
    count: OpCount = field(default_factory=OpCount)
    timed: list[Point] = field(default_factory=list)
    watched: list[Point] = field(default_factory=list)
    """Times of runs right behind another one on the same element: used only where there are few others."""
    elsewhere: list[Point] = field(default_factory=list)
    """Times in another place of the pipeline."""
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    creates: set[str] = field(default_factory=set)
    drops: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes of the columns that it was given while it was watched."""
    watching_s: float = 0.0
    """Time that the watched runs have taken in addition."""
    draws: bool = False
    stateful: bool = False
    arrays: set[str] = field(default_factory=set)
    """Columns that were arrays of numbers, or held some."""
    lengths: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """Of columns with one or two dimensions that it changed: how long they were before and behind it."""
    resizes: dict[str, set[int]] = field(default_factory=dict)
    """The axes whose length it changed."""
    input_types: dict[str, str] = field(default_factory=dict)
    ranks_in: dict[str, int] = field(default_factory=dict)
    created_types: set[str] = field(default_factory=set)
    rank_made: int = 0
    """Most dimensions of a created column."""
    changes_kind: bool = False
    changes_rank: bool = False
    custom_dtype_cast: bool = False

    def ran(self, before_bytes: int, outputs: Sequence[Element], seconds: float, *, watched: bool) -> None:
        """Add one timed run."""
        self.count += OpCount(1, len(outputs), before_bytes, sum(element_bytes(output) for output in outputs))
        (self.watched if watched else self.timed).append((float(before_bytes), seconds))

    def compare(self, before: Element, outputs: Sequence[Element]) -> None:
        """Compare an element with what it became: columns, kinds, dimensions, types."""
        for name, value in before.items():
            self.sizes[name] = self.sizes.get(name, 0) + column_bytes(value)
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
                self.rank_made = max(self.rank_made, rank_of(value) or 0)
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
            self.resizes.setdefault(name, set()).update(changed)
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
        return bool(used_up and self.creates) and max(used_up) != self.rank_made

    def sample(self) -> OpSample:
        """Return the sums as facts."""
        usual = self.timed if len(self.timed) >= LEAST_TIMED else [*self.timed, *self.watched]
        watched_bytes = sum(self.sizes.values())
        touched = sum(self.sizes.get(name, 0) for name in self.reads | self.writes)
        read_share = touched / watched_bytes if watched_bytes else 1.0
        return OpSample(
            **vars(self.count),
            op=self.op,
            bytes_read=round(read_share * self.count.bytes_in),
            points=cost_points(usual, self.elsewhere),
            seconds=trimmed_mean([seconds for _, seconds in usual]) if usual else None,
            reads=frozenset(self.reads),
            writes=frozenset(self.writes),
            creates=frozenset(self.creates),
            drops=frozenset(self.drops),
            random=self.op.random if self.op.random is not None else self._random(),
            draws=self.draws,
            unequal=self.stateful,
            # `random=True` says that unequal results are chance, and no state.
            stateful=self.stateful and self.op.random is not True,
            changes_kind=self.changes_kind or self._replaces_kind(),
            changes_rank=self.changes_rank or self._replaces_rank(),
            custom_dtype_cast=self.custom_dtype_cast,
        )

    def _random(self) -> bool | None:
        if is_pass_dependent(self.op) or self.draws or self.stateful:
            return True
        return False if self.count.elements_in else None


def _is_nothing(value: Any) -> bool:
    """Tell whether a value is of no kind: a missing one, or an empty list."""
    return value is None or (isinstance(value, (list, tuple)) and not value)


def cost_points(usual: Sequence[Point], elsewhere: Sequence[Point] = ()) -> tuple[Point, ...]:
    """Return mean seconds by size, which do not fall: of the smaller and the larger half of elements, at each place."""
    points: list[Point] = []
    for size, seconds in sorted([*_split_in_half(usual), *_split_in_half(elsewhere)]):
        if points and size == points[-1][0]:
            points[-1] = (size, statistics.fmean((points[-1][1], seconds)))
        else:
            points.append((size, max([seconds, *(before for _, before in points[-1:])])))
    return tuple(points)


def _split_in_half(runs: Sequence[Point]) -> list[Point]:
    """Return mean bytes and seconds of the runs, halved by size where sizes differ much."""
    known = sorted(run for run in runs if run[0] > 0)
    if not known:
        return []
    several = known[-1][0] > DISTINCT * known[0][0] and len(known) >= 2 * LEAST_PER_POINT
    half = len(known) // 2 if several else len(known)
    groups = [group for group in (known[:half], known[half:]) if group]
    return [
        (statistics.fmean(size for size, _ in group), trimmed_mean([seconds for _, seconds in group]))
        for group in groups
    ]


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
