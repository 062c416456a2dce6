"""Where the batches of one training loop come from: a job, a group that is read with others, or this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pecan_ray.autoorder.accepted import Ordered
from pecan_ray.errors import PlanError
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.run_time import RunTime
from pecan_ray.observe.report import Report
from pecan_ray.options import Workers
from pecan_ray.runtime.client import BatchClient
from pecan_ray.runtime.cluster import check_same_process
from pecan_ray.runtime.received import Received
from pecan_ray.runtime.share_session import ShareClient

Deliver: TypeAlias = "Callable[[Received, BatchClient | ShareClient], Any]"
"""Makes of a batch that has come what the loop gets."""


@dataclass(frozen=True)
class LoopSoFar:
    """What a training loop has had by now."""

    batches: int
    epoch: int
    """The epoch in which it stands."""
    epochs_begun: int
    """Before that one."""
    over: bool
    """It has had all batches."""
    spent: RunTime


class TrainingRun(ABC):
    """A run of a pipeline, as the training loop uses it: by one thread at a time."""

    ends_by_itself = False
    """Whether it comes to its end when this loop has left the last epoch: it is the only one."""

    @property
    def closed(self) -> bool:
        """Return whether it was ended."""
        return False

    def check_process(self) -> None:
        """Raise ClusterError in a process that was forked from the one that this run belongs to."""
        check_same_process()

    def find_order(self, order: Callable[[], Ordered]) -> Ordered:
        """Return the order of operators to run, which `order` looks for."""
        return Ordered()

    @abstractmethod
    def begin(self, ordered: Ordered, note_fallback: Callable[[str], None]) -> None:
        """Begin; `note_fallback`: called with the reason where this process goes back to the user's order."""

    @abstractmethod
    def take(self, within: int | None, deliver: Deliver) -> Any:
        """Return the next batch, delivered, or an `EndOfEpoch`; raises StopIteration when all have come.

        `within`: the batch must be of this epoch.
        """

    @abstractmethod
    def leave_epoch(self, epoch: int) -> None:
        """Make nothing more of an epoch."""

    @abstractmethod
    def may_leave(self) -> None:
        """Let other ranks go on without this one: its loop has all that it asked for."""

    def answers(self) -> bool:
        """Tell whether who knows where the run stands answers in the time that leaving it may take."""
        return False

    def resume_point(self, ahead: int) -> tuple[ResumePoint, int]:
        """Return where the run stands behind the batches that its loop has used, and how many these are.

        `ahead`: so many of those that it was given are not used yet.  Raises PlanError where there is none.
        """
        raise PlanError("state_dict: this run has no state.")

    @abstractmethod
    def scale(self, workers: Workers) -> None:
        """Change the numbers of workers."""

    @abstractmethod
    def set_remote_io(self, bytes_per_s: float | None) -> None:
        """Bound what its workers read of object stores."""

    @abstractmethod
    def report(self, loop: LoopSoFar) -> Report:
        """Return what happened so far."""

    @abstractmethod
    def explain(self) -> str:
        """Return in words which workers run, and in which order rows come."""

    @abstractmethod
    def close(self, *, well: bool) -> str:
        """End it; return why it went back to the user's order of operators, empty if it did not.

        `well`: all has come, and another run may begin in its processes.
        """
