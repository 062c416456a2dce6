"""Runs of numbered rows: when their order is given up; the simulation shows that it is kept whatever workers do."""

from __future__ import annotations

import pytest

from pecan_ray.job import events
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskLeases, LeftOutElement, UnopenedSplit
from pecan_ray.job.resume_point import BranchPoint, Cursor, Rest, ResumePoint
from pecan_ray.job.row_runs import MOST_VAIN_DEATHS
from pecan_ray.job.row_sequence import RowSequence
from pecan_ray.job.suspicion import CRASHED
from pecan_ray.job.trainer_events import ReceivedBatch
from pecan_ray.options import Workers
from pecan_ray.plan.splits import END, Split
from tests.unit.job.job_rig import JobRig, elements, said


def numbered_job(*lengths: int | None) -> tuple[JobRig, str]:
    """Return a job of numbered rows with two workers, and the first of them, which has an assignment."""
    rig = JobRig(LedgerShape(numbered=True, batch_size=2), Workers(2))
    workers = rig.come()
    for worker in workers:
        rig.place(worker)
    rig.handle(events.SplitsListed(0, tuple(Split(index, elements=one) for index, one in enumerate(lengths))))
    rig.handle(events.ListingEnded(0))
    rig.assign(workers[0])
    return rig, workers[0]


def test_the_order_is_given_up_where_a_split_is_not_counted() -> None:
    rig, worker = numbered_job(2, None)
    assert [lease.row for lease in rig.take(worker)] == [0]
    (lease,) = rig.take(worker)
    assert (lease.split.index, lease.row) == (1, None)
    assert "rows come as workers finish them" in said(rig.done[-1])
    assert rig.job.orders(0).unordered


def test_the_order_is_given_up_where_a_split_is_shorter_than_it_told() -> None:
    rig, worker = numbered_job(4, 4)
    rig.take(worker, 4)
    rig.answer(worker, AskLeases(0, 0, 4, lengths=(((0, 0, 0), 3),)))
    assert "of split 0 4 elements were told, and it holds 3" in rig.job.facts(rig.now).order_given_up


def test_the_order_is_given_up_where_a_worker_cannot_open_a_split() -> None:
    rig, worker = numbered_job(4, 4)
    (lease,) = rig.take(worker, 4)
    error = LeftOutElement("0", "read", "split 0", "it is not there")
    rig.answer(worker, AskLeases(0, 0, 4, unopened=(UnopenedSplit(lease.key, lease.spans, error),)))
    assert f"{worker} cannot open split 0" in rig.job.facts(rig.now).order_given_up


def numbered_ledger(start: ResumePoint | None = None) -> Ledger:
    ledger = Ledger(LedgerShape(numbered=True, batch_size=2, epochs=1), start)
    ledger.add_splits(0, [Split(index, elements=4) for index in range(3)])
    ledger.end_listing(0)
    return ledger


BEHIND = Rest(0, 0, (elements(1),))
"""An element that was not used, before others that were."""


@pytest.mark.parametrize("rests", [(BEHIND, Rest(1, 0, ((elements(3)[0], END),))), (BEHIND,)])
def test_a_state_of_which_rows_behind_others_are_used_cannot_go_on_in_order(rests: tuple[Rest, ...]) -> None:
    ledger = numbered_ledger(ResumePoint(0, (BranchPoint(Cursor(taken=2), rests),)))
    ledger.join("w")
    ledger.next_assignment("w")
    assert "goes on from a state" in ledger.runs.given_up


def test_a_few_deaths_leave_the_order_and_more_of_them_in_a_row_give_it_up() -> None:
    ledger = numbered_ledger()
    for died in range(MOST_VAIN_DEATHS + 1):
        assert not ledger.runs.given_up
        ledger.join(f"w{died}")
        ledger.next_assignment(f"w{died}")
        assert ledger.take_run(f"w{died}", 2)
        ledger.lost(f"w{died}", died=CRASHED)
        ledger.settled(0, f"w{died}")
        assert bool(ledger.runs.given_up) == (died == MOST_VAIN_DEATHS)


def test_batches_that_wait_are_let_go_in_order_when_it_is_given_up_and_dropped_with_their_epoch() -> None:
    sequence = RowSequence()
    late = [ReceivedBatch(row, "w", epoch, {}, 2, 1, row=row) for epoch, row in ((0, 6), (0, 2), (1, 4))]
    assert [sequence.came(batch) for batch in late] == [()] * 3
    assert sequence.leave(1) == [late[1], late[0]]
    assert sequence.give_up() == [late[2]]
    assert sequence.came(late[0]) == (late[0],)
