"""What happened in a job, in words and numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pecan_ray.job.bottleneck import Bottleneck, RunNumbers, bottleneck
from pecan_ray.job.job_cost import cost_between, cost_by_epoch, cost_by_operator, wait_share
from pecan_ray.job.messages import Placement, TrainerProgress
from pecan_ray.job.next_step import next_step_of
from pecan_ray.job.observed import ObservedWindow
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.run_time import RunTime
from pecan_ray.job.stats import JobEvent, JobStats
from pecan_ray.job.windows import StepTotals
from pecan_ray.observe.placement import explain_placement
from pecan_ray.observe.report_html import report_html
from pecan_ray.observe.run_time_summary import time_lines
from pecan_ray.placement import Cost, Prices
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Deployment, Window
from pecan_ray.sampling.budget import BadCount

HELD_UP_SHARE = 0.01
"""The text names ranks that others waited for during this share of the time."""
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
    remote_bytes: int = 0
    """Read of object stores, and"""
    node_bytes: int = 0
    """of its node's disk instead."""
    stages: StageSeconds = field(default_factory=StageSeconds)
    """What its threads have done with their time."""
    hedged: int = 0
    """Reads of object stores that it has asked for twice, and"""
    hedges_won: int = 0
    """those that the second request has answered first."""

    def __getitem__(self, name: str) -> Any:
        found: dict[str, Any] = asdict(self)
        return found[name]

    def as_text(self) -> str:
        """Say what it has produced, and read for that."""
        parts = [
            (True, f"{self.elements} elements in {self.batches} batches"),
            (self.threads, f"{self.threads} threads"),
            (self.remote_bytes, f"{self.remote_bytes / 1e6:,.1f} MB from object stores"),
            (self.node_bytes, f"{self.node_bytes / 1e6:,.1f} MB of theirs from its node"),
            (self.hedged, f"{self.hedged} late reads asked for twice ({self.hedges_won} won)"),
        ]
        return ", ".join(text for known, text in parts if known)


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
    """Since the job's controller began, as in `events`, `deployments` and `timeline`."""
    batches: int
    elements: int
    waited_s: float = 0.0
    """Seconds in which the trainer waited for a batch."""
    first_batch_s: float | None = None
    bytes: int = 0
    epochs: int = 0
    """That the training loop has finished."""
    bad_elements: int = 0
    bad_estimated: int = 0
    """So many of the bad elements lay behind breaks in splits whose length is estimated."""
    bad_open_ends: int = 0
    """Breaks behind which nothing tells how many elements lay: each counts as one, so that there are at least so many
    bad elements."""
    unkept_elements: int = 0
    """Bad elements that this trainer was told of and could not write to the quarantine file."""
    left_epochs: int = 0
    """That the training loop has left before their ends: they are among `epochs`."""
    left_out_elements: int = 0
    """Elements of dropped remainders, and what could not be shared equally among trainers."""
    dropped_elements: int = 0
    """With ``visitation="at_most_once"``: elements that went with lost workers, and with those removed at once;"""
    dropped_open_ends: int = 0
    """beside them the rest of so many splits whose length nobody knows."""
    workers_lost: int = 0
    workers: dict[str, WorkerReport] = field(default_factory=dict)
    """By the workers' names."""
    events: tuple[JobEvent, ...] = ()
    deployments: tuple[tuple[float, Deployment], ...] = ()
    """What ran from when on, in seconds since the job began, and"""
    remote_rates: tuple[float | None, ...] = ()
    """$ per hour of the remote workers of each, by the nodes that they were on; None: not known."""
    timeline: tuple[PlacementStep, ...] = ()
    """Every window that AutoPlacement saw, and what it decided."""
    windows: tuple[ObservedWindow, ...] = ()
    """What was measured while the numbers of workers were fixed."""
    cost: Cost | None = None
    """At the prices of `AutoWorkers`; None where none were given."""
    epoch_costs: tuple[Cost, ...] = ()
    """Of the epochs that are over, the newest 1,000 of them; the very first one includes the start."""
    operator_costs: dict[str, float] = field(default_factory=dict)
    """$ that input has cost (remote workers, and hosts whose trainers waited), dealt to operators by the time that
    they took in AutoOrder's sample."""
    placement: str = ""
    """Which deployments AutoPlacement has compared, and why the others lost, in words."""
    prices: Prices | None = None
    hosts: int = 1
    cpus: float = 0.0
    """CPUs of these that the job may use; 0: not known."""
    trainers: int = 1
    held_up: tuple[float, ...] = ()
    """With coordinated reads: so many seconds others waited for each rank that lacked its batch of a round."""
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
        workers = {
            name: WorkerReport(
                *(worker.placement, worker.elements, worker.batches, worker.threads),
                *(worker.remote_bytes, worker.node_bytes, worker.stages),
                hedged=worker.hedged,
                hedges_won=worker.hedges_won,
            )
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
            bad_estimated=facts.bad_estimated,
            bad_open_ends=facts.bad_open_ends,
            left_epochs=facts.left_epochs,
            left_out_elements=facts.left_out_elements,
            dropped_elements=facts.dropped_elements,
            dropped_open_ends=facts.dropped_open_ends,
            workers_lost=facts.workers_lost,
            workers=workers,
            events=facts.events,
            deployments=facts.deployments,
            remote_rates=facts.remote_rates,
            timeline=facts.timeline,
            windows=facts.windows,
            cost=cost,
            epoch_costs=costs_of_epochs(facts, trainer),
            operator_costs={} if cost is None else cost_by_operator(cost, facts.op_seconds),
            placement="" if facts.comparison is None else explain_placement(facts),
            prices=facts.prices,
            hosts=facts.hosts,
            cpus=facts.cpus,
            trainers=facts.trainers,
            held_up=facts.held_up,
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
        lines = [*self._speed_lines(), *(line for _, line in self.worker_lines())]
        lines += [*self._loss_lines(), *self._held_up_lines(), *self._cost_lines()]
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
        return lines

    def worker_lines(self) -> list[tuple[str, str]]:
        """Return the names of the workers, and the text's line about each."""
        return [(name, f"  {name} ({one.placement}): {one.as_text()}") for name, one in self.workers.items()]

    def _loss_lines(self) -> list[str]:
        """Return the text's lines about elements that the training loop has not had."""
        facts = [
            (self.bad_elements, self.bad_text()),
            (self.unkept_elements, f"{self.unkept_elements} of them could not be written to the quarantine file"),
            (self.left_epochs, f"{self.left_epochs} of the epochs were left before their ends"),
            (self.left_out_elements, f"{self.left_out_elements} elements of remainders were left out"),
            (self.dropped_elements or self.dropped_open_ends, self.dropped_text()),
        ]
        return [f"  {text}" for count, text in facts if count]

    def _held_up_lines(self) -> list[str]:
        slow = {rank: held_s for rank, held_s in enumerate(self.held_up) if held_s >= HELD_UP_SHARE * self.seconds}
        return [
            f"  rank {rank} held the others up for {held_s:.1f} s: it had not received its batch of a round"
            for rank, held_s in sorted(slow.items(), key=lambda one: -one[1])
        ]

    def _cost_lines(self) -> list[str]:
        lines = []
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
        return lines

    def event_lines(self) -> list[str]:
        """Return the text's lines about events, with their seconds since `iter_batches()` was called."""
        # Events count from the controller's beginning, and the text from the call of `iter_batches()`.
        before = max(0.0, self.time.total_s - self.seconds)
        return [f"  {before + event.seconds:7.1f} s  {event.text}" for event in self.events]

    def bad_text(self) -> str:
        """Say how many elements were bad, and how well that is known."""
        count = BadCount(self.bad_elements, self.bad_estimated, self.bad_open_ends)
        why = [f"{self.bad_estimated} of them are an estimate"] * (self.bad_estimated > 0)
        why += [f"nothing tells how many the rest of {self.bad_open_ends} broken splits held"] * (
            self.bad_open_ends > 0
        )
        return f"{count} bad elements were left out (on_error)" + (f": {', and '.join(why)}" if why else "")

    def dropped_text(self) -> str:
        """Say what went with workers where data is visited at most once."""
        rest = f" and the rest of {self.dropped_open_ends} splits of unknown length" * bool(self.dropped_open_ends)
        return f'{self.dropped_elements} elements{rest} were dropped with their workers (visitation="at_most_once")'

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


def latest_used(timeline: Sequence[PlacementStep], windows: int = 5) -> list[Window]:
    """Return the newest windows that were not thrown away."""
    used = [step.window for step in timeline if step.decision.phase != "discarded"]
    return [window for window in used if not window.invalid_reason()][-windows:]


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
    return cost_between(ran, facts.prices, facts.hosts, rates, until=facts.seconds, waiting=waiting)


def costs_of_epochs(facts: JobStats, trainer: TrainerProgress) -> tuple[Cost, ...]:
    """Return the cost of each epoch that is over, of the newest ones."""
    if facts.prices is None:
        return ()
    waiting, before = wait_share([trainer]), facts.epochs_before
    ran, rates = facts.deployments, facts.remote_rates
    return cost_by_epoch(ran, facts.prices, facts.hosts, facts.epoch_ends, waiting, before, rates)
