"""What a trainer has to tell the job: gathered into reports, one at a time, each repeated until it is answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pecan_ray.job.delivery_log import MOST_UNUSED, Delivery
from pecan_ray.job.left_epochs import NOWHERE, LoopPlace
from pecan_ray.job.messages import (
    GivenBack,
    LeftOutElement,
    Receipts,
    ReceivedBatches,
    TrainerProgress,
    TrainerReport,
    TrainerUpdate,
)
from pecan_ray.job.report_pace import NO_NEED, Need, ReportPace
from pecan_ray.job.trainer_events import ReceivedBatch
from pecan_ray.plan.splits import LeaseKey
from pecan_ray.sampling.spans import Span, Spans, one_after_the_other

REPEAT_S = 5.0
"""A report that was not answered for so long is sent again: an answer takes milliseconds, and a busy controller
seconds."""


@dataclass
class _News:
    """What has happened since the last report."""

    batches_to_acknowledge: dict[tuple[str, int], list[ReceivedBatch]] = field(default_factory=dict)
    """By worker and epoch."""
    delivered: list[ReceivedBatch] = field(default_factory=list)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    """By worker, as they travelled."""
    given_back: GivenBack | None = None
    settled: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left_out: list[LeftOutElement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_urgent(self) -> bool:
        """Return whether the job, or other ranks, cannot go on before they know of it."""
        return bool(self.settled or self.given_back or self.broken)

    def __bool__(self) -> bool:
        came = self.batches_to_acknowledge or self.delivered or self.sent_bytes
        return bool(came or self.broken or self.notes or self.given_back or self.settled or self.left_out)


class Outgoing:
    """The news of one trainer."""

    def __init__(self, rank: int, world_size: int, incarnation: str, now: float) -> None:
        self._rank, self._incarnation = rank, incarnation
        self._pace = ReportPace(world_size)
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
        self._pending_report: TrainerReport | None = None
        self._first_sent = now
        """When it was sent first."""
        self._sent = now
        self._told = NO_NEED
        """What the last report said of this rank."""
        self._news = _News()

    def acknowledge(self, *batches: ReceivedBatch) -> None:
        """Note batches that were received, or blocks of rows that are joined to batches."""
        for batch in batches:
            self._news.batches_to_acknowledge.setdefault((batch.worker, batch.epoch), []).append(batch.without_rows)
        # Blocks become batches later: those are delivered then.
        self.deliver([batch for batch in batches if batch.row_range is None or not batch.row_range.are_joined])

    def deliver(self, batches: Sequence[ReceivedBatch]) -> None:
        """Note batches that the training loop is going to have."""
        self._news.delivered += [batch.without_rows for batch in batches]
        self._kept += len(batches)

    def note_sent(self, worker: str, nbytes: int) -> None:
        """Note that so many bytes have come from a worker."""
        if nbytes:
            self._news.sent_bytes[worker] += nbytes

    def return_batches(self, epoch: int, batches: Sequence[ReceivedBatch]) -> None:
        """Note batches that will not be used."""
        # Of one epoch alone: the job begins the next one when it has all that is given back of this one.
        before = self._news.given_back
        spans = dict(before.spans) if before is not None and before.epoch == epoch else {}
        count, rows = (before.batches, before.rows) if before is not None and before.epoch == epoch else (0, 0)
        ids = before.ids if before is not None and before.epoch == epoch else ()
        # Without what yields nothing, which is dealt with: bad elements that travelled with a batch would count twice.
        more = _data(batches)
        self._kept -= len(batches)
        merged = {
            key: [*spans.get(key, ()), *more.get(key, ())] for key in (*spans, *(k for k in more if k not in spans))
        }
        self._news.given_back = GivenBack(
            epoch,
            merged,
            count + len(batches),
            rows + sum(batch.rows for batch in batches),
            (*ids, *(batch.id for batch in batches)),
        )

    def settle(self, worker: str) -> None:
        """Note that nothing more will be accepted from a worker."""
        if worker not in self._news.settled:
            self._news.settled.append(worker)

    def broken(self, worker: str) -> None:
        """Note that a worker's stream broke."""
        self._news.broken.append(worker)

    def left_out(self, elements: Iterable[LeftOutElement], closed: int) -> None:
        """Note elements that were left out, but for those of epochs before one, of which nothing is taken any more."""
        # Without the good ones of their epoch they would seem to be many.
        self._news.left_out += [one for one in elements if one.origin is None or one.origin.epoch >= closed]

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
        self._news.notes.append(text)

    def note_acknowledged(self, number: int, now: float) -> None:
        """Note that the job has taken a report."""
        # An answer may come late, to a report that was answered before.
        if self._pending_report is not None and self._pending_report.number == number:
            self.acknowledged, self.acknowledged_batches, self._pending_report = (
                number,
                self._pending_report.received.kept,
                None,
            )

    def want(self) -> None:
        """Let the next report be sent at once."""
        self._report_requested = True

    def need(self, update: TrainerUpdate, used: int, *, held: bool, full: bool, waits_for_rows: bool) -> Need:
        """Return who waits for the next report; `used`: batches of the job's epoch that the loop has.

        For a rank that is alone nobody waits but the job, which ends an epoch with it.
        """
        closing = update.closing or bool(update.settle)
        if self._pace.alone:
            return Need(closing, waits_for_rows=waits_for_rows) if closing or waits_for_rows else NO_NEED
        headroom = update.allowed - used  # batches that may be used and were not
        others_may_wait = self._pace.others_may_wait(len(self._news.delivered), headroom)
        return Need(closing, others_may_wait, held, full, waits_for_rows)

    @property
    def awaiting_reply_since(self) -> float | None:
        """When the report was sent that the job has not answered; None if it has."""
        return None if self._pending_report is None else self._first_sent

    @property
    def has_pending(self) -> bool:
        """Return whether the job may not know of all batches that were received."""
        return bool(self._news.batches_to_acknowledge) or self._pending_report is not None

    @property
    def complete_report(self) -> int:
        """The report in which the job hears of all that has happened so far."""
        return self._number + bool(self._news)

    def due(self, need: Need) -> float:
        """Return the time at which a report must be sent at the latest."""
        if self._pending_report is not None:
            return self._sent + REPEAT_S
        # The job, or other ranks, may wait for some news whatever the pace is.
        if self._report_requested or self._news.is_urgent:
            return self._sent
        return self._sent + self._pace.delay(need, self._told, bool(self._news))

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
        news = self._news
        report = TrainerReport(
            rank=self._rank,
            incarnation=self._incarnation,
            number=self._number,
            received=Receipts(
                batches=tuple(
                    _build_ack(worker, epoch, batches)
                    for (worker, epoch), batches in news.batches_to_acknowledge.items()
                ),
                sent_bytes=tuple(news.sent_bytes.items()),
                kept=self._kept,
                delivery_records=tuple(map(_delivery, self._not_used(progress.queued))),
                rest=rest,
            ),
            settled=tuple(news.settled),
            given_back=news.given_back,
            broken=tuple(news.broken),
            left_out=tuple(news.left_out),
            notes=tuple(news.notes),
            progress=progress,
            met=met,
            held=need.held,
            full=need.held and need.full,
            quarantined=self._quarantined,
            place=place,
        )
        self._news = _News()
        self._sent = self._first_sent = now
        self._pending_report, self._report_requested = report, False
        self._told = Need(held=report.held, full=report.full)
        return report

    def _not_used(self, queued: int) -> Sequence[ReceivedBatch]:
        """Return the batches that some rank may not have used: all, unless this rank is alone."""
        delivered = self._news.delivered
        return delivered[max(0, len(delivered) - queued - MOST_UNUSED) :] if self._pace.alone else delivered


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
