"""What trainers are told: everything once, nothing twice, and the same orders where they are due the same."""

from __future__ import annotations

from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.order_book import OrderBook
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.plan.windows import Deployment
from tests.unit.job.job_rig import elements

WANTED = Deployment(2, 0)


def ledger_of(trainers: int = 3, workers: int = 0) -> Ledger:
    ledger = Ledger(LedgerShape(world_size=trainers, epochs=None))
    ledger.add_splits(0, [Split(index) for index in range(8)])
    ledger.end_listing(0)
    for number in range(workers):
        ledger.join(f"w{number}")
    return ledger


def renew(
    book: OrderBook, ledger: Ledger, *, error: Exception | None = None, waits: tuple[str, ...] = ()
) -> tuple[bool, bool]:
    """Look at everything anew, for all ranks."""
    return book.renew(ledger, list(range(ledger.shape.world_size)), error, WANTED, waits)


def test_nothing_is_renewed_without_a_change_and_each_change_has_a_larger_number() -> None:
    book, ledger = OrderBook(), ledger_of(workers=1)
    ledger.next_assignment("w0")
    ledger.take("w0")
    assert renew(book, ledger)[0]
    before = book.number
    assert renew(book, ledger) == (False, False) and book.number == before
    ledger.lost("w0")
    assert renew(book, ledger) == (True, True) and book.number == before + 1
    assert renew(book, ledger) == (False, False)


def test_that_more_may_be_used_is_told_apart_from_all_other_changes() -> None:
    book, ledger = OrderBook(), ledger_of(trainers=2, workers=1)
    ledger.next_assignment("w0")
    lease = ledger.take("w0")
    assert isinstance(lease, Lease)
    renew(book, ledger)
    for rank in range(2):
        assert book.orders(rank, 0).allowed == 0
        ledger.acked(rank, "w0", 0, {lease.key: [elements(rank)]})
    assert renew(book, ledger) == (True, False)
    assert book.orders(0, 0).allowed == 1
    assert renew(book, ledger, waits=("the listing",)) == (True, True)


def test_trainers_that_are_due_the_same_get_the_very_same_orders() -> None:
    book, ledger = OrderBook(), ledger_of(workers=2)
    book.add_worker("w0")
    renew(book, ledger)
    assert book.orders(0, 1) is book.orders(2, 1)


def test_every_trainer_meets_each_worker_that_runs_once() -> None:
    book, ledger = OrderBook(), ledger_of()
    for number in range(3):
        book.add_worker(f"w{number}")
    book.remove_worker("w1")
    renew(book, ledger)
    first = book.orders(0, 0)
    assert (first.newcomers, first.running, first.met) == (("w0", "w2"), 2, 3)
    book.add_worker("w3")
    assert renew(book, ledger) == (True, True)
    second = book.orders(0, first.met)
    assert second.newcomers == ("w3",) and book.orders(0, second.met).newcomers == ()
    assert book.orders(2, 0).newcomers == ("w0", "w2", "w3")
