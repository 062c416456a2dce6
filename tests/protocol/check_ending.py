"""What must hold at the end of a history: everybody is at the end, or has ended with the reason that there is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pecan_ray.job.fatal_elements import MOST_IN_VAIN
from pecan_ray.job.heartbeat import NOTICE_S
from pecan_ray.job.losses import MOST_IN_A_ROW
from tests.protocol.audit import Audit, must, undisturbed
from tests.protocol.check_counts import (
    check_each_worker,
    check_numbers,
    check_positions,
    check_quarantine,
    check_serial,
    check_some_visits,
    machines_may_be_taken_for_elements,
    taken_for_silent,
)
from tests.protocol.clock import HEARD_WITHIN_S
from tests.protocol.scenario import FATAL, TIMEOUT_S

if TYPE_CHECKING:
    from tests.protocol.job import JobModel
    from tests.protocol.trainer import TrainerModel
    from tests.protocol.world import World

LEAST_NOTICE_S = {"announce node": 4.0, "announce worker": NOTICE_S}
"""Whoever hears so long before its end is drained by then; to a process nobody says how long it has."""


def check_ending(audit: Audit, job: JobModel, trainers: list[TrainerModel]) -> None:
    """Check a whole history."""
    scenario = audit.scenario
    for worker in job.processes.values():
        must(not worker.alive, f"{worker.name} outlives the job")
    _check_endings(audit.world, job, trainers)
    quiet = not (scenario.lost or audit.world.faults["freeze worker"])
    must(not (quiet and taken_for_silent(audit.world)), "a worker is taken for lost that all have heard")
    _check_announced(audit, job)
    if not trainers or any(trainer.ended != "end" for trainer in trainers):
        return
    must(job.state.ledger.finished, "all trainers are at the end, and the job is not")
    epochs = job.state.ledger.epoch
    if scenario.epochs is not None and job.state.ledger.queues.empty_source is False:
        must(epochs == scenario.epochs, f"{epochs} epochs instead of {scenario.epochs}")
    check_numbers(audit, trainers, epochs)
    if len(trainers) < scenario.ranks:
        return  # one was lost, with what it had
    check_quarantine(audit, job, trainers)
    if scenario.sharding == "off":
        check_each_worker(audit, job, epochs)
    elif scenario.serial:
        check_serial(audit, job, epochs)
    elif scenario.visitation == "zero_or_more" and not undisturbed(audit.world):
        check_some_visits(audit, job, epochs)
    else:
        check_positions(audit, job, epochs)


def _check_announced(audit: Audit, job: JobModel) -> None:
    """Where nothing happens but ends that were announced in time, and all is heard, no worker is lost."""
    scenario = audit.scenario
    in_time = all(one.kind in LEAST_NOTICE_S and one.seconds >= LEAST_NOTICE_S[one.kind] for one in scenario.faults)
    if in_time and not (scenario.lost or audit.world.deaths):
        lost = [one.text for one in job.state.told if one.kind == "lost"]
        must(not lost, f"ends were announced, and yet: {lost}")


def _check_endings(world: World, job: JobModel, trainers: list[TrainerModel]) -> None:
    """Training loops end well unless there is a reason for something else, and with that reason."""
    scenario = world.scenario
    reasons: dict[str, str] = {}
    if scenario.stop_after is not None:
        reasons |= {"enough": "", "ClusterError": "has left before the end"}
    if scenario.absent:
        reasons |= {"gave up": "", "ClusterError": "has left before the end"}
    if scenario.error_budget < 1.0:
        reasons["ErrorBudgetError"] = "error budget"
    if world.faults["fail"]:
        reasons["PlanError"] = "the function failed"
    silent = scenario.processes_unknown and world.longest_freeze + HEARD_WITHIN_S > TIMEOUT_S
    if world.faults["kill trainer"] or silent:
        reasons["ClusterError"] = "has not been heard"
    if (world.deaths or machines_may_be_taken_for_elements(world)) and scenario.on_error == "raise":
        reasons["OpError"] = "ended the process"
    silenced = taken_for_silent(world) > MOST_IN_VAIN  # as if native code had held the GIL
    if (world.deaths or silenced) and (scenario.one_sequence or scenario.sharding == "off"):
        reasons["ClusterError"] = "one after the other"
    if world.deaths and scenario.promised:
        reasons["ClusterError"] = "cannot be kept"
    # Of a deadly element two die that work on other data too, before other passes know of it; where nothing is run
    # again, one in each pass.
    deadly = sum(sum(map(split.outputs.count, FATAL)) for source in scenario.sources for split in source)
    passes = scenario.repetitions * ((scenario.epochs or 1) if scenario.visitation == "at_most_once" else 2)
    if world.losses + min(world.deaths, passes * deadly) > MOST_IN_A_ROW:
        reasons.setdefault("ClusterError", "in a row")
    runs, error = job.state.ledger.runs, job.state.error
    continues = "goes on from a state" not in f"{runs.given_up} {runs.fatal_reason}"
    must(continues or not world.audit.in_order_before, "rows had come in order, and do not where the run goes on")
    if error is not None:
        must(type(error).__name__ in reasons, f"the job failed without a reason: {error}")
        reasons.setdefault("ClusterError", "the controller is gone")
    for trainer in trainers:
        must(trainer.ended == "end" or trainer.ended in reasons, f"{trainer.name} ended: {trainer.error}")
        since = max((at for at in world.killed if at < trainer.ended_at), default=math.inf)
        frozen = max((fault.seconds for fault in scenario.faults if fault.seconds < math.inf), default=0.0)
        within = (
            TIMEOUT_S + 20.0 + 200.0 * scenario.lost + max(frozen, world.longest_freeze) + world.controller_frozen_s
        )
        missed = trainer.used_at - min(world.missed, default=math.inf)
        must(missed < within, f"{trainer.name} got a batch {missed:.0f} s after another rank had gone without its own")
        if trainer.ended == "ClusterError":
            must(trainer.ended_at - since < within, f"{trainer.name} heard of a killed one after {within:.0f} s")
