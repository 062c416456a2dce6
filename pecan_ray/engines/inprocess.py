"""Running a plan in this very process and thread: for debugging, `peek`, and tests."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from pecan_ray.engines.build import build_engine
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.python.assemble import Assembly
from pecan_ray.engines.python.items import Loose
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.errors import OpError
from pecan_ray.options import EngineName, OnError
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Element, Lease, Source


class AllLeases:
    """Every split of every source, one after the other."""

    def __init__(self, sources: Sequence[Source], epoch: int, repetitions: int | None) -> None:
        self._streams = [self._walk(branch, source, epoch, repetitions) for branch, source in enumerate(sources)]

    @staticmethod
    def _walk(branch: int, source: Source, epoch: int, repetitions: int | None) -> Generator[Lease, None, None]:
        repetition = 0
        while repetitions is None or repetition < repetitions:
            for split in source.splits():
                yield Lease(epoch, split, branch=branch, repetition=repetition)
            repetition += 1

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next split of a source."""
        return next(self._streams[branch], None)

    def ended(self, lease: Lease, elements: int) -> None:
        """Do nothing: nobody asks."""


def run_inprocess(
    plan: Plan, *, engine: EngineName = "python", seed: int = 0, epoch: int = 0, on_error: OnError = "raise"
) -> Generator[Element, None, None]:
    """Yield one epoch's batches (or elements) in the order of the source.

    With the python engine everything runs in the calling thread, and an exception of a user's function is raised
    as it is, with a note that names operator, file and element.
    """
    sources = tuple(plan.sources())
    shape = plan_shape(plan)
    leases = AllLeases(sources, epoch, shape.repetitions)
    options = EngineOptions(seed=seed, order="strict", on_error=on_error)
    if engine == "tensorflow":
        running = build_engine(engine, plan, options, HeapSlots())
        for produced in running.batches(leases):
            if produced.rows and not (produced.partial and shape.drop_remainder):
                yield produced.columns
        running.close()
        return
    assembly = Assembly(plan, sources, options, leases, Loose(), pool=None, call=lambda op: op.fn)
    try:
        for item in assembly.items():
            if not (item.partial and shape.drop_remainder):
                yield dict(item.value)
    except OpError as error:
        if error.__cause__ is None:
            raise
        cause: Any = error.__cause__
        if hasattr(cause, "add_note"):
            cause.add_note(error.message.splitlines()[0])
        raise cause from None
