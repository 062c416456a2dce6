"""Running a plan in this very process and thread: for debugging, `peek`, and tests."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from pecan_ray.engines.contract import BadElement, EngineOptions, Leases, Produced
from pecan_ray.engines.lease_tracker import LeaseTracker
from pecan_ray.engines.registry import ENGINES
from pecan_ray.engines.users_order import UsersOrder, led_to
from pecan_ray.errors import BatchShapeError, OrderError
from pecan_ray.job.pass_order import Listing
from pecan_ray.job.split_queue import SplitQueue
from pecan_ray.options import EngineName, OnError
from pecan_ray.plan.empty_pass import EmptyPasses, EmptyPassTracker, endless_passes
from pecan_ray.plan.in_step import read_in_step, why_not_in_step
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Element, Lease, LeaseKey, Source
from pecan_ray.sampling.budget import elements_in_hand
from pecan_ray.sampling.random_keys import SplitOrder, split_order_of
from pecan_ray.sources.files import prefetching_files
from pecan_ray.storage import drop_prefetch


class AllLeases:
    """Every split of every source, one after the other, as a job deals them to the one worker that it has."""

    def __init__(
        self,
        sources: Sequence[Source],
        epoch: int,
        num_passes: int | None,
        orders: Sequence[SplitOrder | None] = (),
    ) -> None:
        """`orders`: how the splits of each source are shuffled; without them they come as listed."""
        self._source_order = not orders
        self._streams = [
            _prefetching_files(source, _walk(source, branch, order, epoch, num_passes))
            for branch, (source, order) in enumerate(zip(sources, orders or [None] * len(sources), strict=True))
        ]

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next split of a source."""
        return next(self._streams[branch], None)

    def take_concurrent(self, branch: int, reading: int, streams: int) -> Lease | None:
        """Return the next split of a source, also while others are read, but for a look at the first ones."""
        # A look at the first elements should open one file, not as many as a shuffle reads in turns.
        return None if reading and self._source_order else self.take(branch)

    def ended(self, lease: Lease, elements: int) -> None:
        """Do nothing: nobody asks."""


def _walk(source: Source, branch: int, order: SplitOrder | None, epoch: int, num_passes: int | None) -> Iterator[Lease]:
    """Yield a source's leases of an epoch; the whole source is listed first where its splits are shuffled."""
    listing = Listing()
    queue = SplitQueue(listing, branch, order, passes=num_passes)
    queue.begin(epoch, 0)
    for split in source.splits():
        listing.add([split])
        # Without a shuffle the first split is read while the rest is listed; a shuffle has to know all of
        # them.
        if order is None:
            yield from iter(queue.take, None)
    listing.complete = True
    yield from iter(queue.take, None)


def _prefetching_files(source: Source, leases: Iterator[Lease]) -> Iterator[Lease]:
    """Yield leases; the files of the next ones are fetched meanwhile."""
    # The prefetch runs ahead on its own copy of the stream; `tee` keeps what lies between the two.
    leases, ahead = itertools.tee(leases)
    for _, lease in zip(prefetching_files(source, (lease.split for lease in ahead)), leases, strict=True):
        yield lease


class PassGuard(LeaseTracker):
    """The leases of an endless repeat, which raises `PlanError` where its passes yield nothing."""

    def __init__(self, leases: Leases, empty: EmptyPasses) -> None:
        super().__init__(leases)
        self._empty_pass_state = EmptyPassTracker.begin(empty)

    def look(self, produced: Produced) -> None:
        """Take note of what an engine yields, or only tells."""
        if produced.rows:
            self._empty_pass_state = self._empty_pass_state.behind(self.latest_pass)
        elif (error := self._empty_pass_state.too_many(self.earliest_pass())) is not None:
            raise error


class InProcessEpoch:
    """One epoch of a plan, run in this process."""

    def __init__(
        self,
        plan: Plan,
        *,
        engine: EngineName = "python",
        seed: int = 0,
        epoch: int = 0,
        on_error: OnError = "raise",
        users_order: UsersOrder | None = None,
        source_order: bool = False,
    ) -> None:
        """`source_order`: do not shuffle the splits, so that the first ones are read before all are listed."""
        self._engine, self._epoch, self._users_order = engine, epoch, users_order
        # Decision 171: behind a zip whose inputs a job reads in step, a shuffle orders the splits of the first one
        # too.
        in_step = not (source_order or why_not_in_step(plan, engine, on_error))
        self._read = read_in_step if in_step else lambda plan: plan
        self._plan = self._read(plan)
        shuffled = plan_shape(self._plan, order=False).shuffled[: len(self._plan.split_sources())]
        self._orders = () if source_order else split_order_of(shuffled, seed)
        self._options = EngineOptions(seed=seed, order="strict", on_error=on_error, users_order=users_order)
        self._leases: LeaseTracker | None = None
        """The leases of the plan that runs."""
        self._bad: dict[LeaseKey, set[int]] = {}
        """The numbers of the bad elements of each split."""

    def produced(self) -> Generator[Produced, None, None]:
        """Yield its batches (or elements, of one row each) in the order of a job with ``order="strict"``.

        What has no rows tells of bad elements, and of those of a remainder that is dropped.
        With the python engine everything runs in the calling thread, and an exception of a user's function is raised
        as it is, with a note that names operator, file and element.

        Where the plan's order leads to a batch that cannot be made, the epoch goes on in the user's order, which runs
        once more over what was yielded before.
        """
        given = 0
        try:
            for produced in self._run(self._plan, self._options):
                given += bool(produced.rows)
                yield produced
            return
        except (BatchShapeError, OrderError) as error:
            if self._users_order is None:
                raise
            led = error
        again = self._run(self._read(self._users_order.plan), replace(self._options, users_order=None))
        # Both orders yield the same batches in the same turns under "strict", so their number says where to go
        # on.
        rest = _behind(again, given)
        # Before the order is given up: if the user's order fails at the same element, the order is not to blame.
        first = next(rest, None)  # raises what the user's order raises
        self._users_order.go_back(led.message if isinstance(led, OrderError) else led_to(led))
        if first is not None:
            yield first
        yield from rest

    def in_hand(self) -> int:
        """Return how many elements are read, and neither in a batch that was yielded nor bad.

        It looks at all leases that are unfinished, so it is for those who have found a bad element.
        """
        missing = () if self._leases is None else self._leases.missing()
        return elements_in_hand(self._bad, ((lease.key, lease.spans) for lease in missing))

    def _run(self, plan: Plan, options: EngineOptions) -> Generator[Produced, None, None]:
        shape = plan_shape(plan, order=False)
        all_leases = AllLeases(plan.split_sources(), self._epoch, shape.num_passes, self._orders)
        empty = endless_passes(plan) if shape.num_passes is None else None
        leases = LeaseTracker(all_leases) if empty is None else PassGuard(all_leases, empty)
        self._leases, self._bad = leases, {}
        try:
            for produced in ENGINES[self._engine].load().run_here(plan, options, leases):
                leases.mark_processed(produced.spans)
                if isinstance(leases, PassGuard):
                    leases.look(produced)
                self._add_bad(produced.bad)
                # Here one process has the whole epoch, so what is partial is the epoch's remainder and nobody
                # else can fill it.
                if produced.rows and produced.partial and shape.drop_remainder:
                    produced = Produced({}, produced.spans, 0, produced.epoch, bad=produced.bad, dropped=produced.rows)
                if produced.rows or produced.bad or produced.dropped:
                    yield produced
        finally:
            drop_prefetch()  # what another reader of this process still wants of it, that one fetches itself

    def _add_bad(self, fresh: Sequence[BadElement]) -> None:
        for at in (one.origin or one.first for one in fresh):
            if at is not None:
                self._bad.setdefault((at.branch, at.repetition, at.split), set()).add(at.element)


def run_in_process(
    plan: Plan,
    *,
    engine: EngineName = "python",
    seed: int = 0,
    epoch: int = 0,
    source_order: bool = False,
) -> Generator[Element, None, None]:
    """Yield one epoch's batches (or elements) in the order of a job with ``order="strict"``.

    `source_order`: do not shuffle the splits, so that the first ones are read before the whole source is listed.
    """
    here = InProcessEpoch(plan, engine=engine, seed=seed, epoch=epoch, source_order=source_order)
    for produced in here.produced():
        if produced.rows:
            yield produced.columns


def _behind(produced: Iterator[Produced], count: int) -> Iterator[Produced]:
    """Yield what comes behind so many batches, which have been yielded before."""
    for one in produced:
        if not count:
            yield one
        count -= bool(one.rows and count)
