"""What a trainer has to tell the job: gathered into reports, one at a time, each repeated until it is answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pecan_ray.job.delivery_log import MOST_UNUSED, Delivery
from pecan_ray.job.left_epochs import NOWHERE, LoopPlace
from pecan_ray.job.messages import (
    GivenBack,
    LeftOutElement,
    ReceivedBatches,
    TrainerProgress,
    TrainerReport,
    TrainerUpdate,
)
from pecan_ray.job.trainer_events import ReceivedBatch
from pecan_ray.plan.splits import LeaseKey
from pecan_ray.sampling.spans import Span, Spans, one_after_the_other

REPORT_S = 0.25
"""Shortest time between two reports while nobody waits for them."""
# docs/scaling.md: a call costs the controller about 1 ms of CPU, so calls become rarer where members are many.
REPORT_PER_TRAINER_S = 0.01
"""With many trainers a longer one: the job hears of no more than 100 a second that nobody waits for."""
HARDLY_ANY = 4
"""Of many trainers each tells when it has received so many batches for each that it may still use."""
TOLD_AT_ONCE = 100
"""So many trainers tell at once what others wait for;"""
CLOSING_PER_TRAINER_S = 0.001
"""with each one more, at an epoch's end this much after their last report at the earliest (about 1,000 a second),"""
PRESSING_PER_TRAINER_S = 0.011
"""and in an epoch's middle so much, where queues have room for the batches of the meantime (about 100 a second)."""
IDLE_REPORT_S = 1.0
"""Longest time without a report, with few trainers."""
REPEAT_S = 5.0
"""A report that was not answered for so long is sent again."""


def longest_silence(world_size: int) -> float:
    """Return the longest time between two reports of a trainer that has nothing to tell."""
    return max(IDLE_REPORT_S, REPORT_PER_TRAINER_S * world_size)


@dataclass(frozen=True)
class Need:
    """Who waits for a trainer's next report."""

    closing: bool = False
    """The job does, to end an epoch or to settle about a lost worker."""
    others_may_wait: bool = False
    """Other trainers do, that may use only what all have received."""
    held: bool = False
    """This one does, which may not use what it has,"""
    full: bool = False
    """and can take no more meanwhile."""


NO_NEED, CLOSING = Need(), Need(closing=True)


class Outgoing:
    """The news of one trainer."""

    def __init__(self, rank: int, world_size: int, incarnation: str, now: float) -> None:
        self._rank, self._incarnation = rank, incarnation
        self._report_s = max(REPORT_S, REPORT_PER_TRAINER_S * world_size)
        self._closing_s = CLOSING_PER_TRAINER_S * max(0, world_size - TOLD_AT_ONCE)
        self._others_wait_delay_s = PRESSING_PER_TRAINER_S * max(0, world_size - TOLD_AT_ONCE)
        self._idle_s = longest_silence(world_size)
        self._number = self._kept = 0
        self.acknowledged = 0
        """The newest report that the job is known to have."""
        self.acknowledged_batches = 0
        """Batches of which it knows by that: received, and not given back."""
        self._quarantined = 0
        """Bad elements that were taken from orders."""
        self.cut_off = False
        """Something has failed, and perhaps no report is answered any more."""
        self._report_requested = False
        self._alone = world_size == 1
        self._pending_report: TrainerReport | None = None
        self._first_sent = now
        """When it was sent first."""
        self._sent = now
        self._reported_held = self._reported_full = False
        self._clear()

    def _clear(self) -> None:
        self._batches_to_acknowledge: dict[tuple[str, int], list[ReceivedBatch]] = {}
        self._batches: list[ReceivedBatch] = []
        self._given_back: GivenBack | None = None
        self._settled: list[str] = []
        self._broken: list[str] = []
        self._left_out: list[LeftOutElement] = []
        self._notes: list[str] = []
        self.pending_batches = 0

    def acknowledge(self, *batches: ReceivedBatch) -> None:
        """Note batches that were received, or blocks of rows that are joined to batches."""
        for batch in batches:
            self._batches_to_acknowledge.setdefault((batch.worker, batch.epoch), []).append(batch.without_rows)
        # Blocks become batches later: those are delivered then.
        self.deliver([batch for batch in batches if batch.row_range is None or not batch.row_range.are_joined])

    def deliver(self, batches: Sequence[ReceivedBatch]) -> None:
        """Note batches that the training loop is going to have."""
        self._batches += [batch.without_rows for batch in batches]
        self._kept += len(batches)
        self.pending_batches += len(batches)

    def return_batches(self, epoch: int, batches: Sequence[ReceivedBatch]) -> None:
        """Note batches that will not be used."""
        # Of one epoch alone: the job begins the next one when it has all that is given back of this one.
        before = self._given_back
        spans = dict(before.spans) if before is not None and before.epoch == epoch else {}
        count, rows = (before.batches, before.rows) if before is not None and before.epoch == epoch else (0, 0)
        ids = before.ids if before is not None and before.epoch == epoch else ()
        # Without what yields nothing, which is dealt with: bad elements that travelled with a batch would count twice.
        more = _data(batches)
        self._kept -= len(batches)
        merged = {
            key: [*spans.get(key, ()), *more.get(key, ())] for key in (*spans, *(k for k in more if k not in spans))
        }
        self._given_back = GivenBack(
            epoch,
            merged,
            count + len(batches),
            rows + sum(batch.rows for batch in batches),
            (*ids, *(batch.id for batch in batches)),
        )

    def settle(self, worker: str) -> None:
        """Note that nothing more will be accepted from a worker."""
        if worker not in self._settled:
            self._settled.append(worker)

    def broken(self, worker: str) -> None:
        """Note that a worker's stream broke."""
        self._broken.append(worker)

    def left_out(self, elements: Iterable[LeftOutElement]) -> None:
        """Note elements that were left out."""
        self._left_out.extend(elements)

    def to_keep(self, update: TrainerUpdate) -> tuple[LeftOutElement, ...]:
        """Return the bad elements of orders that are new, and tell at once that they are here."""
        # Decision 22: orders say all that holds, and come again. Some of these may have been taken before.
        fresh = update.quarantine[max(0, self._quarantined - update.quarantined) :]
        # The job keeps these elements, and tells of them again, until it hears that they are taken.
        if fresh:
            self._quarantined = update.quarantined + len(update.quarantine)
            self._report_requested = True
        return fresh

    def note(self, text: str) -> None:
        """Note something for the job's events."""
        self._notes.append(text)

    def note_acknowledged(self, number: int, now: float) -> None:
        """Note that the job has taken a report."""
        # An answer may come late, to a report that was answered before.
        if self._pending_report is not None and self._pending_report.number == number:
            self.acknowledged, self.acknowledged_batches, self._pending_report = number, self._pending_report.kept, None

    def want(self) -> None:
        """Let the next report be sent at once."""
        self._report_requested = True

    def need(self, update: TrainerUpdate, used: int, *, held: bool, full: bool) -> Need:
        """Return who waits for the next report; `used`: batches of the job's epoch that the loop has.

        For a rank that is alone nobody waits but the job, which ends an epoch with it.
        """
        closing = update.closing or bool(update.settle)
        if self._alone:
            return CLOSING if closing else NO_NEED
        headroom = update.allowed - used  # batches that may be used and were not
        return Need(closing, others_may_wait=self.others_may_wait(headroom), held=held, full=full)

    def others_may_wait(self, headroom: int) -> bool:
        """Tell whether others may soon wait for what was received here, with so many batches left that may be used.

        Ranks use batches in step.  Many of them tell later, when hardly any is left: else all would tell all the time.
        """
        return self.pending_batches >= max(1, headroom * (HARDLY_ANY if self._others_wait_delay_s else 1))

    @property
    def awaiting_reply_since(self) -> float | None:
        """When the report was sent that the job has not answered; None if it has."""
        return None if self._pending_report is None else self._first_sent

    @property
    def has_pending(self) -> bool:
        """Whether the job may not know of all batches that were received."""
        return bool(self._batches_to_acknowledge) or self._pending_report is not None

    @property
    def _updates(self) -> bool:
        came = self._batches_to_acknowledge or self._batches
        return bool(came or self._broken or self._notes or self._given_back or self._settled or self._left_out)

    @property
    def complete_report(self) -> int:
        """The report in which the job hears of all that has happened so far."""
        return self._number + self._updates

    def due(self, need: Need) -> float:
        """Return the time at which a report must be sent at the latest."""
        if self._pending_report is not None:
            return self._sent + REPEAT_S
        return self._sent + self._report_delay(need)

    def _report_delay(self, need: Need) -> float:
        """Return how long after the last report the next one is sent, which was answered."""
        if self._immediate_report or self._report_requested or self._should_report_full(need):
            return 0.0
        tells_held = need.held and not self._reported_held
        if need.closing and (self._updates or tells_held):
            return self._closing_s
        if tells_held or (need.others_may_wait and self._updates):
            return self._others_wait_delay_s
        return self._report_s if self._updates else self._idle_s

    def _should_report_full(self, need: Need) -> bool:
        """Tell whether the job has yet to hear that this rank can take no more while it waits for others."""
        # Of many trainers only those with a full queue hear at once that they may use more, so the job must know of it.
        known = self._reported_full if self._others_wait_delay_s else self._reported_held
        return need.held and need.full and not known

    @property
    def _immediate_report(self) -> bool:
        # The job, or other ranks, cannot go on before they know of these.
        return bool(self._settled or self._given_back or self._broken)

    def next(
        self,
        now: float,
        need: Need,
        met: int,
        progress: TrainerProgress,
        place: LoopPlace = NOWHERE,
        rest: Delivery | None = None,
    ) -> TrainerReport:
        """Return the report that is due: the last one again, where it was not answered.

        `rest`: what has come, and is in no batch yet.
        """
        # Decision 22: the same report again, because its answer may be lost. The job knows it by its number.
        if self._pending_report is not None:
            self._sent = now
            return self._pending_report
        self._number += 1
        report = TrainerReport(
            rank=self._rank,
            incarnation=self._incarnation,
            number=self._number,
            received_batches=tuple(
                _build_ack(worker, epoch, batches) for (worker, epoch), batches in self._batches_to_acknowledge.items()
            ),
            kept=self._kept,
            delivery_records=tuple(map(_delivery, self._not_used(progress.queued))),
            rest=rest,
            settled=tuple(self._settled),
            given_back=self._given_back,
            broken=tuple(self._broken),
            left_out=tuple(self._left_out),
            notes=tuple(self._notes),
            progress=progress,
            met=met,
            held=need.held,
            full=need.held and need.full,
            quarantined=self._quarantined,
            place=place,
        )
        self._clear()
        self._sent = self._first_sent = now
        self._pending_report, self._report_requested = report, False
        self._reported_held, self._reported_full = report.held, report.full
        return report

    def _not_used(self, queued: int) -> Sequence[ReceivedBatch]:
        """Return the batches that some rank may not have used: all, unless this rank is alone."""
        return self._batches[max(0, len(self._batches) - queued - MOST_UNUSED) :] if self._alone else self._batches


def _delivery(batch: ReceivedBatch) -> Delivery:
    return Delivery(batch.id, batch.epoch, _data([batch]) if batch.without_data else batch.spans, batch.worker)


def _joined(batches: Iterable[ReceivedBatch]) -> dict[LeaseKey, Sequence[Span]]:
    spans: dict[LeaseKey, list[Iterable[Span]]] = {}
    for batch in batches:
        for key, intervals in batch.spans.items():
            spans.setdefault(key, []).append(intervals)
    return {key: one_after_the_other(several) for key, several in spans.items()}


def _data(batches: Iterable[ReceivedBatch]) -> dict[LeaseKey, list[Span]]:
    """Return what yields the elements of batches: what yields nothing is dealt with, whoever uses them."""
    found: dict[LeaseKey, list[Span]] = {}
    for batch in batches:
        for key, intervals in batch.spans.items():
            spans = Spans(intervals)
            for start, stop in batch.without_data.get(key, ()):
                spans.remove(start, stop)
            if spans:
                found.setdefault(key, []).extend(spans)
    return found


def _build_ack(worker: str, epoch: int, batches: Sequence[ReceivedBatch]) -> ReceivedBatches:
    rows, nbytes = sum(batch.rows for batch in batches), sum(batch.nbytes for batch in batches)
    return ReceivedBatches(worker, epoch, _joined(batches), len(batches), rows, nbytes)
