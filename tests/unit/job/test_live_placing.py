"""AutoPlacement on a job: its first workers, those that do not come, and a controller that fails."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pecan_ray.job import events
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import TrainerProgress, WorkerProgress
from pecan_ray.options import AutoWorkers, Workers
from pecan_ray.placement.looks import Observation
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Decision, Deployment
from tests.unit.job.job_rig import JobRig, said


def auto_rig(**options: Any) -> JobRig:
    return JobRig(LedgerShape(batch_size=10), AutoWorkers(max_remote=0), **options)


def starving(rig: JobRig, seconds: float) -> list[str]:
    """Let a trainer wait for all of its time beside workers that work for all of theirs; return what was logged."""
    logged = []
    until = rig.now + seconds
    while rig.now < until:
        for name, worker in rig.job.worker_table.workers.items():
            if worker.running:
                stages = StageSeconds(observed_s=rig.now, threads_s=rig.now, cpu_s=rig.now)
                rig.handle(events.WorkerProgressReported(name, WorkerProgress(int(20 * rig.now), stages=stages)))
        rig.now += 0.5
        made = sum(worker.own_progress.elements for worker in rig.job.worker_table.workers.values())
        progress = TrainerProgress(0, made, 0.9 * rig.now, rig.now)
        logged.append(said(rig.report(progress=progress)))
    return logged


def test_a_trainer_that_waits_gets_all_local_workers_and_those_that_do_not_come_are_given_up() -> None:
    rig = auto_rig()
    rig.begin()
    logged = starving(rig, 4.0)
    assert rig.job.worker_table.target == Deployment(3, 0) and rig.job.worker_table.running() == Deployment(1, 0), (
        "of four CPUs"
    )
    assert sum("and CPUs are idle" in text for text in logged) == 1
    placing = rig.job.placement.policy_runner
    assert placing is not None and rig.job.placement.now == "measures"
    assert [step.decision.phase for step in placing.timeline] == ["add_local"]
    for seconds in (40.0, 60.0):
        logged += starving(rig, seconds)
        assert rig.job.worker_table.target == Deployment(1, 0), "they are not asked for again at once"
    assert sum("no more than 1 local + 0 remote of 3 local + 0 remote came in time" in text for text in logged) == 1


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("row_s", "workers"), [(0.004, 2), (math.inf, 3)])
def test_a_job_begins_with_as_many_workers_as_a_sample_asks_for_whenever_it_ends(
    row_s: float, workers: int, early: bool
) -> None:
    """Rows of 4 ms, ten in 20 ms; a look that ten seconds did not suffice for is one at slow elements.

    The sample runs while the nodes are looked for and workers start.
    """
    rig = auto_rig(ordered=False)
    known = events.OrderKnown(changed=False, row_s=row_s)
    if early:
        rig.handle(known)
    rig.come()
    if not early:
        rig.handle(known)
    assert rig.job.worker_table.target == Deployment(workers, 0), "of four CPUs, of which one is the trainer's"
    placing = rig.job.placement.policy_runner
    assert placing is not None and placing.job_sampler.row_s == (row_s if row_s < math.inf else None)


def test_a_controller_that_fails_is_told_of_once_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = auto_rig()
    (worker,) = rig.begin()
    placing = rig.job.placement.policy_runner
    assert placing is not None
    looks: list[tuple[Observation, float]] = []

    def fail(o: Observation, now: float) -> Decision:
        looks.append((o, now))
        raise ZeroDivisionError(f"float division by zero at {now:.1f} s")

    monkeypatch.setattr(placing.policy, "look", fail)
    logged = starving(rig, 6.0)
    said_once = [event.text for event in rig.job.story if "failed" in event.text]
    assert len(said_once) == 1 and f"ZeroDivisionError: float division by zero at {looks[0][1]:.1f} s" in said_once[0]
    assert sum("AutoPlacement: keep 1 local + 0 remote" in text for text in logged) == 1
    assert placing.failures > 5 and {o.threads for o, _ in looks} == {(1.0, 1.0)}
    assert (
        rig.job.worker_table.target == Deployment(1, 0)
        and worker in rig.job.worker_table.workers
        and rig.job.error is None
    )


@pytest.mark.parametrize(("waiting", "needed"), [(0.9, [1]), (0.01, [])])
def test_a_job_that_waits_bids_for_a_first_worker_of_a_side_of_which_it_knows_none(
    waiting: float, needed: list[int]
) -> None:
    rig = JobRig(LedgerShape(batch_size=10), AutoWorkers())
    rig.begin()
    starving(rig, 3.0)
    placement, table = rig.job.placement, rig.job.worker_table
    assert placement.policy_runner is not None and placement.policy_runner.policy.state.known.each[0] > 0
    placement.policy_runner.job_sampler.wait = waiting
    bids = placement.pool_requests(table, {"remote": ("other",)})
    assert [bid.demand.least for bid in bids] == needed


def wait_for_accelerator(rig: JobRig, seconds: float) -> None:
    """Let a trainer wait until workers shall leave decoding to it, so long at most; those that are asked for come."""
    until = rig.now + seconds
    while rig.now < until and not rig.job.worker_table.accelerator:
        for worker in [one for one in rig.job.worker_table.workers.values() if not one.running]:
            rig.place(worker.name)
        starving(rig, 0.5)


def test_all_workers_are_replaced_when_decoding_moves_to_the_accelerator_and_back() -> None:
    rig = auto_rig(accelerator="auto")
    rig.begin(splits=100)
    wait_for_accelerator(rig, 60.0)
    table, placing = rig.job.worker_table, rig.job.placement.policy_runner
    assert placing is not None and placing.policy.state.accelerator.on
    here = [one for one in table.workers.values() if not one.draining]
    assert len(here) == 3 and all(one.accelerator for one in here), "of four CPUs"
    assert sum("its accelerator can decode: workers leave decoding to it" in one.text for one in rig.job.story) == 1
    rig.handle(events.CutRefused(here[0].name, "an image cannot be decoded where its batch arrives"))
    assert here[0].name not in table.workers and not placing.policy.state.accelerator.on
    after = [one for one in table.workers.values() if not one.draining]
    assert len(after) == 3 and not any(one.accelerator for one in after) and not table.losses.cut_refused
    remembered = placing.policy.state.accelerator
    rig.handle(events.CutRefused(here[1].name, "another image cannot be decoded where its batch arrives"))
    assert here[1].name not in table.workers and placing.policy.state.accelerator == remembered
    wait_for_accelerator(rig, 60.0)
    assert not table.accelerator, "nothing is tried so soon after a refusal"
    wait_for_accelerator(rig, 160.0)
    assert table.accelerator


def test_without_a_policy_a_refusal_ends_the_use_of_the_accelerator() -> None:
    rig = JobRig(LedgerShape(batch_size=10), Workers(2), accelerator="always")
    workers = rig.begin()
    assert all(rig.job.worker_table.workers[name].accelerator for name in workers)
    rig.handle(events.CutRefused(workers[0], "an image cannot be decoded where its batch arrives"))
    here = [one for one in rig.job.worker_table.workers.values() if not one.draining]
    assert len(here) == 2 and not any(one.accelerator for one in here)
