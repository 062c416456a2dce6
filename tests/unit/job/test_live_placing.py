"""AutoPlacement on a job: what mode "auto" sees of it, room for workers, and windows of the papers' modes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.job import events
from pecan_ray.job.job_sampler import WORKER_BYTES, JobSampler, available_cpus
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import TrainerProgress, WorkerProgress
from pecan_ray.job.policy_runner import DISCARDED, PolicyRunner, begin, worker_capacity
from pecan_ray.job.room import HostUse, Room
from pecan_ray.job.windows import StepTotals
from pecan_ray.job.worker_table import WorkerTable
from pecan_ray.options import AutoWorkers
from pecan_ray.placement.looks import Observation
from pecan_ray.plan.prices import Prices, PriceTier
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Decision, Deployment
from tests.unit.job.job_rig import JobRig, said

ROOM = Room(host_cpus=(4.0, 8.0), remote_cpus=(3.0, 3.0, 16.0))


def placing(**options: Any) -> PolicyRunner:
    return begin(AutoWorkers(**options), ROOM, cpus_per_worker=2.0, visitation="exactly_once", trainers=1)


# --- what is seen -------------------------------------------------------------------------------------------


def work_done(elements: int, seconds: float, blocked: float = 0.0, cpu_s: float = 0.0) -> WorkerProgress:
    """Return what a worker of one thread has done."""
    return WorkerProgress(
        elements, stages=StageSeconds(observed_s=seconds, threads_s=seconds, cpu_s=cpu_s, blocked_s=blocked)
    )


def fleet_of(*told: WorkerProgress, cpus: float = 8.0) -> WorkerTable:
    """Return local workers that have done so much."""
    worker_table = WorkerTable("job")
    worker_table.hosts = {"node": cpus}
    worker_table.scale(Deployment(len(told), 0), 0.0)
    for worker, progress in zip(worker_table.workers.values(), told, strict=True):
        worker.running, worker.own_progress = True, progress
    return worker_table


def test_sums_of_trainers_and_workers_become_an_observation() -> None:
    job_sampler, two = JobSampler(trainers=1, batch=10, row_s=0.02), Deployment(2, 0)
    begun = TrainerProgress(elapsed_s=10.0, waited_s=2.0, rows=100, yielded=10, host=HostUse(cpu_s=5.0, in_line_s=1.0))
    assert job_sampler.look([begun], fleet_of(work_done(50, 4.0), work_done(50, 4.0)), two) is None, (
        "nothing to compare with"
    )
    later = replace(begun, elapsed_s=10.6, waited_s=2.2, rows=130, yielded=13, host=HostUse(cpu_s=5.3, in_line_s=1.1))
    worker_table = fleet_of(work_done(70, 4.6, 0.2, cpu_s=1.4), work_done(60, 4.6, 0.1, cpu_s=1.2))
    o = job_sampler.look([later], worker_table, two)
    assert o is not None
    assert (o.dt, o.waited, o.rows, o.steps) == pytest.approx((0.6, 0.2, 30, 3))
    assert (o.produced, o.grain, o.running, o.requested) == ((30, 0), 10, two, two)
    assert (o.work_done[0], o.blocked[0]) == pytest.approx((0.9, 0.3))
    assert o.own_s == pytest.approx(0.02), "CPU time is 2.6 s for 130 rows"
    assert o.lag == pytest.approx(0.1 / 0.4)
    assert o.busy_waiting == 1, "a quarter of their time is less than that in which it did not wait"
    assert job_sampler.look([replace(later, elapsed_s=10.8)], worker_table, two) is None, "too soon"


def test_workers_that_hold_finished_batches_while_the_trainer_waits_are_not_too_few() -> None:
    """It waits for 0.9 of a second, and three of four are held back for all of it: the fourth is late."""
    job_sampler, four = JobSampler(trainers=1, batch=10), Deployment(4, 0)
    job_sampler.look([TrainerProgress(elapsed_s=1.0)], fleet_of(*[work_done(0, 1.0)] * 4), four)
    later = [work_done(10, 2.0), *[work_done(20, 2.0, 1.0)] * 3]
    o = job_sampler.look([TrainerProgress(elapsed_s=2.0, waited_s=0.9)], fleet_of(*later), four)
    assert o is not None and o.busy_waiting == pytest.approx(1 - (0.75 - 0.1) / 0.9)


def test_what_cannot_be_measured_is_none() -> None:
    job_sampler = JobSampler(trainers=1, batch=None)
    worker_table, one = fleet_of(work_done(50, 4.0)), Deployment(1, 0)
    job_sampler.look([TrainerProgress(elapsed_s=10.0)], worker_table, one)
    o = job_sampler.look([TrainerProgress(elapsed_s=11.0, rows=60, yielded=3)], worker_table, one)
    assert o is not None
    assert (o.own_s, o.lag, o.busy_waiting) == (None, None, None)
    assert o.grain == 20


def test_of_several_trainers_the_one_that_waits_longest_counts() -> None:
    job_sampler, worker_table, one = JobSampler(trainers=2, batch=10), fleet_of(work_done(0, 1.0)), Deployment(1, 0)
    ranks = [TrainerProgress(elapsed_s=5.0), TrainerProgress(elapsed_s=5.0)]
    assert job_sampler.look(ranks[:1], worker_table, one) is None, "the other one has not come"
    job_sampler.look(ranks, worker_table, one)
    ranks = [replace(ranks[0], elapsed_s=6.0, waited_s=0.1), replace(ranks[1], elapsed_s=6.0, waited_s=0.7)]
    o = job_sampler.look(ranks, worker_table, one)
    assert o is not None and o.waited == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("host", "told", "room"),
    [
        pytest.param(None, (), 7, id="Ray's CPUs, less one for the trainer"),
        pytest.param(HostUse(cpus=4.0), (), 3, id="a quota"),
        pytest.param(HostUse(cpus=64.0), (), 8, id="Ray has fewer"),
        pytest.param(HostUse(cpus=2.0), (work_done(9, 10.0, cpu_s=1.0),), 8, id="workers that sleep need no CPUs"),
        pytest.param(HostUse(cpus=2.0), (work_done(0, 0.5, cpu_s=0.03),), 8, id="half a second shows it"),
        pytest.param(HostUse(cpus=2.0), (work_done(0, 0.4, cpu_s=0.03),), 1, id="less does not"),
        pytest.param(HostUse(cpus=64.0, memory_bytes=2 * WORKER_BYTES), (), 2, id="memory for two"),
        pytest.param(HostUse(cpus=0.5), (), 1, id="one in any case"),
    ],
)
def test_room_on_the_trainer_s_node(host: HostUse | None, told: tuple[WorkerProgress, ...], room: int) -> None:
    assert JobSampler(1, 10).room([TrainerProgress(host=host)], fleet_of(*told), 1.0) == room


def test_a_report_knows_the_cpus_of_the_trainers_nodes() -> None:
    worker_table, quota = fleet_of(), HostUse(cpus=2.5)
    assert available_cpus([], worker_table) == sum(worker_table.hosts.values()), "Ray's count"
    ranks = [TrainerProgress(host=HostUse(cpus=4.0)), TrainerProgress(host=quota), TrainerProgress()]
    assert available_cpus(ranks, worker_table) == 2.5 * len(worker_table.hosts)


def remote_workers(*prices: float) -> WorkerTable:
    """Return remote workers that run on nodes of such prices."""
    worker_table = fleet_of()
    worker_table.scale(Deployment(0, len(prices)), 0.0)
    for worker, price in zip(worker_table.workers.values(), prices, strict=True):
        worker.running, worker.price = True, price
    return worker_table


def test_a_budget_counts_the_nodes_that_workers_have_found_and_not_those_that_were_forecast() -> None:
    prices = Prices(1.0, 3.0, (PriceTier("spot", 0.1, 8),))
    runner = placing(prices=prices, max_per_hour=9.0, max_local=0, max_remote=8)
    trainer, four = TrainerProgress(elapsed_s=1.0), Deployment(0, 4)

    def target(worker_table: WorkerTable, now: float) -> int:
        later = replace(trainer, elapsed_s=now, waited_s=now, rows=int(now), yielded=int(now))
        step = runner.look([later], worker_table, Deployment(0, 0), now, 2.0, None)
        return runner.target.remote if step is None else step.decision.target.remote

    assert target(remote_workers(0.1, 0.1, 0.1, 0.1), 1.0) == runner.target.remote
    assert target(remote_workers(0.1, 0.1, 0.1, 0.1), 2.0) >= four.remote, "as forecast"
    assert target(remote_workers(0.1, 3.0, 3.0, 3.0), 3.0) == 3, "2 + 0.1 + 2 * 3 $ an hour"
    assert target(remote_workers(0.1, 3.0, 3.0), 30.0) == 3, "the nodes that were forecast are still full"


# --- a job --------------------------------------------------------------------------------------------------


def auto_rig(**options: Any) -> JobRig:
    return JobRig(LedgerShape(batch_size=10), AutoWorkers(max_remote=0), **options)


def starving(rig: JobRig, seconds: float, **told: Any) -> list[str]:
    """Let a trainer wait for all of its time beside workers that work for all of theirs; return what was logged."""
    logged = []
    until = rig.now + seconds
    while rig.now < until:
        for name, worker in rig.job.worker_table.workers.items():
            if worker.running:
                rig.handle(events.WorkerProgressReported(name, work_done(int(20 * rig.now), rig.now, cpu_s=rig.now)))
        rig.now += 0.5
        made = sum(worker.own_progress.elements for worker in rig.job.worker_table.workers.values())
        progress = TrainerProgress(0, made, 0.9 * rig.now, rig.now, **told)
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

    def fail(o: Observation, now: float) -> Decision:
        raise ZeroDivisionError(f"float division by zero at {now:.1f} s")

    monkeypatch.setattr(placing.policy, "look", fail)
    logged = starving(rig, 6.0)
    said_once = [event.text for event in rig.job.story if "failed" in event.text]
    assert len(said_once) == 1 and "ZeroDivisionError: float division by zero" in said_once[0]
    assert sum("AutoPlacement: keep 1 local + 0 remote" in text for text in logged) == 1
    assert placing.failures > 5
    assert (
        rig.job.worker_table.target == Deployment(1, 0)
        and worker in rig.job.worker_table.workers
        and rig.job.error is None
    )


# --- bounds, and the papers' windows -------------------------------------------------------------------------


def test_bounds_that_are_left_open_follow_from_the_nodes() -> None:
    """Workers of two CPUs: 2 + 4 fit on the hosts, 1 + 1 + 8 on the others (not 11: a worker is not divided)."""
    limits = placing().policy.limits
    assert (limits.max_local, limits.max_remote) == (6, 10)
    assert worker_capacity([0.5, 1.0], 2.0) == 0
    lonely = begin(AutoWorkers(), Room((1.0,), ()), 2.0, "exactly_once", 1).policy
    assert (lonely.limits.max_local, lonely.limits.max_remote, lonely.start) == (1, 0, Deployment(1, 0))


def batches(papers: PolicyRunner, totals: StepTotals, count: int, batch_time: float) -> StepTotals:
    """Let a trainer take so many batches."""
    for _ in range(count):
        totals = totals.step(batch_time, batch_time - 0.1, 0)
        papers.meter.add(0, totals)
    return totals


@pytest.mark.parametrize(("mode", "window"), [("pecan", 500), ("cachew", 100)])
@pytest.mark.parametrize("step_s", [0.005, 0.32])
def test_a_paper_s_window_holds_its_batches_however_long_they_take(mode: Any, window: int, step_s: float) -> None:
    """And the 150 batches after a change are not measured."""
    papers, totals = placing(mode=mode), StepTotals()
    papers.meter.add(0, totals)
    at = Deployment(0, 1)
    totals = batches(papers, totals, window - 1, 0.1 + step_s)
    assert papers.decide(at, totals.seconds) is None
    totals = batches(papers, totals, 1, 0.1 + step_s)
    step = papers.decide(at, totals.seconds)
    assert step is not None and step.window.batches == window and step.decision.target == Deployment(0, 2)
    papers.meter.touch()
    totals = batches(papers, totals, DISCARDED + window - 1, 0.1 + step_s)
    assert papers.decide(step.decision.target, totals.seconds) is None
    totals = batches(papers, totals, 1, 0.1 + step_s)
    assert papers.decide(step.decision.target, totals.seconds) is not None


def test_while_workers_may_still_come_a_paper_s_policy_is_not_asked() -> None:
    papers, totals = placing(mode="pecan", window_batches=10), StepTotals()
    papers.meter.add(0, totals)
    for awaited in (3, 0):
        totals = batches(papers, totals, 10, 0.4)
        step = papers.decide(Deployment(0, 1), totals.seconds, awaited)
        assert step is not None and (step.decision.phase == "discarded") is bool(awaited)
