"""What workers ask: a repetition is answered as before and changes nothing, and a fenced worker is told to stop."""

from __future__ import annotations

from pecan_ray.job import events
from pecan_ray.job.job_requests import CALLS_PER_SECOND
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskAssignment, Assigned
from pecan_ray.options import Workers
from tests.unit.job.job_rig import JobRig


def test_a_new_plan_is_for_epochs_that_have_not_begun() -> None:
    rig = JobRig(LedgerShape(epochs=2), Workers(2))
    first, second = rig.begin(splits=2)
    rig.assign(first)
    rig.handle(events.PlanChanged("resize goes first"))
    reply = rig.answer(second, AskAssignment())
    assert isinstance(reply, Assigned) and reply.plan_version == 0
    for worker in (first, second):
        leases = list(rig.leases(worker))
        for lease in leases:
            rig.acknowledge(worker, lease, 0)
        rig.end(worker, lengths=tuple((lease.key, 1) for lease in leases))
    reply = rig.answer(first, AskAssignment())
    assert isinstance(reply, Assigned) and (reply.assignment.epoch, reply.plan_version) == (1, 1)
    rig.handle(events.PlanChanged("and back"))
    assert [event.text for event in rig.job.told if event.kind == "reorder"] == [
        "resize goes first; it is run from epoch 1 on (the first one is 0)",
        "and back; no epoch of this job is left to run it, but later jobs do",
    ]


def test_with_many_workers_each_asks_for_more_at_a_time() -> None:
    rig = JobRig(workers=Workers(0, 200))
    workers = rig.come(remote=(200.0,))
    for worker in workers:
        rig.place(worker, "far")
    rig.list_splits(10)
    reply = rig.answer(workers[0], AskAssignment())
    assert isinstance(reply, Assigned) and reply.lot_s == 200 / CALLS_PER_SECOND
