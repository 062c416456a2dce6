"""What happened in a job, in words and numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from pecan_ray.job.facts import JobEvent, JobFacts
from pecan_ray.job.messages import Placement, TrainerProgress
from pecan_ray.job.observed import ObservedWindow
from pecan_ray.job.placing import PlacementStep
from pecan_ray.job.spending import spent, spent_by_epoch, spent_by_operator, wait_share
from pecan_ray.job.windows import StepTotals
from pecan_ray.observe.placement import explain_placement
from pecan_ray.placement import Cost, Prices
from pecan_ray.plan.windows import Deployment

MOST_EPOCHS = 10
"""Newest epochs of which the text tells what they cost."""


@dataclass(frozen=True)
class WorkerReport:
    """What one worker has produced; `worker["batches"]` is `worker.batches`, as in the report's JSON."""

    placement: Placement
    elements: int
    batches: int
    threads: int
    """At the end; 0: it has not said."""

    def __getitem__(self, name: str) -> str | int:
        found: dict[str, str | int] = asdict(self)
        return found[name]


@dataclass(frozen=True)
class SharedReading:
    """What one reader of a shared group got."""

    group: str
    read: int
    skipped: int
    """Batches that had left the window before it came to them."""
    readers: int
    """Of the group, when it was asked last."""


@dataclass(frozen=True)
class Report:
    """Facts about a job; `str()` gives them as text."""

    job: str
    seconds: float
    batches: int
    elements: int
    waited_s: float = 0.0
    """Seconds in which the trainer waited for a batch."""
    first_batch_s: float | None = None
    bytes: int = 0
    epochs: int = 0
    bad_elements: int = 0
    unkept_elements: int = 0
    """Bad elements that this trainer was told of and could not write to the quarantine file."""
    left_out_elements: int = 0
    """Elements of dropped remainders, and what could not be shared equally among trainers."""
    workers_lost: int = 0
    workers: dict[str, WorkerReport] = field(default_factory=dict)
    """By the workers' names."""
    events: tuple[JobEvent, ...] = ()
    deployments: tuple[tuple[float, Deployment], ...] = ()
    """What ran from when on, in seconds since the job began."""
    timeline: tuple[PlacementStep, ...] = ()
    """Every window that AutoPlacement saw, and what it decided."""
    windows: tuple[ObservedWindow, ...] = ()
    """What was measured while the numbers of workers were fixed."""
    cost: Cost | None = None
    """At the prices of `AutoWorkers`; None where none were given."""
    epoch_costs: tuple[Cost, ...] = ()
    """Of the epochs that are over; the first one includes the start."""
    operator_costs: dict[str, float] = field(default_factory=dict)
    """$ that input has cost (remote workers, and hosts whose trainers waited), dealt to operators by the time that
    they took in AutoOrder's sample."""
    placement: str = ""
    """Which deployments AutoPlacement has compared, and why the others lost, in words."""
    prices: Prices | None = None
    hosts: int = 1
    trainers: int = 1
    steps: StepTotals = field(default_factory=StepTotals)
    """Sums over this trainer's steps, without the first ones and without what they waited for until then."""
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
    def of_job(cls, facts: JobFacts, trainer: TrainerProgress, first_batch_s: float | None) -> Report:
        """Combine the controller's facts with what a trainer has seen."""
        cost = cost_so_far(facts, trainer)
        workers = {
            name: WorkerReport(worker.placement, worker.elements, worker.batches, worker.threads)
            for name, worker in facts.workers.items()
        }
        return cls(
            job=facts.job,
            seconds=facts.seconds or trainer.elapsed_s,
            batches=trainer.yielded,
            elements=trainer.rows,
            waited_s=trainer.waited_s,
            first_batch_s=first_batch_s,
            bytes=facts.bytes,
            epochs=facts.epochs,
            bad_elements=facts.bad_elements,
            left_out_elements=facts.left_out_elements,
            workers_lost=facts.workers_lost,
            workers=workers,
            events=facts.events,
            deployments=facts.deployments,
            timeline=facts.timeline,
            windows=facts.windows,
            cost=cost,
            epoch_costs=costs_of_epochs(facts, trainer),
            operator_costs={} if cost is None else spent_by_operator(cost, facts.op_seconds),
            placement="" if facts.comparison is None else explain_placement(facts),
            prices=facts.prices,
            hosts=facts.hosts,
            trainers=facts.trainers,
            steps=trainer.steps,
        )

    @classmethod
    def of_debug(cls, name: str, batches: int, elements: int, bad: int, seconds: float) -> Report:
        """Report a run without workers."""
        job = f"{name} (debug, in this process)"
        return cls(job=job, seconds=seconds, batches=batches, elements=elements, bad_elements=bad)

    def __str__(self) -> str:
        seconds = max(self.seconds, 1e-9)
        lines = [
            f"pecan job {self.job}: {self.batches} batches, {self.elements} elements in {self.seconds:.1f} s "
            f"({self.batches / seconds:.1f} batches/s, {self.elements / seconds:.0f} elements/s)",
            f"  the trainer waited {self.waited_s:.1f} s ({100 * self.waited_s / seconds:.0f}%) for input"
            + (f", {self.first_batch_s:.1f} s of it for the first batch" if self.first_batch_s is not None else ""),
        ]
        if self.shared is not None:
            lines.append(
                f"  it read {self.shared.read} batches and skipped {self.shared.skipped}; {self.shared.readers} "
                "readers share the workers, whose cost is the group's (pecan status)"
            )
        for name, worker in self.workers.items():
            lines.append(
                f"  {name} ({worker.placement}): {worker.elements} elements in {worker.batches} batches"
                + (f", {worker.threads} threads" if worker.threads else "")
            )
        if self.bad_elements:
            lines.append(f"  {self.bad_elements} bad elements were left out (on_error)")
        if self.unkept_elements:
            lines.append(f"  {self.unkept_elements} of them could not be written to the quarantine file")
        if self.left_out_elements:
            lines.append(f"  {self.left_out_elements} elements of remainders were left out")
        if self.cost is not None:
            lines.append(
                f"  ${self.cost.total:.4f} in all: ${self.cost.host:.4f} for hosts, ${self.cost.remote:.4f} for "
                f"remote workers; {100 * self.cost.wasted_share:.0f}% of it was paid while the trainer waited"
            )
        if self.epoch_costs:
            told = [f"${one.total:.4f}" for one in self.epoch_costs[-MOST_EPOCHS:]]
            which = "the last epochs" if len(told) < len(self.epoch_costs) else "epochs"
            lines.append(f"  {which} cost {', '.join(told)}")
        if self.operator_costs:
            dear = sorted(self.operator_costs.items(), key=lambda one: -one[1])
            lines.append(f"  what input cost, by operator: {', '.join(f'{name} ${paid:.4f}' for name, paid in dear)}")
        if self.timeline:
            lines.append(f"  {placement_so_far(self.timeline)}")
        lines += [f"  {line}" for line in self.placement.splitlines()]
        lines += [f"  {event.seconds:7.1f} s  {event.text}" for event in self.events]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the report as JSON: every field, nested ones as objects."""
        return json.dumps(asdict(self), indent=1)


def placement_so_far(timeline: Sequence[PlacementStep]) -> str:
    """Say in one line where AutoPlacement has arrived."""
    last = timeline[-1].decision
    thrown_away = sum(step.decision.phase == "discarded" for step in timeline)
    settled = "" if last.phase == "converged" else ", and it is still looking"
    return (
        f"AutoPlacement: {last.target} after {len(timeline)} windows, {thrown_away} of them thrown away{settled}; "
        f"the trainer waited {100 * recent_wait_share(timeline):.0f}% of the last ones"
    )


def recent_wait_share(timeline: Sequence[PlacementStep], windows: int = 5) -> float:
    """Return the share of the time in which the trainer waited during the newest windows that were not thrown away."""
    used = [step.window for step in timeline if step.decision.phase != "discarded"][-windows:]
    seconds = sum(window.batches * window.batch_time for window in used)
    return sum(window.batches * (window.wait_time or 0.0) for window in used) / seconds if seconds else 0.0


def cost_so_far(facts: JobFacts, trainer: TrainerProgress) -> Cost | None:
    """Add up what each deployment of a job has cost."""
    if facts.prices is None:
        return None
    waiting = wait_share([trainer])
    return spent(facts.deployments, facts.prices, facts.hosts, until=facts.seconds, waiting=waiting)


def costs_of_epochs(facts: JobFacts, trainer: TrainerProgress) -> tuple[Cost, ...]:
    """Return the cost of each epoch that is over."""
    if facts.prices is None:
        return ()
    return spent_by_epoch(facts.deployments, facts.prices, facts.hosts, facts.epoch_ends, wait_share([trainer]))
