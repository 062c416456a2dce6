"""A job of which every event is written down before it is acted on, and that is made again from what was written."""

from __future__ import annotations

import logging
import time

from pecan_ray.errors import JournalError, PecanError
from pecan_ray.job import events
from pecan_ray.job.active_clock import ActiveClock
from pecan_ray.job.instructions import Instruction
from pecan_ray.job.journal import (
    JournalEntry,
    PlanAdded,
    entries,
    handled,
    journal_header,
    packed,
    pages,
    replay,
    snapshot,
)
from pecan_ray.job.lost_events import lost_before
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.state import JobState, kept_as
from pecan_ray.runtime.journal_copy import JournalCopy
from pecan_ray.runtime.journal_file import JournalFile, JournalPlace, remove_stale

logger = logging.getLogger("pecan_ray.controller")

COMPACT_BYTES = 16 << 20
"""Bytes that are written at least before a journal is compacted again."""
GROWTH = 2.0
"""A journal is compacted when it has so many times the bytes that it had then: so the work stays a small share."""


# Why events and no database: docs/decisions/restart-and-journal.md#37-a-journal-of-events
class JournaledJob:
    """The state of a job, its plans and its clock."""

    def __init__(self, spec: JobSpec, place: JournalPlace | None, job: bytes | None, longest_gap_s: float) -> None:
        """`place`: of the journal, if there is one.

        `job`: what another process would need that took the place of this one; None: this one does so, and goes on.
        Raises JournalError where that cannot be.
        """
        self._spec, self._place, self.restarted = spec, place, job is None
        self._file: JournalFile | None = None
        self._listings: JournalFile | None = None
        """Pages of listings: they are never compacted."""
        self._copy: JournalCopy | None = None
        self.plan_versions: list[bytes] = []
        """Versions of the plan beyond the first."""
        self._pages = self._written = 0
        self._compact_beyond: float = COMPACT_BYTES
        if job is None:
            assert place is not None
            self._open(place)
            try:
                self._clock, self.state = self._replay(longest_gap_s)
            except JournalError as error:
                message = f"{place.journal} cannot be gone on from: {error.message}"
                raise JournalError(message, **error.fields) from error
            if (kept := place.job()) is not None and place.bucket:
                # Decision 53: the job goes on from the journal of its node, and need not wait for the bucket.
                self._make_copy(place, kept).begin_behind()
            return
        self._clock = ActiveClock(longest_gap_s, time.monotonic)
        self.state = JobState(spec, self._clock.now())
        if place is not None:
            self._begin(place, job)

    def _begin(self, place: JournalPlace, job: bytes) -> None:
        aside = ""
        try:
            if place.in_session_folder:
                remove_stale(place.folder)
            aside = place.rename_previous_files(self._spec.name)
            kept = [self._saved_event(f"{place.folder / aside}.*")] if aside else []
            self._open(place).append(packed(journal_header(self._spec, self.state.started)))
            place.keep_job(job)  # the last: where it is, all that was handled is in the journal
            if place.bucket:
                kept += [self._saved_event(f"{other}/") for other in self._make_copy(place, job).begin()]
            for one in kept:  # as all that happens: a controller that goes on from the journal knows it then
                self.handle(one)
        except (PecanError, OSError) as error:
            self._go_without(place, aside, error)

    def _go_without(self, place: JournalPlace, aside: str, error: PecanError | OSError) -> None:
        """Keep no journal, because none can be begun; raises JournalError where the user has named its place.

        `aside`: under this name lies what a run before this one has left; "": nothing does.
        """
        # Decision 37: only a place that the user has named is refused.
        # Beside Ray's session the job goes on without a journal.
        named = place.bucket or ("" if place.in_session_folder else str(place.folder))
        if not named:
            self._stop_journal(error)
            return
        # A disk may be full for a moment: the next start finds what a run before this one has left where it was.
        if place.bucket or self._listings is not None:
            self.end()
        if aside:
            place.rename_back(aside)
        raise JournalError(f"Config(journal={named!r}): no journal can be kept: {error}") from error

    def _make_copy(self, place: JournalPlace, job: bytes) -> JournalCopy:
        assert self._file is not None and self._listings is not None
        journal, listings = ((file.descriptor(), file.nbytes) for file in (self._file, self._listings))
        self._copy = JournalCopy(place.bucket, place.actor, place.written(job), journal, listings)
        return self._copy

    def _saved_event(self, where: str) -> events.UnfinishedJobSaved:
        message = kept_as(where)
        logger.warning("job %s: %s; remove it, or rename it back to go on from it", self._spec.name, message)
        return events.UnfinishedJobSaved(where)

    def _open(self, place: JournalPlace) -> JournalFile:
        # Decision 37: pages of splits have a file of their own, which is never compacted.
        # With them in its snapshots, a job of a million splits stood still for two seconds.
        self._listings = JournalFile(place.listings)
        self._file = JournalFile(place.journal)
        return self._file

    def _replay(self, longest_gap_s: float) -> tuple[ActiveClock, JobState]:
        assert self._file is not None and self._listings is not None
        data, listed = self._file.read(), list(pages(self._listings.read()))
        found = list(entries(data))
        end = found[-1][1] if found else 0
        if end < len(data):
            logger.warning("the journal %s ends in the middle of an entry, not yet acted on", self._file.path)
        job = replay((entry for entry, _ in found), self._spec, [page for page, _ in listed])
        # The next entry must follow a whole one, or a later replay would end here.
        self._file.cut(end)
        # A page is written before the entry about it: the last one may have no entry, and is listed again.
        self._listings.cut(listed[job.pages - 1][1] if job.pages else 0)
        self.plan_versions, self._pages, self._written = job.plan_versions, job.pages, end
        logger.warning(
            "job %s goes on: its controller was lost, and %d events of its journal were replayed",
            *(self._spec.name, job.events),
        )
        # Decision 37: time goes on where the last event was, because nobody could be heard without a controller.
        return ActiveClock(longest_gap_s, time.monotonic, begin=job.at), job.state

    def lost_before(self, event: events.Event) -> JournalError | None:
        """Return why the job cannot go on, where others know more of it than its journal did; None: it can."""
        if self._place is None or not self.restarted or not (known := lost_before(self.state, event)):
            return None
        message = f"{self._place.journal} has lost its last entries: {known}."
        return cannot_go_on(self._spec.name, JournalError(message, path=str(self._place.journal)))

    def now(self) -> float:
        """Return the job's time, which stands still while its process does."""
        return self._clock.now()

    def handle(self, event: events.Event) -> list[Instruction]:
        """Let the job know what has happened; return what it wants done, once that is written down."""
        now = self._clock.now()
        # Before it is written: beside each event stands a checksum of its instructions.
        # Decision 37: a replay that would do something else is refused.
        done = self.state.handle(event, now)
        if self._file is not None:
            if isinstance(event, events.SplitPageReceived):
                self._pages += 1
                # Before the entry about it, which cannot be replayed without the page.
                self._append(self._listings, packed(event))
            self._write(handled(event, now, done))
            self._compact(now)
            self._tell_copy()
        return done

    def add_plan(self, plan: bytes) -> None:
        """Keep another version of the plan."""
        self.plan_versions.append(plan)
        self._write(PlanAdded(plan))
        self._tell_copy()

    def _tell_copy(self) -> None:
        if self._copy is not None and self._file is not None and self._listings is not None:
            self._copy.note_size(self._file.nbytes, self._listings.nbytes)

    def _write(self, entry: JournalEntry) -> None:
        if self._file is not None:
            written = packed(entry)
            self._written += len(written)
            self._append(self._file, written)

    def _append(self, file: JournalFile | None, written: bytes) -> None:
        try:
            if file is not None:
                file.append(written)
        except OSError as error:
            self._stop_journal(error)

    def _compact(self, now: float) -> None:
        """Let a snapshot stand for all that was written, if that is much."""
        if self._file is None or self._written <= self._compact_beyond:
            return
        all_of_it = snapshot(self.state, self.plan_versions, now, self._pages)
        data = packed(journal_header(self._spec, self.state.started)) + packed(all_of_it)
        try:
            self._file.replace(data)
        except OSError as error:
            # Old and new need room at once: as long as there is room for entries, the old one says as much.
            logger.warning(
                "job %s: its journal %s grows on, since there is no writing what is shorter: %s",
                *(self._spec.name, self._file.path, error),
            )
            self._compact_beyond = self._written + COMPACT_BYTES
            return
        if self._copy is not None:
            self._copy.replaced(self._file.descriptor(), len(data))
        self._written = len(data)
        self._compact_beyond = COMPACT_BYTES + GROWTH * len(data)

    def _stop_journal(self, error: Exception) -> None:
        """Go on without a journal: one that lacks an event is worse than none."""
        logger.warning(
            "job %s goes on without its journal, which cannot be written: %s. If its controller is lost now, it ends.",
            *(self._spec.name, error),
        )
        self.end()

    def end(self, *, deserted: bool = False) -> None:
        """Remove the journal: the job is over, or lost with its controller.

        `deserted`: it is not over, but all its trainers are gone; what the user has named can be gone on from.
        """
        if self._copy is not None:
            self._copy.end(keep=deserted)
            if deserted:
                self._copy.join()  # before what it is made from goes
        if deserted and self._place is not None and not self._place.in_session_folder:
            return
        # First of the files: where the job's file is, another process goes on from the journal.
        if self._place is not None:
            self._place.remove_job()
        for file in (self._file, self._listings):
            if file is not None:
                file.remove()
        self._file = self._listings = None

    def join(self) -> None:
        """Wait until a copy that has ended is removed or complete, for as long as that is worth."""
        if self._copy is not None:
            self._copy.join()


def cannot_go_on(job: str, why: JournalError) -> JournalError:
    """Return what the trainers of a job are told whose journal is no use."""
    return JournalError(
        f"the controller of job {job} was lost, and no other one can go on from its journal: {why.message} "
        "Start the run again, from its last state if there is one.",
        **why.fields,
    )
