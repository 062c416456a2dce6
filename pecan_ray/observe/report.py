"""What happened in a job, in words and numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from pecan_ray.job.bottleneck import Bottleneck, RunNumbers, bottleneck
from pecan_ray.job.job_cost import cost_between, cost_by_epoch, cost_by_operator, wait_share
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.next_step import next_step_of
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.run_time import RunTime
from pecan_ray.job.stats import JobLosses, JobStaff, JobStats, part_of
from pecan_ray.job.windows import StepTotals
from pecan_ray.observe.placement import explain_placement
from pecan_ray.observe.report_html import report_html
from pecan_ray.observe.report_losses import LossReport
from pecan_ray.observe.report_spending import SpendingReport
from pecan_ray.observe.report_staff import StaffReport, WorkerReport
from pecan_ray.observe.run_time_summary import time_lines
from pecan_ray.placement import Cost
from pecan_ray.plan.prices import GB
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Window
from pecan_ray.sampling.budget import BadCount


@dataclass(frozen=True)
class SharedReading:
    """What one reader of a shared group got."""

    group: str
    read: int
    skipped: int
    """Batches that had left the window before it came to them."""
    readers: int
    """Of the group, when it was asked last."""
    held_back_s: tuple[tuple[str, float], ...] = ()
    """Readers for which the others have waited longest (``max_lag``), and for how many seconds each, likewise."""


@dataclass(frozen=True)
class Report(LossReport, SpendingReport, StaffReport):
    """Facts about a job; `str()` gives them as text."""

    job: str
    seconds: float
    """Since the job's controller began, as in `events`, `deployments` and `timeline`."""
    batches: int
    elements: int
    waited_s: float = 0.0
    """Seconds in which the trainer waited for a batch."""
    first_batch_s: float | None = None
    bytes: int = 0
    epochs: int = 0
    """Epochs that the training loop has finished."""
    steps: StepTotals = field(default_factory=StepTotals)
    """Sums over this trainer's steps, without the first ones and without what they waited for until then."""
    time: RunTime = field(default_factory=RunTime)
    """Where this program's time has gone since `iter_batches()` was called."""
    bottleneck: Bottleneck | None = None
    """What holds the run up; None of a report without a `time`."""
    next_step: str = ""
    """What AutoPlacement does next, and why; or that it does nothing.  Empty where there are no workers."""
    shared: SharedReading | None = None
    """For a reader of a shared group: workers and events are the group's, and so is the bill, which no reader has."""

    @classmethod
    def of_reader(
        cls, trainer: TrainerProgress, first_batch_s: float | None, shared: SharedReading, run: Report | None
    ) -> Report:
        """Combine what a reader of a shared group has seen with what the group's run reports."""
        own = cls(f"a reader of the shared group {shared.group}", trainer.elapsed_s, trainer.yielded, trainer.rows)
        return replace(
            own if run is None else run,
            job=own.job,
            seconds=own.seconds,
            batches=own.batches,
            elements=own.elements,
            waited_s=trainer.waited_s,
            first_batch_s=first_batch_s,
            cost=None,
            epoch_costs=(),
            operator_costs={},
            steps=trainer.steps,
            shared=shared,
        )

    @classmethod
    def of_job(
        cls, facts: JobStats, trainer: TrainerProgress, first_batch_s: float | None, *, over: bool = False
    ) -> Report:
        """Combine the controller's facts with what a trainer has seen; `over`: the job has ended."""
        cost, step = cost_so_far(facts, trainer), next_step_of(facts)
        workers = {name: WorkerReport(**vars(worker)) for name, worker in facts.workers.items()}
        return cls(
            job=facts.job,
            seconds=facts.seconds or trainer.elapsed_s,
            batches=trainer.yielded,
            elements=trainer.rows,
            waited_s=trainer.waited_s,
            first_batch_s=first_batch_s,
            bytes=facts.bytes,
            epochs=facts.epochs,
            **part_of(facts, JobLosses),
            **part_of(facts, JobStaff),
            workers=workers,
            cost=cost,
            epoch_costs=costs_of_epochs(facts, trainer),
            operator_costs={} if cost is None else cost_by_operator(cost, facts.op_seconds),
            placement="" if facts.comparison is None else explain_placement(facts),
            prices=facts.prices,
            steps=trainer.steps,
            next_step=""
            if facts.lost
            else ("had the job gone on, " if over and step.changes_workers else "") + str(step),
        )

    @classmethod
    def of_debug(
        cls,
        name: str,
        batches: int,
        elements: int,
        bad: BadCount,
        left_out: int,
        seconds: float,
        epochs: int = 0,
        headspace: bool = False,
    ) -> Report:
        """Report a run without workers.

        `left_out`: elements of remainders that were dropped.  `headspace`: of one batch, given again and again.
        """
        job = f"{name} (headspace: one batch again and again)" if headspace else f"{name} (debug, in this process)"
        return cls(
            job,
            seconds,
            batches,
            elements,
            bad_elements=bad.elements,
            bad_estimated=bad.estimated,
            bad_open_ends=bad.open_ends,
            left_out_elements=left_out,
            epochs=epochs,
        )

    def with_time(
        self,
        time: RunTime,
        *,
        op_seconds: tuple[tuple[str, float], ...] = (),
        debug: bool = False,
        headspace: bool = False,
    ) -> Report:
        """Add where the time of the program has gone, and what holds it up.

        `op_seconds`: of each operator for an element, as a sample has told; `debug`: all ran in this process;
        `headspace`: and it was one batch.
        """
        workers = self.workers.values()
        local, remote = (sum(one.placement == side for one in workers) for side in ("local", "remote"))
        if self.deployments:
            local, remote = self.deployments[-1][1].local, self.deployments[-1][1].remote
        numbers = RunNumbers(
            time=time,
            batches=self.batches,
            stages=sum((one.stages for one in workers), StageSeconds()),
            op_seconds=op_seconds,
            local=local,
            remote=remote,
            placed=bool(self.timeline or self.placement),
            cpus=self.cpus,
            remote_bytes=sum(one.remote_bytes for one in workers),
            in_process=debug,
            headspace=headspace,
        )
        return replace(self, time=time, bottleneck=bottleneck(numbers))

    @property
    def subject(self) -> str:
        """What it is about, as its text begins: of which job, and behind how many batches."""
        return f"pecan job {self.job}: {self.batches} batches, {self.elements} elements"

    def __str__(self) -> str:
        lines = [
            *self._speed_lines(),
            *(line for _, line in self.worker_lines()),
            *self.sent_lines(),
            *self.size_lines(),
            *self.slow_lines(self.seconds),
        ]
        lines += [*self.loss_lines(self.seconds), *self.spending_lines()]
        if self.timeline:
            lines.append(f"  {placement_so_far(self.timeline)}")
        lines += [f"  {line}" for line in self.placement.splitlines()]
        return "\n".join([*lines, *self.event_lines()])

    def _speed_lines(self) -> list[str]:
        """Return the text's first lines: how fast it went, what holds it up, and what is done about it."""
        whole, behind = self.time.total_s or self.seconds, self.time.running_s
        elements, batches = self.elements / max(whole, 1e-9), self.batches / max(whole, 1e-9)
        pace = f", {(self.batches - 1) / behind:.1f} behind the first" if self.batches > 1 and behind else ""
        epochs = f" of {self.epochs} finished epoch{'s' * (self.epochs != 1)}" if self.epochs else ""
        lines = [
            f"{self.subject}{epochs} in {whole:.1f} s from "
            f"iter_batches() on ({elements:.0f} elements/s; {batches:.1f} batches/s{pace})"
        ]
        lines += [f"  {line}" for line in time_lines(self.time)]
        if self.bottleneck is not None:
            lines.append(f"  bottleneck: {self.bottleneck.text}")
            if self.bottleneck.longer is not None:
                lines.append(f"  in a longer run: {self.bottleneck.longer.text}")
        if self.next_step:
            lines.append(f"  next: {self.next_step}")
        if self.shared is not None:
            lines.append(
                f"  it read {self.shared.read} batches and skipped {self.shared.skipped}; {self.shared.readers} "
                "readers share the workers, whose cost is the group's (pecan status)"
            )
            lines += [
                f"  the readers of the group have waited {seconds:.0f} s for {name}"
                for name, seconds in self.shared.held_back_s
            ]
        return lines

    def event_lines(self) -> list[str]:
        """Return the text's lines about events, with their seconds since `iter_batches()` was called."""
        # Events count from the controller's beginning, and the text from the call of `iter_batches()`.
        before = max(0.0, self.time.total_s - self.seconds)
        return [f"  {before + event.seconds:7.1f} s  {event.text}" for event in self.events]

    def _repr_html_(self) -> str:
        first, *rest = str(self).splitlines()
        apart = {*self.event_lines(), *(line for _, line in self.worker_lines())}
        workers = [
            (name, one.placement, str(one.elements), str(one.batches), str(one.threads or "-"))
            for name, one in self.workers.items()
        ]
        return report_html(first, [line.strip() for line in rest if line not in apart], workers, self.events)

    def to_json(self) -> str:
        """Return the report as JSON: every field, nested ones as objects, and as `text` what `str()` gives."""
        return json.dumps({**asdict(self), "text": str(self)}, indent=1)


def placement_so_far(timeline: Sequence[PlacementStep]) -> str:
    """Say in one line where AutoPlacement has arrived."""
    last = timeline[-1].decision
    thrown_away = sum(step.decision.phase == "discarded" for step in timeline)
    settled = "" if last.phase == "converged" else ", and it is still looking"
    return (
        f"AutoPlacement: {last.target} after {len(timeline)} windows, {thrown_away} of them thrown away{settled}; "
        f"{_recent_wait_text(timeline)}"
    )


def _recent_wait_text(timeline: Sequence[PlacementStep]) -> str:
    """Say how much the trainer waits by now; the share of the whole job counts its first batches as well."""
    used = latest_used(timeline)
    if not used:
        return "none of them tells yet how long the trainer waits once input flows"
    return f"in the newest {len(used)} of the others the trainer waited {100 * recent_wait_share(timeline):.0f}%"


def latest_used(timeline: Sequence[PlacementStep]) -> list[Window]:
    """Return the newest windows that were not thrown away, five at most."""
    used = [step.window for step in timeline if step.decision.phase != "discarded"]
    return [window for window in used if not window.invalid_reason()][-5:]


def recent_wait_share(timeline: Sequence[PlacementStep]) -> float:
    """Return the share of the time in which the trainer waited during those; 0 where there is none."""
    used = latest_used(timeline)
    seconds = sum(window.batches * window.batch_time for window in used)
    return sum(window.batches * (window.wait_time or 0.0) for window in used) / seconds if seconds else 0.0


def cost_so_far(facts: JobStats, trainer: TrainerProgress) -> Cost | None:
    """Add up what each deployment of a job has cost."""
    if facts.prices is None:
        return None
    waiting = wait_share([trainer])
    ran, rates = facts.deployments, facts.remote_rates
    cost = cost_between(ran, facts.prices, facts.hosts, rates, until=facts.seconds, waiting=waiting)
    sent = sum(one.sent_bytes for one in facts.workers.values() if one.placement == "remote")
    return replace(cost, transfer=sent / GB * facts.prices.transfer_per_gb)


def costs_of_epochs(facts: JobStats, trainer: TrainerProgress) -> tuple[Cost, ...]:
    """Return the cost of each epoch that is over, of the newest ones."""
    if facts.prices is None:
        return ()
    waiting, before = wait_share([trainer]), facts.epochs_before
    ran, rates = facts.deployments, facts.remote_rates
    return cost_by_epoch(ran, facts.prices, facts.hosts, facts.epoch_ends, waiting, before, rates)
