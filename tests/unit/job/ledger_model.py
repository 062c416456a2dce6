"""A model of workers and trainers around the ledger, played at random: they die, and come in any order."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey, Split
from pecan_ray.sampling.spans import Span

Item = tuple[Lease, int]
"""One element of a lease."""
Place = tuple[int, int, int]
"""Repetition, split and element."""


@dataclass
class ModelWorker:
    """Takes leases, batches their elements, and keeps finished batches until a trainer fetches them."""

    name: str
    batch: int
    working: Assignment | None = None
    items: list[Item] = field(default_factory=list)
    outbox: list[tuple[int, list[Item], int | None]] = field(default_factory=list)
    number: int = 0
    """Batches made in this assignment."""
    gone: bool = False


def spans_of(items: list[Item]) -> dict[LeaseKey, list[Span]]:
    """The positions of elements, by split."""
    out: dict[LeaseKey, list[Span]] = {}
    for lease, element in items:
        out.setdefault(lease.key, []).append((element << OUTPUT_BITS, (element + 1) << OUTPUT_BITS))
    return out


def everything(sizes: list[int], repetitions: int = 1) -> Counter[Place]:
    """Every element of splits of these sizes once."""
    return Counter((r, s, e) for r in range(repetitions) for s, n in enumerate(sizes) for e in range(n))


class LedgerModel:
    """A job of `sizes` splits played at random; records what each rank used in each epoch."""

    def __init__(self, shape: LedgerShape, sizes: list[int], workers: int, seed: int) -> None:
        self.shape, self.sizes = shape, sizes
        self.random = random.Random(seed)
        self.ledger = Ledger(shape)
        self.workers: dict[str, ModelWorker] = {}
        self.made = 0
        self.received: list[list[tuple[int, list[Item]]]] = [[] for _ in range(shape.world_size)]
        self.used: list[list[list[Place]]] = [[] for _ in range(shape.world_size)]
        self.epochs_done = 0
        self.batches: list[list[int]] = []
        for _ in range(workers):
            self.add_worker()
        self.ledger.assign_static(list(self.workers))
        for index, size in enumerate(sizes):
            self.ledger.add_splits(0, [Split(index, elements=size)])
        self.ledger.end_listing(0)

    def run(self, deaths: int = 0) -> None:
        """Play until the job has ended; so many workers die."""
        for _ in range(20_000):
            if self.ledger.finished:
                break
            self._step_at_random()
            deaths = self._maybe_kill(deaths)
            self._close_epochs()
            check_ledger(self.ledger)
        assert self.ledger.finished, "the job never ended"
        self._close_epochs()

    def add_worker(self) -> None:
        """Let another worker come."""
        worker = ModelWorker(f"w{self.made}", self.shape.batch_size)
        self.made += 1
        self.workers[worker.name] = worker
        self.ledger.join(worker.name)

    def _step_at_random(self) -> None:
        worker = self.random.choice(list(self.workers.values()))
        rank = self.random.randrange(self.shape.world_size)
        action = self.random.randrange(3)
        if action == 0 and not worker.gone:
            self._step_worker(worker)
        elif action == 1 and not worker.gone:
            self._fetch(rank, worker)
        else:
            self._sync(rank)

    def _step_worker(self, worker: ModelWorker) -> None:
        if worker.working is None:
            answer = self.ledger.next_assignment(worker.name)
            worker.working = answer if isinstance(answer, Assignment) else None
            worker.number = 0
            return
        lease = self.ledger.take(worker.name)
        if isinstance(lease, Lease):
            length = self.sizes[lease.split.index]
            for start, stop in lease.spans:
                last = length if stop == END else stop >> OUTPUT_BITS
                worker.items += [(lease, e) for e in range(start >> OUTPUT_BITS, min(last, length))]
            self.ledger.ended(worker.name, worker.working.epoch, lease.key, length)
        elif lease == "none":
            self._end_assignment(worker)
        while len(worker.items) >= worker.batch:
            self._emit(worker, worker.batch)

    def _emit(self, worker: ModelWorker, size: int) -> None:
        assert worker.working is not None
        batch, worker.items = worker.items[:size], worker.items[size:]
        rank, delivered = worker.working.rank, worker.working.delivered
        if delivered:
            turn, rank = divmod(worker.number, len(delivered))
            worker.number += 1
            if turn < delivered[rank]:
                return
        worker.outbox.append((worker.working.epoch, batch, rank))

    def _spans(self, batch: list[Item]) -> dict[LeaseKey, list[Span]]:
        """What a batch acknowledges: the last one of a whole plan everything that may be left."""
        last = max((split for split, size in enumerate(self.sizes) if size), default=None)
        if self.shape.serial and any(lease.split.index == last and e == self.sizes[last] - 1 for lease, e in batch):
            return {(0, 0, split): [(0, END)] for split in range(len(self.sizes))}
        return spans_of(batch)

    def _end_assignment(self, worker: ModelWorker) -> None:
        while len(worker.items) >= worker.batch:
            self._emit(worker, worker.batch)
        made = worker.number + bool(worker.items)
        if self.ledger.assignment_ended(worker.name, spans_of(worker.items), made) == "flush" and worker.items:
            self._emit(worker, len(worker.items))
        worker.items, worker.working = [], None

    def _fetch(self, rank: int, worker: ModelWorker) -> None:
        for place, (epoch, batch, to) in enumerate(worker.outbox):
            if to is None or to == rank:
                del worker.outbox[place]
                assert epoch == self.ledger.epoch
                self.received[rank].append((epoch, batch))
                self.ledger.acked(rank, worker.name, epoch, self._spans(batch))
                return

    def _sync(self, rank: int) -> None:
        for name in [name for name, owing in self.ledger.unsettled().items() if rank in owing]:
            self.ledger.settled(rank, name)
        keep = self.ledger.keeps()
        if keep is not None and len(self.received[rank]) > keep:
            mine = self.received[rank]
            back = [item for _, batch in mine[keep:] for item in batch]
            count = len(mine) - keep
            del mine[keep:]
            self.ledger.given_back(rank, self.ledger.epoch, spans_of(back), count, len(back))

    def _maybe_kill(self, deaths: int) -> int:
        if not deaths or self.random.random() >= 0.02:
            return deaths
        victim = self.random.choice([worker for worker in self.workers.values() if not worker.gone])
        victim.gone = True
        self.ledger.lost(victim.name)
        self.add_worker()
        return deaths - 1

    def _close_epochs(self) -> None:
        while self.epochs_done < self.ledger.epoch:
            self.batches.append([len(mine) for mine in self.received])
            for rank, mine in enumerate(self.received):
                self.used[rank].append([(*lease.key[1:], e) for _, batch in mine for lease, e in batch])
                mine.clear()
            self.epochs_done += 1
