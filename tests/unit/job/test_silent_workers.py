"""Rows in order do not wait for a worker that says nothing: others make what it has."""

from __future__ import annotations

import pytest

from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.slow_head import SlowHead
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, Split
from tests.protocol.scenario import Fault, Scenario, SplitModel
from tests.unit.job.job_histories import played

SILENT_S = 20.0
ELEMENT_S = 0.008
"""Of 256 of them a batch takes two seconds of a worker."""


def longest_wait(kind: str, batch_size: int, workers: int, at: float) -> float:
    """Return the longest time that a loop has waited, behind the first batch, while a worker was silent."""
    one = SplitModel((1,) * (workers * 100))
    trainer = played(
        Scenario(
            sources=((one,) * 8,),
            lengths_known=True,
            numbered=True,
            joined=kind == "joined",
            on_error="raise",
            batch_size=batch_size,
            local=workers,
            cpus=workers,
            element_s=ELEMENT_S,
            steps_s=(0.001,),
            delay_s=0.001,
            prefetch_bytes=1 << 28,
            faults=(Fault(at, "freeze worker", 1, SILENT_S),),
        )
    ).trainers[0]
    return max(trainer.waits[1:])


@pytest.mark.parametrize(
    ("kind", "batch_size", "workers", "at_most_s"),
    [("joined", 32, 4, 2.0), ("joined", 256, 4, 3.0), ("joined", 256, 12, 2.5), ("numbered", 32, 4, 2.5)],
    ids=lambda value: str(value),
)
def test_no_loop_waits_for_a_worker_that_is_silent(kind: str, batch_size: int, workers: int, at_most_s: float) -> None:
    waits = [longest_wait(kind, batch_size, workers, at) for at in (2.0, 4.2, 6.1)]
    assert max(waits) < at_most_s, waits


def ledger_of(*told: int, joined: bool = True) -> Ledger:
    """Return a ledger of splits that tell of so many elements, with two workers that have begun."""
    shape = LedgerShape(in_row_order=True, joined=joined, one_row_each=joined, batch_size=100)
    ledger = Ledger(shape)
    ledger.add_splits(0, [Split(index, elements=elements) for index, elements in enumerate(told)])
    ledger.end_listing(0)
    for worker in ("late", "quick"):
        ledger.join(worker)
        ledger.next_assignment(worker)
    return ledger


def bring(ledger: Ledger, worker: str, lease: Lease, elements: int | None = None) -> None:
    """Let the trainer have what a worker has made of a lease, or of its first elements."""
    spans = lease.spans if elements is None else ((0, elements << OUTPUT_BITS),)
    ledger.ack(0, worker, 0, {lease.key: spans}, rows=elements or elements_in(lease) or 0)


def test_where_rows_are_joined_a_worker_is_late_by_what_it_needs_for_its_run_and_not_for_a_batch() -> None:
    ledger, head, now = ledger_of(1000), SlowHead(), 0.0
    head.look(ledger, 0, now)
    for waited_s in (30.0, 0.5, 0.5):  # for 30 s workers start
        ledger.next_assignment("late")
        (lease,) = ledger.take_run("late", 10) or ()
        now += waited_s
        bring(ledger, "late", lease)
        head.look(ledger, 0, now)
        ledger.assignment_ended("late", {})
    ledger.next_assignment("late")
    assert ledger.take_run("late", 10)
    # A row is brought in 0.01 s by both, so that one of them needs a second for its run, and ten for a batch.
    assert head.look(ledger, 0, now + 1.9) == "" and head.look(ledger, 0, now + 2.1) == "late"


def test_a_worker_is_helped_with_elements_of_which_its_split_did_not_tell() -> None:
    ledger = ledger_of(50, 50)
    (first,) = ledger.take_run("late", 50) or ()
    ledger.next_assignment("quick")
    assert ledger.take_run("quick", 50)
    bring(ledger, "late", first, 50)
    assert ledger.seconds.help(ledger.workers, ledger.rows_in_turn) == "late", "the split may go on"


@pytest.mark.parametrize("joined", [False, True])
def test_an_epoch_ends_without_a_worker_that_has_nothing_of_it(joined: bool) -> None:
    ledger = ledger_of(100, joined=joined)
    while not ledger.finished:
        assert ledger.workers["late"].working, "it has an assignment, and has asked for nothing"
        ledger.next_assignment("quick")
        (lease,) = ledger.take_run("quick", 100) or ()
        bring(ledger, "quick", lease)
