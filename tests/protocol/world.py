"""One history: all parties of a job under one clock, from its first call to its last process."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.job import events
from pecan_ray.job.spec import ErrorPolicy, JobSpec, Timeouts
from pecan_ray.options import AutoWorkers, Workers
from tests.protocol.audit import Audit, ViolationError
from tests.protocol.check_ending import check_ending
from tests.protocol.clock import Clock, Links, Party
from tests.protocol.job import JobModel
from tests.protocol.saved import Saved, save, save_each
from tests.protocol.scenario import FATAL, HUNG_AFTER_S, TIMEOUT_S, Fault, FaultKind, Scenario
from tests.protocol.surroundings import AnnouncedEnds
from tests.protocol.trainer import TrainerModel
from tests.protocol.worker import WorkerModel

PATIENCE_S = 150.0
"""A job in which no batch is used for so long hangs; with a slow or bad network it may take longer."""
MOST_EVENTS = 1_000_000
"""No history of few ranks needs so many;"""
MOST_EVENTS_OF_RANK = 10_000
"""for each of them some more are allowed."""
LOSES_A_WORKER = ("kill worker", "kill node", "freeze worker", "hang worker", "fail order", "break stream")
"""Faults of which each may cost a worker."""
DIES_MEANWHILE_SHARE = 0.1
"""Of workers, while a job has no controller."""
KEEPER_DIES_SHARE = 0.1
"""Of controllers: what keeps their workers dies with them."""
GIVES_UP_S = 30.0
"""A training loop whose job lacks a rank is ended by its user after so long."""


@dataclass
class HistoryOutcome:
    """What became of a history."""

    failure: str = ""
    """What must hold and did not; empty if nothing."""
    events: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    """How the training loops ended."""
    batches: int = 0
    excess: float = 0.0
    """By how many messages for each worker a queue was above its bound at most."""


class World:
    """Everything in one history."""

    def __init__(self, scenario: Scenario, saved: Saved | None = None) -> None:
        """`saved`: the run goes on there."""
        self.scenario = scenario
        self.clock = Clock(scenario.seed)
        self.links = Links(self.clock, scenario.delay_s, scenario.lost, scenario.doubled)
        self._saved = saved
        self.spec = spec_of(scenario, saved)
        self.audit = Audit(self, saved)
        self.job = JobModel(self)
        self.trainers = [TrainerModel(self, rank) for rank in range(scenario.ranks)]
        self.faults: Counter[str] = Counter()
        self._progress = 0.0
        self._patience_s = PATIENCE_S * (1 + 20 * scenario.delay_s) * (1 + 5 * scenario.lost)
        if any(set(FATAL) & set(split.outputs) for split in scenario.splits):
            self._patience_s *= 3  # what kills workers is looked for in dozens of pieces, one after the other
        self.losses = 0
        """Workers that were lost, or will be, by a fault;"""
        self.deaths = 0
        """workers that died of a deadly element, or hang at one;"""
        self.killed: list[float] = []
        """and when trainers were killed,"""
        self.missed: list[float] = []
        """or went, with batches that they had not used."""
        self.longest_freeze = 0.0
        """Longest time for which a trainer could not be heard, by freezes that follow each other."""
        self.announced = AnnouncedEnds(self)
        self.controller_frozen_s = 0.0
        """For so long together the job's process has stood still."""
        self.numbers = count(1)
        """Of batches that have come: none comes twice."""

    def progressed(self) -> None:
        """Note that the job has come further."""
        self._progress = max(self._progress, self.clock.now)

    # --- the history ---------------------------------------------------------------------------------------

    def run(self) -> HistoryOutcome:
        """Play the history to its end."""
        failure = ""
        try:
            self._begin()
            while not self._over():
                if not self.clock.step():
                    raise ViolationError(f"nothing can happen any more: {self.describe()}")
                self._check_progress()
            check_ending(self.audit, self.job, self._expected())
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        self.faults.update({"message lost": self.links.dropped, "message doubled": self.links.repeated})
        endings = Counter(str(trainer.ended) for trainer in self.trainers)
        batches = sum(trainer.state.yielded for trainer in self.trainers)
        return HistoryOutcome(
            failure, self.clock.events, self.clock.now, self.faults, endings, batches, self.audit.excess
        )

    def run_until(self, batches: int, rank: int) -> Saved | None:
        """Play until a rank has used so many batches, and take a state; None if it ends before.

        Half of the states are merged from those of all ranks, after different numbers of batches.
        """
        random = Random(self.scenario.seed)
        merged = random.random() < 0.5
        self._begin()
        while not self._over() and self.clock.step():
            self._check_progress()
            trainer = self.trainers[rank]
            if trainer.ended is not None:
                return None
            if trainer.state.yielded >= batches:
                saved = save_each(self, random, self._saved) if merged else None
                saved = save(self, rank, self._saved) if saved is None else saved
                if saved is not None:
                    return saved
        return None

    def _check_progress(self) -> None:
        if self.clock.events > MOST_EVENTS + MOST_EVENTS_OF_RANK * self.scenario.ranks:
            raise ViolationError(f"it goes on and on: {self.describe()}")
        if self.clock.now - self._progress > self._patience_s:
            raise ViolationError(f"it hangs: {self.describe()}")

    def _begin(self) -> None:
        self.job.begin()
        for trainer in self.trainers[: len(self.trainers) - self.scenario.absent]:
            late = self.scenario.late_s * self.clock.random.random() if trainer.rank else 0.0
            self.clock.after(late, trainer, trainer.begin)
            if self.scenario.absent:
                self.clock.after(GIVES_UP_S, trainer, trainer.end, "gave up")
        if self.scenario.order_s is not None:
            self.clock.after(self.scenario.order_s, None, self._order_known)
        for fault in self.scenario.faults:
            self.clock.after(fault.at, None, self._inject, fault)

    def _order_known(self) -> None:
        """Tell the job the order of operators, until it knows."""
        if self.job.ended_at is None and not self.job.state.ordered:
            self.clock.after(0.0, self.job, self.job.handle, events.OrderKnown(changed=True))
            self.clock.after(1.0, None, self._order_known)

    def _expected(self) -> list[TrainerModel]:
        return [trainer for trainer in self.trainers[: len(self.trainers) - self.scenario.absent] if trainer.there]

    def _over(self) -> bool:
        if self.job.alive:
            return False
        if any(trainer.ended is None for trainer in self._expected()):
            return False
        return not any(worker.alive for worker in self.job.processes.values())

    # --- faults --------------------------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> None:
        if not self.job.alive:
            return
        self.progressed()
        if (targets := self._targets(fault.kind)) is not None:
            if not targets:
                return
            self._hurt(fault, targets[fault.target % len(targets)])
            self.losses += fault.kind in LOSES_A_WORKER
        elif fault.kind in ("announce node", "announce worker"):
            if not self.announced.begin(fault):
                return
        elif fault.kind == "kill controller":
            if self.clock.random.random() < 0.5:
                self.job.dies_in = fault.seconds
            else:
                self.replace_controller(fault.seconds)
        elif fault.kind == "freeze controller":
            self._freeze(self.job, fault.seconds)
            self.controller_frozen_s += fault.seconds
        else:
            self.clock.after(0.0, self.job, self.job.handle, self._event_of(fault))
        self.faults[fault.kind] += 1

    def _event_of(self, fault: Fault) -> events.Event:
        """Return what the job hears of a fault that is nothing but an event."""
        if fault.kind == "scale":
            return events.ScaleRequested(*divmod(fault.target, 100))
        if fault.kind == "ask room":
            return events.RoomRequested("another")
        if fault.kind == "change plan":
            return events.PlanChanged("a better order")
        error, names = PlanError("the function failed"), list(self.job.state.worker_table.workers)
        return events.WorkerFailed(names[fault.target % len(names)], error) if names else events.JobFailed(error)

    def replace_controller(self, seconds: float) -> None:
        """Kill the controller; a while later another process goes on.

        Workers live on, but for a few that die meanwhile; now and then, what keeps them dies as well, and all do.
        """
        killed, random = self.job, self.clock.random
        all_of_them = random.random() < KEEPER_DIES_SHARE
        for worker in killed.processes.values():
            if worker.alive and (all_of_them or random.random() < DIES_MEANWHILE_SHARE):
                self.losses += 1
                self.clock.after(seconds * random.random() * (not all_of_them), None, self.end_process, worker)
        killed.alive = False
        self.job = JobModel(self, before=killed)
        self.job.frozen_until = self.clock.now + seconds
        self.clock.after(seconds, self.job, self.job.go_on)
        for trainer in self.trainers:
            trainer.repeat()
        self._progress = max(self._progress, self.job.frozen_until)

    def end_process(self, worker: WorkerModel) -> None:
        """End a worker: whichever controller follows it by then is told."""
        self.job.process_gone(worker, "process")

    def end_node(self, node: str) -> None:
        """End all workers of a node."""
        for worker in list(self.job.processes.values()):
            if worker.node == node:
                self.job.process_gone(worker, "node")

    def _targets(self, kind: FaultKind) -> list[Any] | None:
        """Return of what one is hurt; None: the fault is none of a single party."""
        if kind == "break stream":
            return [
                one for trainer in self.trainers if trainer.alive for one in trainer.streams.values() if not one.over
            ]
        if kind in ("freeze trainer", "slow trainer", "kill trainer"):
            return [trainer for trainer in self.trainers if trainer.alive and trainer.registered]
        if kind in ("slow worker", *LOSES_A_WORKER):
            return [worker for worker in self.job.processes.values() if worker.alive]
        return None

    def _hurt(self, fault: Fault, one: Any) -> None:
        """Let something happen to a worker, a trainer or a stream."""
        match fault.kind:
            case "slow worker" | "slow trainer":
                one.time_factor = fault.seconds
            case "freeze worker":
                # One that stands still before the job knows where it runs is waited for, as long as it takes.
                known = self.job.state.worker_table.workers.get(one.name)
                self._freeze(one, fault.seconds if known is None or known.node else min(fault.seconds, 30.0))
            case "freeze trainer":
                self.longest_freeze = max(self.longest_freeze, self._freeze(one, fault.seconds))
            case "hang worker":
                one.hang_for = fault.seconds
                if fault.seconds < math.inf:
                    self._progress = max(self._progress, self.clock.now + fault.seconds)
            case "fail order":
                failed = events.OrderFailed(one.name, "an element failed in another order")
                self.clock.after(0.0, self.job, self.job.handle, failed)
            case "kill worker":
                self.end_process(one)
            case "kill node":
                self.end_node(one.node)
            case "kill trainer":
                one.die()
                self.killed.append(self.clock.now)
                if one.state.queue:
                    self.missed.append(self.clock.now)
            case "break stream":
                self.clock.after(0.0, one.trainer, one.trainer.stream_failed, one)

    def _freeze(self, party: Party, seconds: float) -> float:
        silent = party.freeze(self.clock.now, seconds)
        if party.frozen_until < math.inf:
            self._progress = max(self._progress, party.frozen_until)
        return silent

    # --- what is told of a history that hangs --------------------------------------------------------------

    def describe(self) -> str:
        """Say who waits for what."""
        ledger = self.job.state.ledger
        parties = [*self.job.processes.values(), *self.trainers]
        lines = [
            f"at {self.clock.now:.1f} s, nothing used since {self._progress:.1f} s; epoch {ledger.epoch}, counts "
            f"{ledger.counts}, unsettled {ledger.unresolved()}, error {self.job.state.error}",
            *(f"ledger: {name} holds {held.pending_leases}, {held}" for name, held in ledger.workers.items()),
            *(f"{one}, frozen until {one.frozen_until:.0f} s" for one in parties if one.alive),
        ]
        return "\n  ".join(lines)


def spec_of(scenario: Scenario, saved: Saved | None = None) -> JobSpec:
    """Return the job of a scenario."""
    workers: Workers | AutoWorkers = Workers(scenario.local, scenario.remote)
    if scenario.auto:
        workers = AutoWorkers(window_batches=4, window_s=0.5, patience_s=5.0)
    return JobSpec(
        "simulated",
        scenario.shape,
        workers,
        errors=ErrorPolicy(scenario.on_error, scenario.error_budget),
        timeouts=Timeouts(TIMEOUT_S, TIMEOUT_S, HUNG_AFTER_S),
        prefetch_bytes=scenario.prefetch_bytes,
        start=saved.point if saved is not None else None,
        ordered=scenario.order_s is None,
    )


def play(scenario: Scenario) -> HistoryOutcome:
    """Play a history with the real state machines."""
    return World(scenario).run()
