"""A job of which every event is written down before it is acted on, and that is made again from what was written."""

from __future__ import annotations

import logging
import time

from pecan_ray.errors import JournalError
from pecan_ray.job import events
from pecan_ray.job.awake_clock import AwakeClock
from pecan_ray.job.instructions import Instruction
from pecan_ray.job.journal import (
    JournalEntry,
    PlanAdded,
    entries,
    handled,
    opening,
    packed,
    pages,
    replay,
    snapshot,
)
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.state import JobState
from pecan_ray.runtime.journal_file import JournalFile, JournalPlace, remove_stale

logger = logging.getLogger("pecan_ray.controller")

COMPACT_BYTES = 16 << 20
"""A journal is compacted when so much was written since, and"""
GROWTH = 2.0
"""so many times what it was then, so that the work of it stays a small share."""


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
        self.plans: list[bytes] = []
        """Versions of the plan beyond the first."""
        self._pages = self._written = self._compacted = 0
        if job is None:
            assert place is not None
            self._open(place)
            self._clock, self.state = self._replay(longest_gap_s)
            return
        self._clock = AwakeClock(longest_gap_s, time.monotonic)
        self.state = JobState(spec, self._clock.now())
        if place is not None:
            self._begin(place, job)

    def _begin(self, place: JournalPlace, job: bytes) -> None:
        try:
            if place.beside_ray:
                remove_stale(place.folder)
            if aside := place.put_aside(self._spec.name):
                self._say_put_aside(place, aside)
            self._open(place).append(packed(opening(self._spec, self.state.began)))
            place.keep_job(job)  # the last: where it is, all that was handled is in the journal
        except (JournalError, OSError) as error:
            if not place.beside_ray:
                raise JournalError(f"Config(journal={str(place.folder)!r}): no journal can be kept: {error}") from error
            self._give_up(error)

    def _say_put_aside(self, place: JournalPlace, aside: str) -> None:
        text = f"what a run before this one has left, which had not ended, is kept as {place.folder / aside}.*"
        logger.warning("job %s: %s; remove it, or rename it back to go on from it", self._spec.name, text)
        self.state.tell("journal", text, self.state.began)

    def _open(self, place: JournalPlace) -> JournalFile:
        self._listings = JournalFile(place.listings)
        self._file = JournalFile(place.journal)
        return self._file

    def _replay(self, longest_gap_s: float) -> tuple[AwakeClock, JobState]:
        assert self._file is not None and self._listings is not None
        data, listed = self._file.read(), list(pages(self._listings.read()))
        found = list(entries(data))
        end = found[-1][1] if found else 0
        if end < len(data):
            logger.warning("the journal %s ends in the middle of an entry, not yet acted on", self._file.path)
        job = replay((entry for entry, _ in found), self._spec, [page for page, _ in listed])
        self._file.cut(end)
        self._listings.cut(listed[job.pages - 1][1] if job.pages else 0)
        self.plans, self._pages, self._written = job.plans, job.pages, end
        logger.warning(
            "job %s goes on: its controller was lost, and %d events of its journal were replayed",
            *(self._spec.name, job.events),
        )
        return AwakeClock(longest_gap_s, time.monotonic, begin=job.at), job.state

    def now(self) -> float:
        """Return the job's time, which stands still while its process does."""
        return self._clock.now()

    def handle(self, event: events.Event) -> list[Instruction]:
        """Let the job know what has happened; return what it wants done, once that is written down."""
        now = self._clock.now()
        done = self.state.handle(event, now)
        if self._file is not None:
            if isinstance(event, events.SplitsListed):
                self._pages += 1
                self._append(self._listings, packed(event))
            self._write(handled(event, now, done))
            self._compact(now)
        return done

    def add_plan(self, plan: bytes) -> None:
        """Keep another version of the plan."""
        self.plans.append(plan)
        self._write(PlanAdded(plan))

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
            self._give_up(error)

    def _compact(self, now: float) -> None:
        """Let a snapshot stand for all that was written, if that is much."""
        if self._file is None or self._written <= COMPACT_BYTES + GROWTH * self._compacted:
            return
        all_of_it = snapshot(self.state, self.plans, now, self._pages)
        data = packed(opening(self._spec, self.state.began)) + packed(all_of_it)
        self._written = self._compacted = len(data)
        try:
            self._file.replace(data)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Go on without a journal: one that lacks an event is worse than none."""
        logger.warning(
            "job %s goes on without its journal, which cannot be written: %s. If its controller is lost now, it ends.",
            *(self._spec.name, error),
        )
        self.end()

    def end(self, *, deserted: bool = False) -> None:
        """Remove the journal: the job is over, or lost with its controller.

        `deserted`: it is not over, but all its trainers are gone; a journal in the user's folder can be gone on from.
        """
        if deserted and self._place is not None and not self._place.beside_ray:
            return
        if self._place is not None:
            self._place.remove_job()
        for file in (self._file, self._listings):
            if file is not None:
                file.remove()
        self._file = self._listings = None
