"""Behind which batches a job lets a whole plan begin, and what it says of those that are made, or read, again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.job import events
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import EndData, LeftOutElement
from pecan_ray.job.resume_point import BranchPoint, ResumePoint
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Origin, Split
from tests.unit.job.job_rig import JobRig

SHAPE = LedgerShape(serial=True, counts=True, world_size=2, epochs=2)
START = ResumePoint(0, (BranchPoint(),), made=5)
LONG = tuple(Split(index, elements=10) for index in range(4))


def job_of(shape: LedgerShape, start: ResumePoint | None) -> tuple[JobRig, str]:
    rig = JobRig(shape, start=start, on_error="skip", error_budget=1.0)
    (worker,) = rig.come()
    rig.place(worker)
    rig.handle(events.SplitsListed(0, LONG))
    rig.handle(events.ListingEnded(0))
    return rig, worker


def said(rig: JobRig) -> list[str]:
    return [one.text for one in rig.job.told if one.kind == "state"]


def test_a_plan_that_counts_begins_behind_what_all_ranks_have() -> None:
    rig, worker = job_of(SHAPE, START)
    assert rig.assign(worker) == Assignment(0, delivered=(3, 2), again=True, behind=5)
    (text,) = said(rig)
    assert text.endswith(
        "the 5 batches of epoch 0 that were used before are not made again: it begins behind the "
        "elements that went into them"
    )


@pytest.mark.parametrize(
    ("shape", "start"),
    [(replace(SHAPE, counts=False), START), (SHAPE, replace(START, bad=(7,)))],
    ids=["it does not count", "bad elements were left out"],
)
def test_another_plan_and_one_with_bad_elements_is_made_again(shape: LedgerShape, start: ResumePoint) -> None:
    rig, worker = job_of(shape, start)
    assert rig.assign(worker) == Assignment(0, delivered=(3, 2), again=True, behind=0)
    (text,) = said(rig)
    assert text.endswith("the 5 batches of epoch 0 that were used before are made again, and left out")


@pytest.mark.parametrize("found", [False, True])
def test_a_bad_element_that_was_found_since_counts_too(found: bool) -> None:
    """The worker that has told of it is lost, and another one takes its place."""
    rig = JobRig(SHAPE, Workers(2), on_error="skip", error_budget=1.0)
    first, second = rig.begin(splits=3)
    assert rig.assign(first).behind == 0
    (lease,) = rig.take(first)
    for rank in range(2):
        rig.acknowledge(first, lease, rank, rank=rank)
    if found:
        bad = LeftOutElement("one", "f", "element 3", "ValueError", origin=Origin(0, 0, 0, 0, 3))
        rig.answer(first, EndData(0, {}, 0, (bad,)))
    rig.handle(events.WorkerLost(first, "process"))
    for rank in range(2):
        rig.report(rank, settled=(first,))
    assert rig.assign(second).behind == (0 if found else 2)


def test_a_source_that_does_not_know_its_lengths_is_said_once_and_only_where_it_is_read_again() -> None:
    unknown = tuple(Split(index) for index in range(2))
    for start, expected in ((START, 1), (None, 0), (replace(START, bad=(7,)), 0)):
        rig = JobRig(SHAPE, start=start)
        rig.come()
        rig.handle(events.SplitsListed(0, unknown))
        rig.handle(events.SplitsListed(0, tuple(Split(index) for index in range(2, 4))))
        rig.handle(events.ListingEnded(0))
        told = [text for text in said(rig) if "source 0 does not tell how many elements its splits hold" in text]
        assert len(told) == expected
