"""AutoPlacement behind a job's windows: its bounds, and windows that it is not asked about."""

from __future__ import annotations

from typing import Any

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.job import events
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.placing import MOST_STEPS, PlacementStep, Placing, begin, fitting
from pecan_ray.job.room import Room
from pecan_ray.job.windows import StepTotals
from pecan_ray.options import AutoWorkers, IterOptions
from pecan_ray.placement import AutoPlacement
from pecan_ray.plan.prices import GCP_TPU_V2
from pecan_ray.plan.windows import Decision, Deployment, Window
from tests.unit.job.job_rig import JobRig, said

ROOM = Room(host_cpus=(4.0, 8.0), remote_cpus=(3.0, 3.0, 16.0))


def placing(**options: Any) -> Placing:
    settings: dict[str, Any] = {"window_batches": 10, "window_s": 1e9, **options}
    return begin(AutoWorkers(**settings), ROOM, cpus_per_worker=2.0, visitation="exactly_once", trainers=1)


class Job:
    """A trainer that takes 0.1 s for a step of its own."""

    def __init__(self, placing: Placing) -> None:
        self.placing, self.totals = placing, StepTotals()

    def window(self, running: Deployment, batch_time: float, awaited: int = 0) -> Decision | None:
        """Run for one window and return the decision."""
        self.placing.report(0, self.totals)
        for _ in range(10):
            self.totals = self.totals.step(batch_time, batch_time - 0.1, 0)
        self.placing.report(0, self.totals)
        step = self.placing.decide(running, self.totals.seconds, awaited)
        return None if step is None else step.decision

    def decision(self, running: Deployment, batch_time: float, awaited: int = 0) -> Decision:
        """Run for one window that ends in a decision."""
        decision = self.window(running, batch_time, awaited)
        assert decision is not None
        return decision


def test_bounds_that_are_left_open_follow_from_the_nodes() -> None:
    """Workers of two CPUs: 2 + 4 fit on the hosts, 1 + 1 + 8 on the others (not 11: a worker is not divided)."""
    limits = placing().policy.limits
    assert (limits.max_local, limits.max_remote) == (6, 10)
    limits = placing(max_local=1, max_remote=30).policy.limits
    assert (limits.max_local, limits.max_remote) == (1, 30)
    assert fitting([0.5, 1.0], 2.0) == 0
    lonely = begin(AutoWorkers(), Room((1.0,), ()), 2.0, "exactly_once", 1).policy
    assert (lonely.limits.max_local, lonely.limits.max_remote, lonely.start) == (1, 0, Deployment(1, 0))


def test_while_workers_may_still_come_the_policy_is_not_asked() -> None:
    job = Job(placing(max_remote=0))
    target = job.decision(Deployment(1, 0), 0.4).target
    assert target.local > 1
    for _ in range(50):
        decision = job.decision(Deployment(1, 0), 0.4, awaited=3)
        assert (decision.phase, decision.target) == ("discarded", target)
        assert "3 of its workers are still awaited" in decision.reason
    phases = [job.decision(Deployment(1, 0), 0.4).phase for _ in range(2)]
    assert phases == ["discarded", "settle_for_less"]
    assert job.placing.target == Deployment(1, 0)


def test_a_search_that_was_stopped_decides_nothing() -> None:
    job = Job(placing())
    job.decision(Deployment(1, 0), 0.4)
    job.placing.stopped = True
    assert job.window(Deployment(1, 0), 0.4) is None
    assert len(job.placing.timeline) == 1


def test_remote_workers_are_waited_for_longer_than_local_ones() -> None:
    assert (placing().patience("remote"), placing().patience("local")) == (180.0, 30.0)
    assert placing(patience_s=5.0).patience("local") == 5.0


def test_the_timeline_is_bounded() -> None:
    job = Job(placing(max_local=1, max_remote=0))
    for _ in range(20):
        job.decision(Deployment(1, 0), 0.1)
    assert len(job.placing.timeline) == 20 and job.placing.timeline.maxlen == MOST_STEPS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AutoWorkers(max_local=1, min_local=2), "min_local must be from 0 to max_local, but got 2 and 1"),
        (lambda: AutoWorkers(min_remote=-1), "min_remote must be from 0 to max_remote"),
        (lambda: AutoWorkers(max_local=0, max_remote=0), "leave no worker"),
        (lambda: AutoWorkers(threshold=float("nan")), "threshold must be a number, but got nan"),
        (lambda: AutoWorkers(window_s=0), "window_s must be positive, but got 0"),
        (lambda: AutoWorkers(patience_s=float("nan")), "patience_s must be a number, but got nan"),
        (lambda: AutoWorkers(max_per_hour=10.0), "max_per_hour=10.0 is a budget in \\$ and needs prices"),
        (lambda: AutoWorkers(max_per_hour=float("nan"), prices=GCP_TPU_V2), "max_per_hour must be .* but got nan"),
        (lambda: AutoWorkers(window_batches=1), "window_batches must be at least 2, but got 1"),
        (lambda: IterOptions(sharding="static", workers=AutoWorkers()), "deals the data to fixed workers"),
    ],
)
def test_nonsense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()


def first_steps(placing: Placing, steps: int, own_s: float, waited_s: float) -> PlacementStep | None:
    """Let a trainer take its first steps beside one worker."""
    totals = StepTotals()
    placing.report(0, totals)
    for _ in range(steps):
        totals = totals.step(own_s + waited_s, waited_s, 0)
    placing.report(0, totals)
    return placing.warm_start(Deployment(1, 0), totals.seconds)


def test_a_sample_and_the_first_steps_say_how_many_workers_to_begin_with() -> None:
    """A batch takes a worker 1 s, and the trainer 0.2 s: five workers, of which the nodes hold as many locally."""
    job = placing()
    assert job.policy.start == Deployment(1, 0)
    assert first_steps(job, 5, 0.2, 0.8) is None, "there was no sample"
    job.batch_s = 1.0
    assert first_steps(job, 2, 0.2, 0.8) is None, "too few steps"
    step = first_steps(job, 3, 0.2, 0.8)
    assert step is not None and step.decision.target == Deployment(5, 0) == job.target
    assert (step.decision.phase, step.window.touched) == ("warm_start", True)
    assert "a batch takes a worker 1 s by AutoOrder's sample, and the trainer 0.2 s" in step.decision.reason
    assert first_steps(job, 3, 0.2, 0.8) is None, "once"


def test_what_a_sample_lets_expect_is_measured_first_and_corrected() -> None:
    job = Job(placing(max_remote=0))
    job.placing.batch_s = 0.5
    step = first_steps(job.placing, 3, 0.1, 0.4)
    assert step is not None and step.decision.target == Deployment(5, 0)
    decision = job.decision(Deployment(5, 0), 0.1001)
    assert "5 local + 0 remote" in decision.reason and decision.target.local <= 5


def test_without_a_need_for_more_workers_a_sample_changes_nothing() -> None:
    job = placing()
    job.batch_s = 0.1
    assert first_steps(job, 3, 0.2, 0.0) is None
    assert job.batch_s == 0.1, "later steps may tell more, until the first window has ended"
    ended = Job(job)
    ended.decision(Deployment(1, 0), 0.1)
    assert job.batch_s is None


class Failing(AutoPlacement):
    """Fails on every window."""

    def decide(self, window: Window, deployment: Deployment) -> Decision:
        raise ZeroDivisionError(f"float division by zero beside {deployment}")


def test_a_policy_that_fails_is_told_of_once_and_counted() -> None:
    rig = JobRig(LedgerShape(batch_size=10), AutoWorkers(max_remote=0, window_batches=10))
    (worker,) = rig.begin()
    placing = rig.job.placement.placing
    assert placing is not None
    placing.policy = Failing(max_local=4, max_remote=0)
    totals, logged = StepTotals(), list[str]()
    for _ in range(4):
        logged.append(said(rig.report(progress=TrainerProgress(steps=totals))))
        for _ in range(10):
            totals = totals.step(0.4, 0.3, 0)
    told = [event.text for event in rig.job.told if "failed" in event.text]
    assert len(told) == 1 and "the policy failed on Window(" in told[0]
    assert "ZeroDivisionError: float division by zero beside 1 local + 0 remote" in told[0]
    assert sum("AutoPlacement: keep 1 local + 0 remote" in text for text in logged) == 1
    phases = [step.decision.phase for step in rig.job.facts(rig.now).timeline]
    assert phases.count("failed") == placing.failures == 3
    assert rig.job.fleet.wanted == Deployment(1, 0) and worker in rig.job.fleet.workers and rig.job.error is None


@pytest.mark.parametrize("early", [True, False])
def test_the_sample_of_the_trainer_reaches_autoplacement_whenever_it_ends(early: bool) -> None:
    """It runs while the nodes are looked for and workers start."""
    rig = JobRig(LedgerShape(batch_size=10), AutoWorkers(max_remote=0), ordered=False)
    known = events.OrderKnown(changed=False, row_s=0.05)
    if early:
        rig.handle(known)
    rig.come()
    if not early:
        rig.handle(known)
    placing = rig.job.placement.placing
    assert placing is not None and placing.batch_s == 0.5
