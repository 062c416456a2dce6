"""What the parts of a job share: its data and workers, what is told of it, how it fails and how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.job.bad_elements import BadElements, QuarantineQueue
from pecan_ray.job.instructions import EndJob, Instructions, KillWorker, Log
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.placement_loop import PlacementLoop
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.stats import JobEvent
from pecan_ray.job.story import Story
from pecan_ray.job.trainers import Trainers
from pecan_ray.job.worker_table import WorkerTable


@dataclass
class ReceivedTotals:
    """What trainers have received and kept."""

    elements: int = 0
    bytes: int = 0


# Why parts do not know one another: docs/decisions/control-plane.md#134-a-core-and-parts
class JobCore:
    """A job without its parts: each part stands on it and on the parts before it, and on no other one."""

    def __init__(self, spec: JobSpec, now: float) -> None:
        self.spec = spec
        self.started = now
        self.ended = False
        self.error: BaseException | None = None
        self.ledger = Ledger(spec.shape, spec.start)
        self.worker_table = WorkerTable(
            spec.name, spec.cpus_per_worker, spec.remote_io, accelerator=spec.accelerator == "always"
        )
        self.trainers = Trainers(spec.name, spec.shape.world_size, spec.timeouts.trainer_s, now)
        self.bad = BadElements(spec.name, spec.errors.budget, spec.start)
        self.quarantine = QuarantineQueue()
        self.placement = PlacementLoop(spec, now)
        self.story = Story()  # for the report
        self.received = ReceivedTotals()

    @property
    def over(self) -> bool:
        """Return whether there is nothing left to do but to end."""
        return self.ledger.finished or self.error is not None

    def tell(self, kind: str, text: str, now: float) -> None:
        """Note an event for the report."""
        self.story.add(JobEvent(now - self.started, kind, text))

    def fail(self, error: BaseException, now: float, done: Instructions) -> None:
        """End the job with an error: the trainers raise it."""
        # The first error is the cause: what follows from it would only hide it.
        if self.error is None:
            self.error = error
            # Workers that wait for work are answered with "stop" from now on, so their questions
            # are looked at again.
            self.ledger.changes += 1
            self.tell("error", f"{type(error).__name__}: {error}", now)
            done.append(Log("error", f"{type(error).__name__}: {error}"))

    def end(self, done: Instructions, *, orphaned: bool) -> None:
        """End all workers, and the job; `orphaned`: its trainers are gone."""
        self.ended = True
        done += [KillWorker(name) for name in self.worker_table.workers]
        done.append(EndJob(orphaned))
