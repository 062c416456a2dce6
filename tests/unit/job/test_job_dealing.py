"""What fills no batch at the end of an epoch is dealt to all workers, a batch each, and none of it twice."""

from __future__ import annotations

from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.plan.splits import Lease
from tests.unit.job.test_job_ledger import element, ledger_of, take


def test_what_several_workers_return_is_made_into_batches_by_as_many_at_a_time() -> None:
    names = [f"w{number}" for number in range(4)]
    ledger = ledger_of(LedgerShape(batch_size=4), *names, splits=4)
    leases = {}
    for name in names:
        ledger.next_assignment(name)
        leases[name] = take(ledger, name)
        ledger.ended(name, 0, leases[name].key, 3)
    for name in names:
        assert ledger.take(name) == "none"
    given_out: dict[str, Lease] = {}
    for name in names:
        assert ledger.assignment_ended(name, {leases[name].key: [element(0, 3)]}) == "return"
        if isinstance(assigned := ledger.next_assignment(name), Assignment):
            assert assigned.rank is None
            given_out[name] = take(ledger, name)
            taken = [given_out[name]]
            while isinstance(more := ledger.take(name), Lease):
                taken.append(more)
            for lease in taken:
                ledger.acked(0, name, 0, {lease.key: lease.spans}, batches=lease is taken[0])
            ledger.assignment_ended(name, {})
    assert list(given_out) == ["w1", "w2", "w3"], "of 3, 6, 9 and 12 elements: one has four of them each time"
    assert ledger.finished and ledger.counts == [0]


def test_what_a_dealt_batch_gives_back_is_not_dealt_again() -> None:
    ledger = ledger_of(LedgerShape(batch_size=2), "w", "x", splits=2)
    ledger.next_assignment("w"), ledger.next_assignment("x")
    lease, held = take(ledger, "w"), take(ledger, "x")
    ledger.ended("w", 0, lease.key, 2)
    assert ledger.assignment_ended("w", {lease.key: [element(0, 2)]}) == "return"
    assert isinstance(ledger.next_assignment("w"), Assignment)
    assert take(ledger, "w").spans == (element(0, 2),)
    assert ledger.assignment_ended("w", {lease.key: [element(0, 2)]}) == "return", "rows that fill no batch in it"
    assert ledger.next_assignment("w") == "wait", "for the end of the epoch"
    ledger.ended("x", 0, held.key, 0)
    assert ledger.assignment_ended("x", {}) == "return"
    last = ledger.next_assignment("w")
    assert isinstance(last, Assignment) and last.rank == 0
    assert take(ledger, "w").spans == (element(0, 2),)
    assert ledger.assignment_ended("w", {lease.key: [element(0, 2)]}) == "flush"
