"""What a sample tells of a pipeline: frozen values, one per operator, stretch and pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.reorder.never import OpProperties
from pecan_ray.reorder.profile import ProfiledOp


@dataclass(frozen=True)
class OpSample:
    """What was measured of one operator, in the order of the user's pipeline."""

    name: str
    profiled: ProfiledOp
    """As the ordering policies take it,"""
    stats: OpProperties
    """and how it is made."""
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
        """Whether there is a factor: something went in, and something came out."""
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
