"""A job without a cluster, for tests: its trainers have come, its workers run, and what it wants done is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pecan_ray.job import events
from pecan_ray.job.delivery_log import Delivery
from pecan_ray.job.instructions import Instruction, Log, Response
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import (
    AskAssignment,
    AskLeases,
    Assigned,
    EndAssignment,
    Receipts,
    ReceivedBatches,
    Reply,
    TrainerReport,
    WorkerQuestion,
)
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.state import JobState
from pecan_ray.options import AutoWorkers, Workers
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, Split
from tests.ledger_check import check_ledger

T = TypeVar("T")


def of_kind(kind: type[T], done: Sequence[object]) -> list[T]:
    """Return the instructions of one kind."""
    return [one for one in done if isinstance(one, kind)]


def said(done: list[Instruction]) -> str:
    """Return all that was logged."""
    return "\n".join(one.text for one in of_kind(Log, done))


def elements(first: int, count: int = 1) -> tuple[int, int]:
    """Return the positions of elements from a number on."""
    return first << OUTPUT_BITS, (first + count) << OUTPUT_BITS


class JobRig:
    """A job and its clock; every event is handled, kept, and followed by a look at the ledger."""

    def __init__(
        self, shape: LedgerShape | None = None, workers: Workers | AutoWorkers | None = None, **options: Any
    ) -> None:
        shape = shape or LedgerShape()
        self.spec = JobSpec("job", shape, workers or Workers(1), **options)
        self.job = JobState(self.spec, 0.0)
        self.now = 0.0
        self.done: list[list[Instruction]] = []
        self._requested: dict[str, int] = {}
        self._reported: dict[int, int] = {}

    def handle(self, event: events.Event, after: float = 0.0) -> list[Instruction]:
        """Let the job take an event, so many seconds after the one before."""
        self.now += after
        done = self.job.handle(event, self.now)
        self.done.append(done)
        check_ledger(self.job.ledger)
        return done

    # --- what usually happens ------------------------------------------------------------------------------

    def come(self, *hosts: tuple[str, float], remote: tuple[float, ...] = ()) -> list[str]:
        """Let all trainers come and room be found; return the workers that are to be started."""
        nodes = hosts or (("node", 4.0),)
        for rank in range(self.spec.shape.world_size):
            self.handle(events.TrainerRegistered(rank, f"t{rank}", nodes[rank % len(nodes)][0]))
        done = self.handle(events.RoomFound(nodes, remote))
        return [start.worker for start in of_kind(StartWorker, done)]

    def place(self, worker: str, node: str = "node") -> list[Instruction]:
        """Let a worker find a place and come up."""
        self.handle(events.WorkerPlaced(worker, node, 1))
        return self.handle(events.WorkerReady(worker))

    def begin(self, splits: int | Sequence[Split] = 1) -> list[str]:
        """Let trainers and workers come, all on one node, and these or so many splits be listed; return the workers."""
        workers = self.come()
        for worker in workers:
            self.place(worker)
        self.list_splits(splits)
        return workers

    def list_splits(self, splits: int | Sequence[Split]) -> None:
        """Let these or so many splits become known, and no more."""
        known = [Split(index) for index in range(splits)] if isinstance(splits, int) else splits
        self.handle(events.SplitPageReceived(0, tuple(known)))
        self.handle(events.ListingEnded(0))

    # --- what workers ask ----------------------------------------------------------------------------------

    def ask(self, worker: str, request: WorkerQuestion) -> list[Instruction]:
        """Let a worker ask something."""
        number = self._requested[worker] = self._requested.get(worker, 0) + 1
        return self.handle(events.WorkerRequestReceived(worker, "main", number, request))

    def response(self, worker: str, request: WorkerQuestion) -> Reply:
        """Let a worker ask something that has an answer at once."""
        (answer,) = [one for one in of_kind(Response, self.ask(worker, request)) if one.worker == worker]
        return answer.reply

    def assign(self, worker: str) -> Assignment:
        """Let a worker get work that there is."""
        reply = self.response(worker, AskAssignment())
        assert isinstance(reply, Assigned)
        return reply.assignment

    def take(self, worker: str, most: int = 1) -> tuple[Lease, ...]:
        """Let a worker take leases."""
        reply = self.response(worker, AskLeases(self.job.ledger.epoch, 0, most))
        assert isinstance(reply, tuple)
        return reply

    def leases(self, worker: str) -> Iterator[Lease]:
        """Let a worker take all leases, one at a time."""
        while taken := self.take(worker):
            yield from taken

    def end(self, worker: str, **told: object) -> Reply:
        """Let a worker end its assignment."""
        return self.response(worker, EndAssignment(self.job.ledger.epoch, **told))  # type: ignore[arg-type]  # its fields

    # --- what trainers report ------------------------------------------------------------------------------

    def report(self, rank: int = 0, **told: object) -> list[Instruction]:
        """Let a trainer report something."""
        number = self._reported[rank] = self._reported.get(rank, 0) + 1
        report = TrainerReport(rank, f"t{rank}", number, **told)  # type: ignore[arg-type]  # its fields
        return self.handle(events.TrainerReported(report))

    def acknowledge(self, worker: str, lease: Lease, first: int, count: int = 1) -> list[Instruction]:
        """Let a trainer acknowledge a batch of elements of one split."""
        ack = ReceivedBatches(worker, lease.epoch, {lease.key: [elements(first, count)]}, 1, count, 10 * count)
        delivered = Delivery(first, lease.epoch, ack.spans, worker)
        return self.report(received=Receipts((ack,), delivery_records=(delivered,)))
