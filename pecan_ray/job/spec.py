"""What a job is, as far as its decisions depend on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.options import AutoWorkers, OnError, Workers
from pecan_ray.plan.empty_pass import EmptyPasses
from pecan_ray.plan.op_sequences import OpOrders

AcceleratorChoice: TypeAlias = Literal["off", "auto", "always"]


@dataclass(frozen=True)
class Timeouts:
    """How long a job bears with silence."""

    trainer_s: float = 60.0
    """A trainer that is not heard for so long is lost, and the job ends, unless its process is known to exist."""
    worker_s: float = 60.0
    """A worker that says nothing for so long is taken for lost."""
    hung_s: float = 1800.0
    """A worker that is busy with the same thing for so long is taken for lost."""
    warning_s: float = 5.0
    """What is waited for longer than this is said."""

    @property
    def lost_s(self) -> float:
        """A worker that says nothing for so long is taken for lost: it does not live, or it hangs."""
        return min(self.worker_s, self.hung_s)


@dataclass(frozen=True)
class ErrorPolicy:
    """What becomes of bad elements."""

    on_error: OnError = "raise"
    """What becomes of an element that kills workers."""
    budget: float = 0.01
    """Share of elements that may be bad."""


@dataclass(frozen=True)
class JobDeadline:
    """When a job shall have ended."""

    seconds: float
    """Since it began."""
    epoch_batches: int | None = None
    """Batches of an epoch, of each trainer, where they are known beforehand."""


@dataclass(frozen=True)
class JobSpec:
    """One run of a pipeline."""

    name: str
    shape: LedgerShape = field(default_factory=LedgerShape)
    workers: Workers | AutoWorkers = field(default_factory=Workers)
    cpus_per_worker: float = 1.0
    errors: ErrorPolicy = ErrorPolicy()
    timeouts: Timeouts = field(default_factory=Timeouts)
    deadline: JobDeadline | None = None
    empty_passes: EmptyPasses | None = None
    """What is said where passes of an endless `repeat`, which the job deals out, yield nothing; None: it has none."""
    start: ResumePoint | None = None
    """Where a run before this one was."""
    allow_changed_source: bool = False
    """Go on there also with other data than it had."""
    op_order: OpOrders = ()
    """The order of operators as the user wrote it."""
    remote_io: float | None = None
    """Bytes a second that all workers together may read of object stores, at first; None: as many as they can."""
    prefetch_bytes: int = 256 << 20
    """What the trainer has memory for, where rows wait for those before them."""
    accelerator: AcceleratorChoice = "off"
    """Whether workers may leave images to the trainer's accelerator."""
    ordered: bool = True
    """The order of operators is known; if not, workers start meanwhile, and begin when it is."""

    @property
    def starts_behind(self) -> bool:
        """Return whether it begins a plan that cannot be cut behind what a run before it has had of it."""
        start = self.start
        # Decision 6: elements that were left out are in no batch. So with bad ones batches do not
        # tell how many elements were read.
        return self.shape.counts and start is not None and start.used_batches > 0 and not start.bad

    def repeated_work(self) -> str:
        """Say what a job makes again that goes on in the middle of a plan that cannot be cut; empty for another job."""
        start = self.start
        if start is None or not start.used_batches or not self.shape.runs_whole or start.epoch == self.shape.end_epoch:
            return ""
        used = (
            f"one worker runs this plan as a whole: the {start.used_batches} batches of epoch {start.epoch} that were "
            "used before"
        )
        if self.starts_behind:
            return f"{used} are not made again: it begins behind the elements that went into them"
        return f"{used} are made again, and left out"
