"""What workers ask: a repetition is answered as before and changes nothing, and a fenced worker is told to stop."""

from __future__ import annotations

from pecan_ray.job import events
from pecan_ray.job.instructions import Answer
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import (
    AskAssignment,
    AskLeases,
    Assigned,
)
from pecan_ray.job.questions import CALLS_PER_SECOND, LEAST_LOT_S
from pecan_ray.job.worker_calls import WorkerCalls
from pecan_ray.options import Workers
from tests.unit.job.job_rig import JobRig, of_kind


def asked(number: int, channel: str = "main", worker: str = "w") -> events.WorkerAsked:
    return events.WorkerAsked(worker, channel, number, AskAssignment())


def test_a_repetition_is_answered_as_before_and_what_a_later_question_has_overtaken_is_over() -> None:
    calls = WorkerCalls()
    assert calls.arrived(asked(1)) == asked(1)
    calls.wait(asked(1))
    assert calls.arrived(asked(1)) is None, "it waits"
    assert list(calls.waiting()) == [asked(1)] and len(calls) == 1
    answer = calls.answer(asked(1), "stop")
    assert answer == Answer("w", "main", 1, "stop") and len(calls) == 0
    assert calls.arrived(asked(1)) == answer
    assert calls.arrived(asked(2)) == asked(2)
    calls.wait(asked(2))
    assert calls.arrived(asked(3)) == asked(3) and len(calls) == 0
    assert calls.arrived(asked(2)) is None


def test_a_question_that_waits_is_answered_when_there_is_an_answer() -> None:
    rig = JobRig()
    (worker,) = rig.come()
    rig.place(worker)
    rig.assign(worker)
    assert of_kind(Answer, rig.ask(worker, AskLeases(0, 0, 4))) == []
    assert of_kind(Answer, rig.handle(events.SplitsListed(0, ()))) == [], "an empty page is no answer"
    done = rig.handle(events.ListingEnded(0))
    assert [one.reply for one in of_kind(Answer, done)] == [()]


def test_nobody_begins_before_the_order_of_operators_is_known() -> None:
    rig = JobRig(ordered=False)
    (worker,) = rig.begin()
    assert of_kind(Answer, rig.ask(worker, AskAssignment())) == []
    (answer,) = of_kind(Answer, rig.handle(events.OrderKnown(changed=True)))
    assert answer.reply == Assigned(Assignment(0), plan_version=1, lot_s=LEAST_LOT_S)
    rig.handle(events.OrderKnown(changed=True))
    assert rig.assign(worker) == Assignment(0)


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
    assert "resize goes first" in [event.text for event in rig.job.told]


def test_with_many_workers_each_asks_for_more_at_a_time() -> None:
    rig = JobRig(workers=Workers(0, 200))
    workers = rig.come(remote=(200.0,))
    for worker in workers:
        rig.place(worker, "far")
    rig.list_splits(10)
    reply = rig.answer(workers[0], AskAssignment())
    assert isinstance(reply, Assigned) and reply.lot_s == 200 / CALLS_PER_SECOND
