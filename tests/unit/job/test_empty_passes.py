"""Passes without end of which no trainer gets anything end the job, and nothing else looks like them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pecan_ray import PecanPipeline
from pecan_ray.errors import PlanError
from pecan_ray.job.empty_pass_watchdog import EmptyPassWatchdog
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import EndData
from pecan_ray.job.resume_point import BranchPoint, Cursor, ResumePoint
from pecan_ray.options import Workers
from pecan_ray.plan.empty_pass import MOST_EMPTY_PASSES, EmptyPasses, endless_passes
from pecan_ray.plan.splits import END, Lease, Split
from pecan_ray.sources import Arrays
from tests.unit.job.job_rig import JobRig, elements

SPLITS = 3
ENDLESS = LedgerShape(num_passes=None, batch_size=2)


def none(element: Any) -> bool:
    return False


def at_random(element: Any, rng: Any) -> bool:
    return bool(rng.random() < 0.1)


def empty_passes(keep: Any = none) -> EmptyPasses:
    found = endless_passes(PecanPipeline(Arrays(i=np.arange(9))).filter(keep, name="keep").repeat().batch(2).plan)
    assert found is not None
    return found


def rig_of(workers: int = 1, keep: Any = none) -> tuple[JobRig, list[str]]:
    rig = JobRig(ENDLESS, Workers(workers), empty_passes=empty_passes(keep))
    names = rig.begin(SPLITS)
    for name in names:
        rig.assign(name)
    return rig, names


def drop(rig: JobRig, worker: str, lease: Lease) -> None:
    """Let a worker say that nothing of a split is kept."""
    rig.ask(worker, EndData(lease.epoch, {lease.key: [(0, END)]}, 0, ()))


def drop_splits(rig: JobRig, worker: str, splits: int) -> None:
    for _ in range(splits):
        drop(rig, worker, rig.take(worker)[0])


def drop_passes(rig: JobRig, worker: str, passes: int) -> None:
    """Let a worker go through so many passes, beginning at the first split of one, and into the next one."""
    drop_splits(rig, worker, passes * SPLITS)
    if rig.job.error is None and (lease := rig.take(worker)):
        drop(rig, worker, lease[0])


def test_a_pass_of_which_nothing_comes_ends_the_job_and_names_the_operator() -> None:
    rig, (worker,) = rig_of()
    drop_splits(rig, worker, SPLITS)
    assert rig.job.error is None, "it may be the last one of a listing: the next pass has not begun"
    rig.take(worker)
    with pytest.raises(PlanError, match=r"repeat has no end, and a whole pass .*: keep \(filter\) lets no element"):
        raise rig.job.error or AssertionError


def test_a_slow_worker_and_what_is_held_back_for_a_batch_make_no_pass_look_empty() -> None:
    rig, (slow, fast) = rig_of(workers=2)
    (first,) = rig.take(slow)
    drop_splits(rig, fast, 5 * SPLITS)
    assert rig.job.error is None
    drop(rig, slow, first)
    assert rig.job.error is not None
    rig, (worker,) = rig_of()
    held = [lease for _ in range(2 * SPLITS) for lease in rig.take(worker)]
    for lease in held:
        rig.ask(worker, EndData(lease.epoch, {lease.key: [(elements(1)[0], END)]}, 0, ()))
    assert rig.job.error is None, "the first element of each split is in a batch to come"
    for lease in held:
        rig.acknowledge(worker, lease, 0)
    drop_passes(rig, worker, 3)
    assert rig.job.error is None


def test_once_there_was_an_element_or_may_be_many_passes_in_vain_end_the_job() -> None:
    rig, (worker,) = rig_of()
    (lease,) = rig.take(worker)
    rig.acknowledge(worker, lease, 0, 2)
    drop(rig, worker, lease)
    drop_splits(rig, worker, SPLITS - 1)
    drop_passes(rig, worker, MOST_EMPTY_PASSES - 1)
    assert rig.job.error is None
    drop_passes(rig, worker, 1)
    assert isinstance(rig.job.error, PlanError) and "100 passes one after the other" in rig.job.error.message
    for passes, ends in ((5, False), (MOST_EMPTY_PASSES, True)):
        rig, (worker,) = rig_of(keep=at_random)
        drop_passes(rig, worker, passes)
        assert (rig.job.error is not None) is ends, "a filter that draws may keep nothing for some passes"


def test_a_run_that_goes_on_from_a_state_in_the_middle_does_not_count_from_the_beginning() -> None:
    ledger = Ledger(ENDLESS, ResumePoint(0, (BranchPoint(Cursor(500, 1)),), passes=0))
    ledger.join("worker")
    ledger.add_splits(0, [Split(index) for index in range(SPLITS)])
    ledger.end_listing(0)
    watch = EmptyPassWatchdog(ledger, empty_passes(), continues=True)
    for _ in range(5 * SPLITS):
        lease = ledger.take("worker")
        assert isinstance(lease, Lease) and lease.pass_index >= 500
        ledger.consumed("worker", 0, {lease.key: lease.spans})
        assert watch.too_many() is None
