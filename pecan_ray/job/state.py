"""A job as a pure state machine: events in, instructions out.

No Ray, thread, clock or file: time comes with the events.  The actor around it (`pecan_ray.runtime.controller`) turns
what happens into events and performs the instructions; the simulation drives the same object.  Replayed events give
the same job.

Decisions: docs/decisions/control-plane.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from pecan_ray.errors import SourceError, StaleJobError
from pecan_ray.job import events
from pecan_ray.job.core import JobCore
from pecan_ray.job.delivery_log import DeliveryLog
from pecan_ray.job.error_budget import leave_epoch
from pecan_ray.job.instructions import (
    EndJob,
    FindRoom,
    Instruction,
    Instructions,
    Log,
    RejectTrainer,
    Response,
    TellTrainers,
)
from pecan_ray.job.job_cost import cost_between, wait_share
from pecan_ray.job.job_requests import JobRequests, stale_worker_reply
from pecan_ray.job.job_summary import completed, job_stats
from pecan_ray.job.listing import SourceListing
from pecan_ray.job.messages import TrainerReport, TrainerUpdate
from pecan_ray.job.recovery import WorkerRecovery
from pecan_ray.job.remote_io import RemoteIoShares
from pecan_ray.job.resume import ResumePoints
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.rounds import HeldUp
from pecan_ray.job.scaling import Scaling
from pecan_ray.job.sharing import PoolBid
from pecan_ray.job.slow_head import SlowHead
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.stats import JobStats
from pecan_ray.job.story import EpochEnds
from pecan_ray.job.trainer_order_state import TrainerOrderState
from pecan_ray.job.trainer_presence import TrainerPresence
from pecan_ray.job.trainers import to_text
from pecan_ray.job.waiting import WaitLog
from pecan_ray.job.worker_starts import WorkerStarts
from pecan_ray.placement import Cost


class JobState(JobCore):
    """Everything that a job's controller decides."""

    def __init__(self, spec: JobSpec, now: float) -> None:
        super().__init__(spec, now)
        self.log = DeliveryLog(spec.shape.world_size, rounds=spec.shape.coordinated)
        self._points = ResumePoints()
        # Decision 134: in this order, because a part is given only parts that were made before it.
        self.remote_io = RemoteIoShares(self)
        self.held_up = HeldUp(spec.shape.world_size)
        self.epoch_ends = EpochEnds()
        self._trainer_updates, self._head = TrainerOrderState(), SlowHead()
        self._waiting = WaitLog(spec.timeouts.warning_s)
        self.listing = SourceListing(self, self._waiting)
        self.job_requests = JobRequests(self)
        self.worker_starts = WorkerStarts(self, self._trainer_updates, self.job_requests)
        self.scaling = Scaling(self, self.worker_starts)
        self.worker_recovery = WorkerRecovery(self, self.job_requests, self.remote_io)
        self.trainer_presence = TrainerPresence(self, self.worker_starts)
        self._handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.TrainerReported: self._on_reported,
            events.JobFailed: self._on_failed,
            events.WorkerFailed: self._on_failed,
            events.TimePassed: self._on_time,
            events.ControllerRestarted: self._on_restarted,
            events.UnfinishedJobSaved: self._on_unfinished_job_saved,
            events.OrderKnown: self._on_order_known,
            **self.trainer_presence.handlers,
            **self.listing.handlers,
            **self.job_requests.handlers,
            **self.worker_starts.handlers,
            **self.scaling.handlers,
            **self.worker_recovery.handlers,
            **self.remote_io.handlers,
        }

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """Take an event and return what must be done, in this order."""
        done: Instructions = []
        if self.ended:
            return _after_the_end(self.spec.name, event)
        self._handlers[type(event)](event, now, done)
        # Parts know only those that were made before them, so that this one cannot let workers go itself.
        for worker in self.job_requests.split_open_failures.take_workers_to_drain():
            self.worker_starts.drain(worker, now, done)
        self.epoch_ends.note_finished(self.spec.shape.epochs_before(self.ledger.epoch), now - self.started)
        self.job_requests.send_responses(now, done)
        self.worker_starts.finish_draining(now, done)
        self.remote_io.distribute_shares(done)
        # Last, because answers and departures change what trainers are told.
        self._refresh_updates(done)
        return done

    def trainer_update(self, rank: int) -> TrainerUpdate:
        """Return what holds for a rank now."""
        trainer = self.trainers.ranks.get(rank)
        return self._trainer_updates.trainer_update(rank, trainer.met if trainer is not None else 0)

    @property
    def ordered(self) -> bool:
        """Return whether the order of operators is known."""
        return self.job_requests.ordered

    # --- trainers ------------------------------------------------------------------------------------------

    def _on_reported(self, event: events.TrainerReported, now: float, done: Instructions) -> None:
        report = event.report
        trainer = self.trainer_presence.handle_update(report.rank, report.incarnation, report.met, now, done)
        # Decision 22: a report is repeated until it is answered, so it may come twice.
        if trainer is None or report.number <= trainer.reported:
            return
        # Before `take`, which replaces what was told last.
        passed = report.progress.passed > trainer.progress.passed
        trainer.take(report)
        # Before what is given back: a batch may come and go back within one report.
        self._acknowledge(report)
        self._log_received(report, now)
        back = report.given_back
        if back is not None:
            self.received.elements -= back.rows
            # Of an epoch that all have left nobody makes them again.
            self.bad.abandoned += back.rows if self.ledger.level() is not None else 0
            self.ledger.given_back(report.rank, back.epoch, back.spans, back.batches, back.rows)
        # Several ranks are still in the epoch that they have left; a rank that is alone is in the
        # next one already.
        if leave_epoch(self, report.rank, report.place):
            done += self.worker_table.leave_epochs(before=self.ledger.epoch + (self.ledger.level() is not None))
        if passed:
            self.ledger.left.note(report.place.left - 1)
        for worker in report.broken:
            self.worker_starts.lose(worker, "stream", f"its stream to rank {report.rank} broke", now, done)
        # After the batches of this report, because settling says that no more of them are to come.
        for worker in report.settled:
            self.ledger.settled(report.rank, worker)
        self.job_requests.leave_out(report.left_out, now, done)
        self.quarantine.note_taken(report.quarantined)
        for note in report.notes:
            self.tell("transport", note, now)
        self._help(now)
        if not self.over:
            self.placement.reported(report.rank, report.progress.steps, now)
            self.scaling.place(now, done)

    def _acknowledge(self, report: TrainerReport) -> None:
        for ack in report.received.batches:
            self.received.elements += ack.rows
            self.received.bytes += ack.bytes
            self.ledger.ack(report.rank, ack.worker, ack.epoch, ack.spans, ack.batches, ack.rows)
            # The window that was begun before a worker's first batch belongs to no deployment.
            if self.worker_table.deliver(ack):
                self.placement.touched()
        for worker, nbytes in report.received.sent_bytes:
            self.worker_table.note_sent(worker, nbytes)
        # Decision 135: the window of rows is what fits into `prefetch_bytes`, by the mean size of a row so far.
        budget = self.spec.prefetch_bytes * self.spec.shape.world_size
        self.ledger.runs.max_within_budget = budget * self.received.elements // max(1, self.received.bytes)

    def _log_received(self, report: TrainerReport, now: float) -> None:
        """Log which batches a rank has received and used, of which states of the job are made."""
        # Of several ranks the one that has used least counts, which is looked for once a tick (`_on_time`).
        if self.spec.shape.world_size == 1:
            self.log.used([report.progress.used])
        returned = report.given_back.ids if report.given_back is not None else ()
        received = report.received
        self.log.received(report.rank, received.kept, received.delivery_records, returned, received.rest)
        if self.spec.shape.coordinated:
            self.log.note_schedule(self.ledger.rounds.schedule_rounds(min(self.trainers.used)))
            self.held_up.look(now, self.ledger.rounds, self.trainers.used_by_held)

    # --- failures and time --------------------------------------------------------------------

    def _on_restarted(self, event: events.ControllerRestarted, now: float, done: Instructions) -> None:
        """Go on where the process before this one was: its workers work on, and trainers have what they have."""
        self.tell("restart", "the controller's process was lost, and has been started again", now)
        if self.trainer_presence.started:
            done += [self.listing.go_on(), FindRoom(self.trainers.nodes)]
        self.worker_recovery.begin(done)
        # Decision 37: the process may have been lost between an event's entry and its deed, so trainers are told again.
        done.append(TellTrainers(tuple(self.trainers.present)))

    def _on_unfinished_job_saved(self, event: events.UnfinishedJobSaved, now: float, done: Instructions) -> None:
        self.tell("journal", kept_as(event.where), now)

    def _on_order_known(self, event: events.OrderKnown, now: float, done: Instructions) -> None:
        if not self.ordered:
            self.job_requests.note_order(event)
            self.scaling.begin_with_sample(event.row_s, now, done)

    def _on_failed(self, event: events.JobFailed | events.WorkerFailed, now: float, done: Instructions) -> None:
        # A worker that is fenced off may have failed since its controller was gone.
        if isinstance(event, events.JobFailed):
            self.fail(event.error, now, done)
        # Decision 150: an error whose row has no turn yet is not kept. The worker tells it again until the job takes
        # it, so a lost controller loses nothing.
        elif event.worker in self.worker_table.workers and self._in_turn(event.row):
            self.fail(_with_node(event, self.worker_table.workers[event.worker].node), now, done)

    def _in_turn(self, row: int | None) -> bool:
        """Tell whether all rows before one, or before a place, have come, where they come in order."""
        runs = self.ledger.runs
        come = runs.place_in_turn if runs.joins else self.ledger.rows_in_turn
        return row is None or not runs.kept or come >= row

    def _help(self, now: float) -> None:
        """Let a second worker make the next rows, if they are long in coming."""
        # Ranks go on together, so all of them wait if one has no batch.
        queued = min((one.progress.queued for one in self.trainers.ranks.values()), default=0)
        if slow := self._head.look(self.ledger, queued, now):
            runs = self.ledger.runs
            since = f" from {runs.in_turn.element_at(runs.place_in_turn)} on" if runs.joins else ""
            self.tell("order", f"all wait for rows{since} that {slow} makes: another worker makes them too", now)

    def _on_time(self, event: events.TimePassed, now: float, done: Instructions) -> None:
        self._help(now)
        if self.trainers.complete:
            self.log.used(self.trainers.used)
        # Later epochs stay counted, because a state may still be taken of them.
        self.ledger.produced.forget(self.log.first_known_epoch(self.ledger.epoch))
        self.trainer_presence.look(now, done)
        if self.ended:
            return
        if not self.over:
            self.worker_starts.look(now, done)
        since = self.worker_table.waited_since() | self.trainer_presence.waited_since(now)
        for text in self._waiting.look(now, {} if self.over else self._waiting_for(now), since):
            self.tell("waiting", text, now)
            done.append(Log("warning", text))

    def _waiting_for(self, now: float) -> dict[Hashable, str]:
        """Return what the job waits for, a text for each thing."""
        waits = self.trainer_presence.waiting_for(now)
        # Before all ranks have come the job has not begun, and waits for nothing else.
        if missing := self.trainers.missing():
            return {"ranks": missing}
        if not self.job_requests.ordered:
            waits["order"] = "the order of operators is being found by a sample, for {seconds} so far"
        elif not self.ledger.queues.is_complete and self.job_requests.idle:
            waits["listing"] = f"the sources are being listed: {self.ledger.queues.known} splits are known so far"
        waits.update(
            self.worker_table.waiting_for(now, self.spec.timeouts.lost_s)
            | self.job_requests.split_open_failures.waiting()
        )
        if by := to_text(list(self.held_up.by)):
            waits["round"] = f"{by} must yet receive a batch of the round that others wait for, for {{seconds}} so far"
        if self.ledger.level() is not None:
            by = to_text(self.ledger.left.consumers(self.ledger.epoch))
            waits["left"] = f"{by} must yet say what came of epoch {self.ledger.epoch}, which all have left"
        for worker, ranks in self.ledger.unresolved().items():
            waits["settle", worker] = f"{to_text(sorted(ranks))} must yet say what came from {worker}, which is gone"
        return waits

    # --- what is told --------------------------------------------------------------------------------------

    def _refresh_updates(self, done: Instructions) -> None:
        present = self.trainers.present
        wanted, waits = self.worker_table.target, self._waiting.active_messages
        unkept, placing = (self.quarantine.taken, self.quarantine.waiting), self.placement.now
        changed, all_of_them = self._trainer_updates.refresh_state(
            self.ledger, present, self.error, wanted, waits, unkept, placing
        )
        if not changed:
            return
        # What only lets trainers use more is told to those that wait for it; others hear of it when they report.
        soon, later = (tuple(present), ()) if all_of_them else self.trainers.held()
        done += [one for one in (TellTrainers(soon), TellTrainers(later, only_limit_raised=True)) if one.ranks]

    def resume_point(self, batches: int, *, early: bool = False) -> ResumePoint | None:
        """Return where the job stands after so many batches of each rank; None before they were reported.

        `early`: the loop has not used all of them.
        """
        return self._points.at(self.ledger, self.log, batches, self._completed, early=early)

    def pool_requests(self) -> tuple[PoolBid, ...]:
        """Return what the job bids for workers on nodes that others may want as well."""
        return () if self.ended else self.scaling.pool_requests()

    def cost(self, now: float, since: float = 0.0) -> Cost | None:
        """Return what the job has cost so far, from so many seconds after it began; None without prices."""
        if (prices := self.placement.prices) is None:
            return None
        waiting, hosts = (
            wait_share(one.progress for one in self.trainers.ranks.values()),
            max(1, len(self.worker_table.hosts)),
        )
        ran, until = self.placement, now - self.started
        return cost_between(ran.deployments, prices, hosts, ran.remote_rates, since=since, until=until, waiting=waiting)

    def stats(self, now: float) -> JobStats:
        """Return what can be told about the job so far."""
        return job_stats(
            self,
            now,
            epoch_ends=self.epoch_ends,
            held_up=self.held_up,
            reverted=self.job_requests.fallback_reason,
        )

    def _completed(self, point: ResumePoint) -> ResumePoint:
        return completed(self, self.job_requests, self.listing, point)


def kept_as(where: str) -> str:
    """Say what becomes of the journal of a job of the same name that had not ended."""
    return f"what a run before this one has left, which had not ended, is kept as {where}"


def _with_node(event: events.WorkerFailed, node: str) -> BaseException:
    """Return what a worker has failed with, with its node where data could not be read: another one may see it."""
    error = event.error
    if not isinstance(error, SourceError):
        return error
    return type(error)(f"{error.message} ({event.worker} on node {node})", **error.fields)


def _after_the_end(job: str, event: events.Event) -> list[Instruction]:
    if isinstance(event, events.ControllerRestarted):
        # The process before this one may have been lost before it had ended everything.
        return [EndJob(orphaned=True)]
    if isinstance(event, events.WorkerRequestReceived):
        # Else it would wait for ever, and its process could not be given another job.
        return [Response(event.worker, event.channel, event.number, stale_worker_reply(event.request))]
    if isinstance(event, (events.TrainerRegistered, events.OtherRunRegistered)):
        # The actor is there a little longer than its job.
        ended = StaleJobError(f"job {job} has just ended: a new one can begin when its actor is gone.")
        return [RejectTrainer(event.incarnation, ended)]
    return []
