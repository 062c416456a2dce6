"""What controller, workers and clients hand each other beside the values of `pecan_ray.job.messages`."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pecan_ray.by_value import NamedArrays, dumps
from pecan_ray.engines.contract import BadElement
from pecan_ray.job.messages import LeftOutElement, Placement
from pecan_ray.job.row_order import row_order
from pecan_ray.job.spec import JobSpec
from pecan_ray.options import Config, EngineName, IterOptions
from pecan_ray.plan.shape import PlanShape

MOST_KEPT_BYTES = 16 * 2**20
"""Of elements that are told of at a time, of which no batch comes: of more their names alone are."""


@dataclass(frozen=True)
class Job:
    """One run of a pipeline, as its actors know it."""

    spec: JobSpec
    plan: bytes
    """The plan, pickled by cloudpickle."""
    sources: bytes
    """Its sources alone: the controller lists them, and needs no framework that the functions import."""
    shape: PlanShape
    engine: EngineName
    seed: int
    options: IterOptions
    config: Config
    check_order_later: bool = False
    """The trainer looks at the order of operators again after the first epoch."""
    parts: tuple[tuple[str, str], ...] = ()
    """What the plan consists of: (what it is, a hash)."""
    batches_before: int = 0
    """Batches that each rank had used in runs before this one."""
    passed_before: int = 0
    """Those of `batches_before` that are of epochs which the loops had left."""
    pipeline: str = ""
    """The pipeline's name."""
    shares_arrays: bool = False
    """Plan and sources name large arrays, which the controller has put apart."""
    arrays: NamedArrays = field(default_factory=dict, repr=False)
    """These, in a journal alone."""

    @property
    def in_order(self) -> bool:
        """Return whether a worker gives its batches and rows in the order of what it reads."""
        return row_order(self.options, self.shape).kept


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that has started."""

    name: str
    node_id: str
    pid: int
    handle: Any = field(compare=False)
    """Its Ray actor handle."""
    placement: Placement = "local"


def left_out(bad: BadElement) -> LeftOutElement:
    """Return what the job must know of a bad element."""
    origin = bad.origin or bad.first
    told = LeftOutElement(bad.identity, bad.op, bad.where, bad.error, bad.elements_left_out, origin)
    return replace(told, estimated=bad.estimated, open_end=bad.open_end)


def left_out_whole(bad: Sequence[BadElement]) -> tuple[LeftOutElement, ...]:
    """Return what the job must know of bad elements, and they themselves, for a trainer to keep."""
    told: list[LeftOutElement] = []
    room = MOST_KEPT_BYTES
    for one in bad:
        kept, why = b"", "too large"
        try:
            kept = dumps(one)
        except Exception as error:  # pickling runs anybody's code
            why = f"{type(error).__name__} when it was pickled"
        if not kept or len(kept) > room:
            kept = pickle.dumps(replace(one, element=None, error=f"{one.error} (not kept: {why})"))
        room -= len(kept)
        told.append(replace(left_out(one), kept=kept))
    return tuple(told)


def bad_element(told: LeftOutElement) -> BadElement:
    """Return an element that no batch has brought, as far as it is known."""
    error = told.error
    if told.kept:
        try:
            bad: BadElement = pickle.loads(told.kept)
            return bad
        except Exception as failed:  # unpickling runs anybody's code
            error = f"{error} (not kept: {type(failed).__name__} when it was unpickled)"
    bare = BadElement(told.op, told.where, error, None, told.origin, None, told.elements)
    return replace(bare, estimated=told.estimated, open_end=told.open_end)
