"""What a job answers, event by event, to what clusters, workers and trainers do by a seed, written down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pecan_ray.errors import CorruptSourceError
from pecan_ray.job import events
from pecan_ray.job.delivery_log import Delivery
from pecan_ray.job.instructions import (
    EndJob,
    Instruction,
    KillWorker,
    LookForTrainers,
    LookForWorkers,
    Response,
)
from pecan_ray.job.job_cost import cost_by_epoch, cost_by_operator
from pecan_ray.job.job_views import live_job
from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import (
    AskAssignment,
    AskLeases,
    EndAssignment,
    EndData,
    LeftOutElement,
    Receipts,
    ReceivedBatches,
    SplitOpenFailure,
    TrainerProgress,
    TrainerReport,
    WorkerProgress,
)
from pecan_ray.job.next_step import next_step_of
from pecan_ray.job.room import HostUse
from pecan_ray.job.sharing import PoolBid
from pecan_ray.job.spec import ErrorPolicy, JobDeadline, Timeouts
from pecan_ray.job.speed import SpeedMeter
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.windows import StepTotals
from pecan_ray.options import AutoWorkers, Workers
from pecan_ray.placement.pool import Demand
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.splits import OUTPUT_BITS, AtWork, Lease, Split, origin_of
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.sampling.spans import Span
from tests.unit.job.in_words import words
from tests.unit.job.job_rig import JobRig, of_kind

WRITTEN = Path(__file__).with_name("answers.txt")
"""A paragraph for each job; `python -m tests.unit.job.test_job_answers` writes all anew."""
JOBS, LOTS = 48, 6
STEPS = 80
"""Things that happen to a job, with what follows from them at once."""
PRICES = Prices(3.6, 0.36)


def headline(event: events.Event) -> str:
    """Say what a job was told, but for what is known from the answers."""
    if isinstance(event, events.TrainerReported):
        report = event.report
        received = replace(report.received, delivery_records=())
        told = replace(report, progress=TrainerProgress(), number=0, received=received)
        return f"{words(told)}, waited {words(report.progress.waited_s)}"
    if isinstance(event, events.WorkerRequestReceived):
        return f"{words(event.worker)} asks {words(event.request)}"
    if isinstance(event, events.WorkerProgressReported):
        return f"{words(event.worker)} tells {words(replace(event.progress, stages=StageSeconds()))}"
    return words(event)


def answers(done: list[Instruction]) -> str:
    """Say what a job wants done."""
    return "; ".join(words(one.reply) if isinstance(one, Response) else words(one) for one in done)


def shape_of(draw: Random) -> LedgerShape:
    """Draw what kind of job it is."""
    ranks = draw.choice((1, 1, 2, 3))
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"visitation": draw.choice(("at_most_once", "zero_or_more"))},
        {"sharding": draw.choice(("static", "off"))},
        {"in_row_order": True, "batch_size": 2},
        {"in_row_order": True, "batch_size": 2, "joined": True, "one_row_each": draw.random() < 0.5},
        {"in_order": True},
        {"coordinated": True},
        {"serial": True},
    )
    kind = draw.choice(kinds)
    ranks = 1 if kind.get("joined") else ranks
    return LedgerShape(**{"world_size": ranks, "epochs": draw.choice((1, 2, None)), "batch_size": 1, **kind})


def deadline_of(draw: Random) -> JobDeadline | None:
    """Draw when the job shall have ended."""
    seconds, batches = draw.choice((None, None, 300.0)), draw.choice((None, 40))
    return None if seconds is None else JobDeadline(seconds, batches)


def workers_of(draw: Random) -> Workers | AutoWorkers:
    """Draw which workers are wanted."""
    return draw.choice(
        (
            Workers(1),
            Workers(2, 1),
            Workers(0, 2),
            AutoWorkers(),
            AutoWorkers(max_remote=0, prices=PRICES),
            AutoWorkers(window_batches=2, window_s=2.0),
            AutoWorkers(mode="pecan", window_batches=2),
            AutoWorkers(objective="no_wait", min_local=1, max_local=3),
            AutoWorkers(prices=PRICES, max_per_hour=9.0),
        )
    )


class Talk:
    """A job, and everything around it."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = Random(seed)
        self.rig = JobRig(
            shape_of(draw),
            workers_of(draw),
            cpus_per_worker=draw.choice((1.0, 1.0, 2.0, 8.0)),
            errors=ErrorPolicy(draw.choice(("raise", "skip", "quarantine")), draw.choice((0.0, 1.0, 1.0, 1.0))),
            timeouts=Timeouts(hung_s=draw.choice((30.0, 1800.0))),
            deadline=deadline_of(draw),
            remote_io=draw.choice((None, 1e6)),
            ordered=draw.random() < 0.7,
        )
        self.meter = SpeedMeter()
        self.lines: list[str] = []
        self._starting: list[str] = []
        self._progress: dict[str, WorkerProgress] = {}
        self._trainers = [TrainerProgress() for _ in range(self.rig.spec.shape.world_size)]
        self._listed = self._number = 0
        self._over = False
        self._actions: dict[Callable[[], None], int] = {
            self._time_passes: 6,
            self._start: 14,
            self._list: 8,
            self._work: 16,
            self._receive: 12,
            self._trainers_tell: 8,
            self._workers_tell: 8,
            self._lose: 2,
            self._hang: 2,
            self._fail_element: 1,
            self._fail_split: 2,
            self._others_tell: 5,
            self._rivals_tell: 2,
        }

    def play(self) -> Iterator[str]:
        """Let things happen; yield what is told of the job, what it answers, and what is known of it at the end."""
        rig, draw = self.rig, self.draw
        yield words(rig.spec)
        for rank in range(rig.spec.shape.world_size):
            if rank and draw.random() < 0.3:
                self._happens(events.TrainerRegistered(rank, "other", "n0", (("map", "2"), ("crop", "1"))))
            self._happens(events.TrainerRegistered(rank, f"t{rank}", f"n{rank % 2}", (("map", "1"),), f"p{rank}"))
        nodes = tuple(dict.fromkeys(f"n{rank % 2}" for rank in range(rig.spec.shape.world_size)))
        self._happens(events.RoomFound(tuple((node, 4.0) for node in nodes), draw.choice(((), (4.0, 2.0)))))
        if not rig.spec.ordered:
            row_s = draw.choice((None, 0.01, 0.2, math.inf))
            self._happens(events.OrderKnown(draw.random() < 0.5, row_s, (("map", "crop"),), (("crop", 3.0),)))
        actions, weights = list(self._actions), list(self._actions.values())
        for step in range(STEPS):
            rig.now += draw.choice((0.1, 0.5, 2.0))
            self._trainers_wait(0.7)
            draw.choices(actions, weights)[0]()
            speed = self.meter.look(rig.job, rig.now)
            if step % 20 == 19:
                self.lines.append(f"{rig.now:.1f} s: {words(speed)}")
            if self._over:
                break
        yield from self.lines
        stats = rig.job.stats(rig.now)
        events_told = tuple(one for one in stats.events if one.kind not in ("worker", "lost"))
        yield f"at the end: {words(replace(stats, events=events_told, timeline=(), windows=(), comparison=None))}"
        yield f"{words(next_step_of(stats))}; bids {words(rig.job.pool_requests())}"
        yield from map(words, stats.timeline)
        cost = rig.job.cost(rig.now)
        if cost is not None:
            yield f"{words(cost)}, by operator {words(cost_by_operator(cost, rig.job.placement.op_seconds))}"
            yield words(cost_by_epoch(stats.deployments, PRICES, 1, stats.epoch_ends))
        for rank in range(rig.spec.shape.world_size):
            yield f"rank {rank}: {words(replace(rig.job.trainer_update(rank), quarantine=()))}"
        yield f"{words(rig.job.resume_point(1))}; {words(live_job(rig.job, rig.now, 'rows'))}"

    def _happens(self, event: events.Event) -> None:
        """Tell the job of something, and do at once what the cluster would."""
        done = self.rig.handle(event)
        if done:
            self.lines.append(f"{self.rig.now:.1f} s: {headline(event)} -> {answers(done)}")
        self._over |= bool(of_kind(EndJob, done))
        self._starting += [one.worker for one in of_kind(StartWorker, done)]
        killed = {one.worker for one in of_kind(KillWorker, done)}
        self._starting = [one for one in self._starting if one not in killed]
        for looks in of_kind(LookForWorkers, done):
            for look in looks.workers:
                self._happens(events.WorkerChecked(look.worker, self.draw.choice((0.0, 4.0)), 5.0))
        for asked in of_kind(LookForTrainers, done):
            for one in asked.trainers:
                state: events.ProcessState = "exists" if self.draw.random() < 0.9 else "ended"
                self._happens(events.TrainerChecked(one.rank, one.incarnation, state))

    # --- what goes well ------------------------------------------------------------------------------------

    def _time_passes(self) -> None:
        self.rig.now += self.draw.choice((1.0, 6.0, 20.0))
        self._trainers_wait(0.9)
        self._happens(events.TimePassed())

    def _trainers_wait(self, share: float) -> None:
        for rank in range(len(self._trainers)):
            if self.draw.random() < share:
                self._happens(events.TrainerWaiting(rank, f"t{rank}", self.rig.job.trainer_update(rank).met))

    def _start(self) -> None:
        """A worker finds its place, or waits for one."""
        if not self._starting:
            return
        worker = self._starting[0]
        if self.draw.random() < 0.2:
            found: events.PlaceFound = self.draw.choice(("no", "no", "perhaps", "yes"))
            self.rig.now += self.draw.choice((0.0, 40.0))
            self._happens(events.WorkerPending(worker, "job other has all CPUs", found))
            return
        del self._starting[0]
        record = self.rig.job.worker_table.workers.get(worker)
        node = record.host if record is not None and record.host else self.draw.choice(("far", "off"))
        self._happens(events.WorkerPlaced(worker, node, 7, self.draw.choice((None, 0.36, 1.5))))
        self._happens(events.WorkerReady(worker))

    def _list(self) -> None:
        """The listing finds three splits more, is tried again, or ends."""
        number = self._listed
        self._listed += 1
        if number < 3:
            elements = self.draw.choice((None, 1, 3, 6, 9))
            named = ((index, f"/{index}.txt") for index in range(3 * number, 3 * number + 3))
            page = tuple(Split(index, path, 0, 90, elements=elements) for index, path in named)
            self._happens(events.SplitPageReceived(0, page))
            again = self.draw.choice(("", "s3://data has been tried again for {seconds}: 503"))
            self._happens(events.ListingRetrying(again, 5.0))
        elif number == 3:
            self._happens(events.ListingEnded(0))

    def _running(self) -> list[str]:
        return [one.name for one in self.rig.job.worker_table.workers.values() if one.running]

    def _work(self) -> None:
        """A worker asks for what comes next for it."""
        running = self._running()
        if not running or self.rig.job.over:
            return
        worker = self.draw.choice(running)
        held = self.rig.job.ledger.workers.get(worker)
        if held is None or not held.working:
            self._ask(worker, AskAssignment())
        elif self.draw.random() < 0.8:
            streams = self.draw.choice((1, 1, 4))
            reading = len(held.pending_leases) if streams > 1 else 0
            lengths = tuple((key, self.draw.randint(1, 9)) for key in list(held.pending_leases)[:1])
            lengths = lengths if self.draw.random() < 0.1 else ()
            most = self.draw.choice((1, 2, 4))
            asked = AskLeases(self.rig.job.ledger.epoch, 0, most, lengths, streams=streams, reading=reading)
            self._ask(worker, asked)
        else:
            rest = {one.key: one.spans for one in self._held(worker)[:1]} if self.draw.random() < 0.2 else {}
            self._ask(worker, EndAssignment(self.rig.job.ledger.epoch, rest, rows=len(rest)))

    def _ask(self, worker: str, request: Any) -> None:
        self._number += 1
        self._happens(events.WorkerRequestReceived(worker, "main", self._number, request))

    def _held(self, worker: str) -> list[Lease]:
        held = self.rig.job.ledger.workers.get(worker)
        return [] if held is None else [one.rest() for one in held.pending_leases.values()]

    def _a_lease(self) -> tuple[str, Lease] | None:
        held = [(worker, lease) for worker in self._running() for lease in self._held(worker) if lease.spans]
        return self.draw.choice(held) if held else None

    def _receive(self) -> None:
        """A trainer receives a batch of some elements of a lease, or its worker says that they yield nothing."""
        if (chosen := self._a_lease()) is None:
            return
        worker, lease = chosen
        start, stop = lease.spans[0]
        count = min(self.draw.choice((1, 2, 4)), elements_in(lease) or 9)
        spans: tuple[Span, ...] = ((start, min(stop, start + (count << OUTPUT_BITS))),)
        if elements_in(lease) == count and self.draw.random() < 0.7:
            spans = lease.spans
        if self.draw.random() < 0.15:
            self._ask(worker, EndData(lease.epoch, {lease.key: spans}))
            return
        rank = self.draw.randrange(len(self._trainers))
        before = self._trainers[rank]
        self._trainers[rank] = replace(before, yielded=before.yielded + 1, rows=before.rows + count)
        ack = ReceivedBatches(worker, lease.epoch, {lease.key: spans}, 1, count, 10 * count)
        delivered = Delivery(before.yielded, lease.epoch, ack.spans, worker)
        held = self.draw.random() < 0.2
        received = Receipts((ack,), delivery_records=(delivered,))
        self._report(rank, received, held=held, full=held)

    def _report(self, rank: int, received: Receipts | None = None, **told: Any) -> None:
        self._number += 1
        progress = self._trainers[rank]
        received = replace(received or Receipts(), kept=progress.yielded)
        report = TrainerReport(rank, f"t{rank}", self._number, received, progress=progress, **told)
        self._happens(events.TrainerReported(report))

    def _trainers_tell(self) -> None:
        """Each trainer tells how it gets on, and what it has settled."""
        now = self.rig.now
        for rank, before in enumerate(self._trainers):
            waited = before.waited_s + (now - before.elapsed_s) * self.draw.choice((0.0, 0.1, 0.9))
            steps = StepTotals(before.yielded, now, now, waited, before.yielded)
            host = HostUse(cpu_s=0.3 * now, in_line_s=0.01 * now, cpus=4.0)
            moved = replace(before, waited_s=waited, elapsed_s=now, queued=rank, steps=steps, host=host)
            self._trainers[rank] = moved
            settled = self.rig.job.trainer_update(rank).settle
            self._report(rank, settled=settled)

    def _workers_tell(self) -> None:
        """Each worker tells what it has done."""
        for worker in self._running():
            before, seconds = self._progress.get(worker, WorkerProgress()), self.rig.now
            busy = StageSeconds(seconds, 2 * seconds, 1.5 * seconds, 0.1 * seconds, operators=(("map", seconds),))
            made = before.elements + self.draw.choice((0, 5, 40))
            told = WorkerProgress(
                made, made // 4, 2, remote_bytes=90 * made, stages=replace(busy, blocked_s=self.draw.choice((0.0, 1.0)))
            )
            self._progress[worker] = told
            self._happens(events.WorkerProgressReported(worker, told))

    # --- what does not -------------------------------------------------------------------------------------

    def _lose(self) -> None:
        names = list(self.rig.job.worker_table.workers)
        if not names:
            return
        worker, draw = self.draw.choice(names), self.draw
        cause: events.LossCause = draw.choice(("process", "node", "stream", "restart"))
        self._starting = [one for one in self._starting if one != worker]
        failures: tuple[events.Event, ...] = (
            events.WorkerFailed(worker, ValueError("no module x"), draw.choice((None, 3))),
            events.WorkerFailed(worker, CorruptSourceError("torn", path="/0.txt"), 5),
            events.OrderFailed(worker, "an element failed in another order"),
            events.CutRefused(worker, "map makes no arrays"),
        )
        if draw.random() < 0.2:
            self._report(0, broken=(worker,), notes=("batches travel by the ring",))
        elif draw.random() < 0.25:
            self._happens(draw.choice(failures))
        else:
            self._happens(events.WorkerLost(worker, cause, draw.choice((events.DIED, "the kernel has killed it"))))
        for rank in range(len(self._trainers)):
            if settled := self.rig.job.trainer_update(rank).settle:
                self._report(rank, settled=settled)

    def _hang(self) -> None:
        """A worker says that it works on something for long, that it is about to end, or that it gets no CPU."""
        if not (running := self._running()):
            return
        worker = self.draw.choice(running)
        leases = self._held(worker)
        origin = origin_of(leases[0], leases[0].spans[0][0] >> OUTPUT_BITS) if leases and leases[0].spans else None
        told = self.draw.choice(
            (
                WorkerProgress(sigterm_received=True),
                WorkerProgress(in_line_share=0.8),
                WorkerProgress(stuck="s3://a has been tried again for {seconds}: 503", stuck_s=99.0),
                WorkerProgress(stuck="map works for {seconds}", stuck_s=31.0, at=AtWork("map", origin, False)),
                WorkerProgress(stuck="reads for {seconds}", stuck_s=31.0, at=AtWork("read", origin, True)),
                WorkerProgress(fallback_reason="map failed in another order"),
            )
        )
        self._happens(events.WorkerProgressReported(worker, told))

    def _fail_element(self) -> None:
        """Elements could not be processed."""
        rank, count = self.draw.randrange(len(self._trainers)), self.draw.choice((1, 1, 30))
        bad = LeftOutElement(("map", len(self.lines)), "map", "element 3 of /0.txt", "torn", count, kept=b"it")
        bad = replace(bad, estimated=self.draw.random() < 0.2, open_end=self.draw.random() < 0.2)
        self._report(rank, left_out=(bad,))

    def _fail_split(self) -> None:
        """A worker cannot open a split."""
        if (chosen := self._a_lease()) is None:
            return
        worker, lease = chosen
        known = elements_in(lease)
        error = LeftOutElement(lease.key, "read", lease.split.where(0), "no such file", known or 1)
        failed = SplitOpenFailure(lease.key, lease.spans, replace(error, open_end=known is None))
        self._ask(worker, AskLeases(lease.epoch, 0, 1, split_open_failures=(failed,)))

    # --- what others want ----------------------------------------------------------------------------------

    def _rivals_tell(self) -> None:
        """Other jobs bid for the same nodes."""
        gains = tuple(sorted((self.draw.choice((1.0, 100.0)) for _ in range(4)), reverse=True))
        bids: tuple[PoolBid, ...] = (PoolBid("local", ("n0",), Demand("rival", gains, holds=1)),)
        bids = bids if self.draw.random() < 0.8 else ()
        gone = () if bids else ("rival",)
        self._happens(events.PoolRequestsReceived(bids, (("local", ("n0",)),), (("n0", 4.0),), gone))

    def _others_tell(self) -> None:
        """The cluster, the user, or somebody who is no part of the job tells something."""
        draw, rank, local = self.draw, self.draw.randrange(len(self._trainers)), self.draw.randrange(3)
        node, incarnation = draw.choice(("n0", "far", "off")), draw.choice(("new", f"t{rank}"))
        several: tuple[events.Event, ...] = (
            events.NodesLeave(((node, draw.choice((None, 30.0))),)),
            events.ControllerRestarted(),
            events.UnfinishedJobSaved("/tmp/kept"),
            events.RemoteIoSet(draw.choice((None, 5e5)), (("s3://a", 1 << 20),), why=", by the cluster"),
            events.ScaleRequested(local, 2 - local),
            events.PlanChanged("map goes first", (("map", "crop"),)),
            events.OrderDropped("map fails in that order"),
            events.RoomRequested("other"),
        )
        seldom: tuple[events.Event, ...] = (
            events.TrainerRegistered(rank, incarnation, "n0", (("map", draw.choice("12")),)),
            events.OtherRunRegistered("another"),
            events.TrainerLeft(rank, f"t{rank}", draw.choice((0, 2)), draw.random() < 0.5),
        )
        self._happens(draw.choice(several if draw.random() < 0.9 else seldom))


def paragraphs(lot: int = 0, lots: int = 1) -> Iterator[str]:
    """Yield what all jobs answer, or those of one lot of several."""
    yield from ("\n".join((f"job {seed}", *Talk(seed).play())) for seed in range(JOBS)[lot::lots])


@pytest.mark.parametrize("lot", range(LOTS))
def test_what_jobs_answer_is_what_is_written_down(lot: int) -> None:
    assert list(paragraphs(lot, LOTS)) == WRITTEN.read_text().strip().split("\n\n")[lot::LOTS]


if __name__ == "__main__":
    WRITTEN.write_text("\n\n".join(paragraphs()) + "\n")
