"""A run of a reader of a shared group, whose workers make batches for all its readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pecan_ray.autoorder.accepted import Ordered
from pecan_ray.observe.report import Report, SharedReading
from pecan_ray.observe.run_clock import RunClock
from pecan_ray.options import Workers
from pecan_ray.run import Deliver, LoopSoFar, TrainingRun
from pecan_ray.runtime.cluster import check_same_process
from pecan_ray.runtime.share_session import ShareSession


class ReaderRun(TrainingRun):
    """Batches that a group's window holds for this reader: no job of its own, no state, no epochs to leave."""

    def __init__(self, session: ShareSession, clock: RunClock) -> None:
        self.session = session
        clock.enter("controller", at=session.attach_time_s)

    def begin(self, ordered: Ordered, note_fallback: Callable[[str], None]) -> None:
        """Do nothing: the group runs."""

    def leave_epoch(self, epoch: int) -> None:
        """Do nothing: epochs are the group's."""

    def may_leave(self) -> None:
        """Do nothing: nobody waits for a reader that has all."""

    def take(self, within: int | None, deliver: Deliver) -> Any:
        """Return the next batch of the window."""
        reader = self.session.client
        received = reader.next()
        if received is None:
            raise StopIteration
        return deliver(received, reader)

    def scale(self, workers: Workers) -> None:
        """Change the numbers of workers, for all readers."""
        check_same_process()
        self.session.scale(workers)

    def set_remote_io(self, bytes_per_s: float | None) -> None:
        """Raise PlanError: the bound is the group's."""
        self.session.set_remote_io(bytes_per_s)

    def report(self, loop: LoopSoFar) -> Report:
        """Return what this reader has seen, with what the group's run reports."""
        reader, run = self.session.client, self.session.run_report()
        session = self.session
        shared = SharedReading(session.group, reader.read, reader.skipped, session.readers, session.held_back_s)
        return Report.of_reader(reader.progress(), reader.first_batch_s, shared, run).with_time(loop.spent)

    def explain(self) -> str:
        """Return what the group's run says of its workers."""
        check_same_process()
        run = self.session.run_report()
        return "" if run is None else str(run.placement)

    def close(self, *, well: bool) -> str:
        """Leave the group."""
        self.session.close()
        return ""
