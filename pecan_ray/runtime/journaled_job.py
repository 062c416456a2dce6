"""A job of which every event is written down before it is acted on, and that is made again from what was written."""

from __future__ import annotations

import logging
import os

from pecan_ray.errors import JournalError
from pecan_ray.job import events
from pecan_ray.job.instructions import Instruction
from pecan_ray.job.journal import JournalEntry, PlanAdded, entries, handled, line, opening, replay, snapshot
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.state import JobState
from pecan_ray.runtime.awake_clock import AwakeClock
from pecan_ray.runtime.journal_file import JournalFile, journal_path, remove_stale

logger = logging.getLogger("pecan_ray.controller")

OFF = "off"
COMPACT_BYTES = 16 << 20
"""A journal is compacted when so much was written since, and"""
GROWTH = 2.0
"""so many times what it was then, so that the work of it stays a small share."""


class JournaledJob:
    """The state of a job, its plans and its clock."""

    def __init__(
        self, spec: JobSpec, folder: str | os.PathLike[str] | None, *, again: bool, longest_gap_s: float
    ) -> None:
        """`folder`: of the journal, "off" for none; `again`: this process takes the place of one that was lost.

        Raises JournalError where the job cannot go on from its journal.
        """
        self._spec, self.restarted = spec, again
        self._file: JournalFile | None = None
        self.plans: list[bytes] = []
        """Versions of the plan beyond the first."""
        self._written = self._compacted = 0
        if folder != OFF:
            self._file = self._open(folder, again=again)
        if again:
            self._clock, self.state = self._replay(longest_gap_s)
            return
        self._clock = AwakeClock(longest_gap_s)
        self.state = JobState(spec, self._clock.now())
        self._write(opening(spec, self.state.began))

    def _open(self, folder: str | os.PathLike[str] | None, *, again: bool) -> JournalFile | None:
        path = journal_path(folder, self._spec.name)
        if again and not path.exists():
            raise JournalError(
                f"the controller of job {self._spec.name} was lost, and its journal {path} is not here: the job cannot "
                "go on. Config(journal=...) names a folder that all nodes have.",
                path=str(path),
            )
        if not again and folder is None:
            remove_stale(path.parent)
        if not again and path.exists():
            os.replace(path, path.with_name(f"{path.name}.before"))
        try:
            return JournalFile(path)
        except JournalError as error:
            if again:
                raise
            self._give_up(error)
            return None

    def _replay(self, longest_gap_s: float) -> tuple[AwakeClock, JobState]:
        if self._file is None:
            raise JournalError(f"the controller of job {self._spec.name} was lost, and it had no journal.")
        data = self._file.read()
        found = list(entries(data))
        end = found[-1][1] if found else 0
        if end < len(data):
            logger.warning("the journal %s ends in the middle of a line, which was not yet acted on", self._file.path)
            self._file.cut(end)
        job = replay((entry for entry, _ in found), self._spec)
        self.plans, self._written = job.plans, end
        logger.warning(
            "job %s goes on: its controller was lost, and %d events of its journal were replayed",
            *(self._spec.name, job.events),
        )
        return AwakeClock(longest_gap_s, begin=job.at), job.state

    def now(self) -> float:
        """Return the job's time, which stands still while its process does."""
        return self._clock.now()

    def handle(self, event: events.Event) -> list[Instruction]:
        """Let the job know what has happened; return what it wants done, once that is written down."""
        now = self._clock.now()
        done = self.state.handle(event, now)
        if self._file is not None:
            self._write(handled(event, now, done))
            if self._written > COMPACT_BYTES + GROWTH * self._compacted:
                self._compact(now)
        return done

    def add_plan(self, plan: bytes) -> None:
        """Keep another version of the plan."""
        self.plans.append(plan)
        self._write(PlanAdded(plan))

    def _write(self, entry: JournalEntry) -> None:
        if self._file is None:
            return
        written = line(entry)
        self._written += len(written)
        try:
            self._file.append(written)
        except OSError as error:
            self._give_up(error)

    def _compact(self, now: float) -> None:
        """Let a snapshot stand for all that was written."""
        assert self._file is not None
        first, all_of_it = opening(self._spec, self.state.began), snapshot(self.state, self.plans, now)
        data = line(first) + line(all_of_it)
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
        if self._file is not None:
            self._file.remove()
            self._file = None

    def end(self) -> None:
        """Remove the journal: the job is over."""
        if self._file is not None:
            self._file.remove()
            self._file = None
