"""Running a plan in this very process and thread: for debugging, `peek`, and tests."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence

from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.registry import ENGINES
from pecan_ray.engines.users_order import UsersOrder, led_to
from pecan_ray.errors import BatchShapeError, OrderError
from pecan_ray.options import EngineName, OnError
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Element, Lease, Source
from pecan_ray.sources.files import with_files_ahead
from pecan_ray.storage import forget_ahead


class AllLeases:
    """Every split of every source, one after the other."""

    def __init__(self, sources: Sequence[Source], epoch: int, repetitions: int | None) -> None:
        self._streams = [self._walk(branch, source, epoch, repetitions) for branch, source in enumerate(sources)]

    @staticmethod
    def _walk(branch: int, source: Source, epoch: int, repetitions: int | None) -> Generator[Lease, None, None]:
        for repetition in itertools.count() if repetitions is None else range(repetitions):
            empty = True
            for split in with_files_ahead(source, source.splits()):
                empty = False
                yield Lease(epoch, split, branch=branch, repetition=repetition)
            if empty:
                return

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next split of a source."""
        return next(self._streams[branch], None)

    def ended(self, lease: Lease, elements: int) -> None:
        """Do nothing: nobody asks."""


def run_inprocess(
    plan: Plan, *, engine: EngineName = "python", seed: int = 0, epoch: int = 0, on_error: OnError = "raise"
) -> Generator[Element, None, None]:
    """Yield one epoch's batches (or elements) in the order of the source."""
    for produced in run_produced(plan, engine=engine, seed=seed, epoch=epoch, on_error=on_error):
        if produced.rows:
            yield produced.columns


def run_produced(
    plan: Plan,
    *,
    engine: EngineName = "python",
    seed: int = 0,
    epoch: int = 0,
    on_error: OnError = "raise",
    users_order: UsersOrder | None = None,
) -> Generator[Produced, None, None]:
    """Yield one epoch's batches (or elements, of one row each) in the order of the source.

    What has no rows tells of bad elements only.
    With the python engine everything runs in the calling thread, and an exception of a user's function is raised
    as it is, with a note that names operator, file and element.

    Where the plan's order leads to a batch that cannot be made, the epoch goes on in the user's order, which runs once
    more over what was yielded before.
    """
    given = 0
    try:
        for produced in _run(plan, engine, seed, epoch, on_error, users_order):
            given += bool(produced.rows)
            yield produced
        return
    except (BatchShapeError, OrderError) as error:
        if users_order is None:
            raise
        led = error
    again = _run(users_order.plan, engine, seed, epoch, on_error, None)
    rest = _behind(again, given)
    first = next(rest, None)  # raises what the user's order raises
    users_order.go_back(led.message if isinstance(led, OrderError) else led_to(led))
    if first is not None:
        yield first
    yield from rest


def _behind(produced: Iterator[Produced], count: int) -> Iterator[Produced]:
    """Yield what comes behind so many batches, which have been yielded before."""
    for one in produced:
        if not count:
            yield one
        count -= bool(one.rows and count)


def _run(
    plan: Plan, engine: EngineName, seed: int, epoch: int, on_error: OnError, users_order: UsersOrder | None
) -> Generator[Produced, None, None]:
    shape = plan_shape(plan)
    leases = AllLeases(tuple(plan.sources()), epoch, shape.repetitions)
    options = EngineOptions(seed=seed, order="strict", on_error=on_error, users_order=users_order)
    try:
        for produced in ENGINES[engine].load().run_here(plan, options, leases):
            if produced.rows and produced.partial and shape.drop_remainder:
                produced = Produced({}, produced.spans, 0, produced.epoch, bad=produced.bad)
            if produced.rows or produced.bad:
                yield produced
    finally:
        forget_ahead()  # what another reader of this process still wants of it, that one fetches itself
