"""What a sample tells of a pipeline: frozen values, one per operator, stretch and pipeline."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pecan_ray.autocache.decision import SampledCosts
from pecan_ray.cache.execution_profile import OperatorCost, SourceCost
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import element_ops_from
from pecan_ray.reorder.never import OpProperties
from pecan_ray.reorder.profile import ProfiledOp
from pecan_ray.sources.memory import Arrays, Items


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


# --- as JSON, and back: made from the values themselves, so that a new fact needs nothing here ----------------

FactJson: TypeAlias = Any
"""What `json` reads and writes."""

PACKAGES = ("pecan_ray.autoorder.", "pecan_ray.reorder.")
"""Only classes of these are made again."""


def to_json(value: Any) -> FactJson:
    """Return a fact as a value that `json` can write."""
    if _is_fact(type(value)):
        # Only what `__init__` takes: `from_json` makes the object by it.
        names = getattr(value, "_fields", None) or [one.name for one in dataclasses.fields(value) if one.init]
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return {"is": kind, **{name: to_json(getattr(value, name)) for name in names}}
    if isinstance(value, (tuple, list)):
        return [to_json(one) for one in value]
    if isinstance(value, (set, frozenset)):
        # Sorted, so that equal facts make equal files.
        return {"set": [to_json(one) for one in sorted(value)]}
    if isinstance(value, Mapping):
        # As pairs: JSON makes texts of all keys.
        return {"dict": [[to_json(name), to_json(one)] for name, one in value.items()]}
    return value


def from_json(written: FactJson) -> Any:
    """Return the fact that was written.

    Raises KeyError, TypeError, ValueError, AttributeError, ImportError or PlanError for what another version wrote.
    """
    if isinstance(written, list):
        return tuple(from_json(one) for one in written)
    if not isinstance(written, dict):
        return written
    if "set" in written:
        return frozenset(from_json(one) for one in written["set"])
    if "dict" in written:
        return {from_json(name): from_json(one) for name, one in written["dict"]}
    kind = _class(written["is"])
    return kind(**{name: from_json(one) for name, one in written.items() if name != "is"})


def _is_fact(kind: Any) -> bool:
    """Tell whether a class is one of values that name their parts: a dataclass, or a named tuple."""
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    # The file may be anybody's: it must not name what is imported and called here.
    kind = getattr(importlib.import_module(module), name) if f"{module}.".startswith(PACKAGES) else None
    if not _is_fact(kind):
        raise ValueError(f"{path} is no fact")
    return kind


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
