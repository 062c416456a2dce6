"""A whole job played at random: workers that make batches, trainers that take them, and a worker that dies."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from pecan_ray.job import events
from pecan_ray.job.instructions import Answer, Instruction, KillWorker
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import (
    Acknowledgement,
    AskAssignment,
    AskLeases,
    Assigned,
    EndAssignment,
    GivenBack,
    WorkerQuestion,
)
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import Workers
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey, Split
from pecan_ray.sampling.spans import Span
from tests.unit.job.job_rig import JobRig, elements, of_kind

Item = tuple[Lease, int]


@dataclass
class PlayedWorker:
    """What a worker has taken and made."""

    assignment: Assignment | None = None
    asked: bool = False
    """It waits for an answer."""
    items: list[Item] = field(default_factory=list)
    lengths: list[tuple[LeaseKey, int]] = field(default_factory=list)
    outbox: list[tuple[int, list[Item], int | None]] = field(default_factory=list)
    number: int = 0
    """Batches made in this assignment."""


class Play:
    """Everybody around a job."""

    def __init__(self, shape: LedgerShape, workers: Workers, sizes: list[int], chance: random.Random) -> None:
        self.rig = JobRig(shape, workers)
        self.shape, self.sizes, self.random = shape, sizes, chance
        self.workers: dict[str, PlayedWorker] = {}
        self.received: list[list[tuple[int, list[Item]]]] = [[] for _ in range(shape.world_size)]

    def run(self) -> None:
        """Play until all epochs are delivered; one worker dies."""
        for worker in self.rig.come():
            self._start(worker)
        self.rig.handle(events.SplitsListed(0, tuple(Split(index) for index in range(len(self.sizes)))))
        self.rig.handle(events.ListingEnded(0))
        dies_at = self.random.randrange(20, 60)
        for step in range(20_000):
            if self.rig.job.ledger.finished:
                return
            if step == dies_at:
                self._kill(self.random.choice(list(self.workers)))
            elif self.random.random() < 0.5:
                self._work(self.random.choice(list(self.workers)))
            else:
                self._train(self.random.randrange(self.shape.world_size))
        raise AssertionError("the job never ended")

    def _start(self, name: str) -> None:
        self.workers[name] = PlayedWorker()
        self._follow(self.rig.place(name))

    def _kill(self, name: str) -> None:
        del self.workers[name]
        self._follow(self.rig.handle(events.WorkerLost(name, "process"), after=0.1))

    def _follow(self, done: list[Instruction]) -> None:
        for kill in of_kind(KillWorker, done):
            self.workers.pop(kill.worker, None)
        for answer in of_kind(Answer, done):
            if answer.worker in self.workers:
                self._answered(answer.worker, self.workers[answer.worker], answer)
        for start in of_kind(StartWorker, done):
            self._start(start.worker)

    # --- workers -------------------------------------------------------------------------------------------

    def _work(self, name: str) -> None:
        worker = self.workers[name]
        if not worker.asked:
            question: WorkerQuestion = AskAssignment()
            if worker.assignment is not None:
                question = AskLeases(worker.assignment.epoch, 0, 2, tuple(worker.lengths))
                worker.lengths = []
            self._ask(name, worker, question)

    def _ask(self, name: str, worker: PlayedWorker, question: WorkerQuestion) -> None:
        worker.asked = True
        self._follow(self.rig.ask(name, question))

    def _answered(self, name: str, worker: PlayedWorker, answer: Answer) -> None:
        worker.asked = False
        if isinstance(answer.reply, Assigned):
            worker.assignment, worker.number = answer.reply.assignment, 0
        elif isinstance(answer.reply, tuple):
            self._read(worker, answer.reply)
            while len(worker.items) >= self.shape.batch_size:
                self._emit(worker, self.shape.batch_size)
            if not answer.reply and worker.assignment is not None:
                made = worker.number + bool(worker.items)
                epoch = worker.assignment.epoch
                end = EndAssignment(epoch, spans_of(worker.items), made, tuple(worker.lengths))
                worker.lengths = []
                self._ask(name, worker, end)
        elif answer.reply in ("flush", "return"):
            if answer.reply == "flush" and worker.items:
                self._emit(worker, len(worker.items))
            worker.items, worker.assignment = [], None

    def _read(self, worker: PlayedWorker, leases: tuple[Lease, ...]) -> None:
        for lease in leases:
            length = self.sizes[lease.split.index]
            for start, stop in lease.spans:
                last = length if stop == END else stop >> OUTPUT_BITS
                worker.items += [(lease, number) for number in range(start >> OUTPUT_BITS, min(last, length))]
            worker.lengths.append((lease.key, length))

    def _emit(self, worker: PlayedWorker, size: int) -> None:
        assert worker.assignment is not None
        batch, worker.items = worker.items[:size], worker.items[size:]
        rank, delivered = worker.assignment.rank, worker.assignment.delivered
        if delivered:
            turn, rank = divmod(worker.number, len(delivered))
            worker.number += 1
            if turn < delivered[rank]:
                return
        worker.outbox.append((worker.assignment.epoch, batch, rank))

    # --- trainers ------------------------------------------------------------------------------------------

    def _train(self, rank: int) -> None:
        orders = self.rig.job.orders(rank)
        mine = [batch for epoch, batch in self.received[rank] if epoch == orders.epoch]
        if orders.settle:
            self._follow(self.rig.report(rank, settled=orders.settle))
        elif orders.keep is not None and len(mine) > orders.keep:
            back = [item for batch in mine[orders.keep :] for item in batch]
            self.received[rank] = [(orders.epoch, batch) for batch in mine[: orders.keep]]
            given = GivenBack(orders.epoch, spans_of(back), len(mine) - orders.keep, len(back))
            self._follow(self.rig.report(rank, given_back=given))
        else:
            self._fetch(rank)

    def _fetch(self, rank: int) -> None:
        for name, worker in self.workers.items():
            for place, (epoch, batch, to) in enumerate(worker.outbox):
                if to is None or to == rank:
                    del worker.outbox[place]
                    self.received[rank].append((epoch, batch))
                    ack = Acknowledgement(name, epoch, spans_of(batch), 1, len(batch), 10 * len(batch))
                    self._follow(self.rig.report(rank, acks=(ack,)))
                    return


def spans_of(items: list[Item]) -> dict[LeaseKey, list[Span]]:
    """The positions of elements, by split."""
    spans: dict[LeaseKey, list[Span]] = {}
    for lease, number in items:
        spans.setdefault(lease.key, []).append(elements(number))
    return spans


def play(shape: LedgerShape, workers: Workers, sizes: list[int], chance: random.Random) -> JobRig:
    """Play a job to its end; return it with the log of what happened."""
    game = Play(shape, workers, sizes, chance)
    game.run()
    return game.rig
