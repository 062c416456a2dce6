"""What a sample tells of a pipeline: frozen values, one per operator, stretch and pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.plan.operators import ElementOp, FlatMap, wants_epoch
from pecan_ray.reorder.profile import CostCurve, ProfiledOp

INSENSITIVE_SHARE = 0.05
"""Where the columns that an operator looks at are less than this share of an element, its time does not depend on the
size of the element."""

Point = tuple[float, float]
"""(Bytes of an element that an operator was given, seconds that it took.)"""


@dataclass(frozen=True)
class OpSample:
    """What was measured of one operator, in the order of the user's pipeline."""

    op: ElementOp
    elements_in: int = 0
    elements_out: int = 0
    bytes_in: int = 0
    """Bytes of all elements that it was given, over all columns."""
    bytes_out: int = 0
    bytes_read: int = 0
    """Of the bytes that it was given, those of the columns that it looks at, or changes."""
    points: tuple[Point, ...] = ()
    """Mean seconds per element for elements of several sizes."""
    seconds: float | None = None
    """Mean seconds per element that it was given; None: not measured."""
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    creates: frozenset[str] = frozenset()
    drops: frozenset[str] = frozenset()
    random: bool | None = None
    """Whether equal elements give different results; None: not measured."""
    draws: bool = False
    """Whether it draws from a generator that others share, and so other numbers in every run."""
    unequal: bool = False
    """Whether two runs on an equal element have differed."""
    stateful: bool = False
    """Whether its results differ although the element and the random numbers are equal."""
    changes_kind: bool = False
    changes_rank: bool = False
    custom_dtype_cast: bool = False

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.op.name

    @property
    def measured(self) -> bool:
        """Whether there is a factor: something went in, and something came out."""
        return self.elements_in > 0 and self.elements_out > 0 and self.bytes_in > 0 and self.bytes_out > 0

    @property
    def inflation(self) -> float:
        """Bytes out over bytes in, elements that were dropped or added included; 1 where it is not known."""
        return self.bytes_out / self.bytes_in if self.measured else 1.0

    @property
    def spreads(self) -> bool:
        """Whether one element can become several."""
        return isinstance(self.op, FlatMap)

    @property
    def profiled(self) -> ProfiledOp:
        """The facts as the ordering policies take them."""
        if not self.measured:
            return ProfiledOp(self.name, 1.0, keep_position=self.op.keep_position, fixed=NOT_MEASURED)
        return ProfiledOp(
            name=self.name,
            inflation=self.inflation,
            keep_position=self.op.keep_position,
            changes_kind=self.changes_kind,
            changes_rank=self.changes_rank,
            custom_dtype_cast=self.custom_dtype_cast,
            reads=self.reads,
            writes=self.writes,
            creates=self.creates,
            drops=self.drops,
            elements=self.elements_out / self.elements_in,
            bytes_in=self.bytes_in / self.elements_in,
            seconds=self._cost_by_size(),
            random=self.random,
            fixed=HOLDS_STATE if self.stateful else BY_EPOCH if wants_epoch(self.op.fn) else "",
        )

    def _cost_by_size(self) -> CostCurve | None:
        if not self.points:
            return None
        if self.seconds is not None and 0 < self.bytes_read < INSENSITIVE_SHARE * self.bytes_in:
            size = self.bytes_in / self.elements_in
            return CostCurve(((size / 1e6, self.seconds), (size, self.seconds)))
        return CostCurve(self.points)


NOT_MEASURED = "it was not reached by the sample"
HOLDS_STATE = "gives other results for an equal element, so it seems to hold state (random=True says that it does not)"
BY_EPOCH = "is given the epoch's number, and a sample shows the first epoch alone"


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
    def complete(self) -> bool:
        """Whether every operator was measured."""
        return bool(self.ops) and all(op.measured for op in self.ops)

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

    stretches: tuple[OpSequenceSample, ...]
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
        return tuple(op for stretch in self.stretches for op in stretch.ops)

    def __getitem__(self, name: str) -> OpSample:
        """Return what was measured of an operator."""
        for op in self.ops:
            if op.name == name:
                return op
        raise KeyError(name)
