"""What trainers are told: everything once, nothing twice, and the same orders where they are due the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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


def test_only_ranks_that_owe_an_answer_are_asked_to_settle() -> None:
    book, ledger = OrderBook(), ledger_of(workers=2)
    ledger.next_assignment("w0")
    ledger.take("w0")
    ledger.lost("w0")
    ledger.settled(1, "w0")
    renew(book, ledger)
    assert [book.orders(rank, 0).settle for rank in range(3)] == [("w0",), (), ("w0",)]


def test_trainers_that_are_due_the_same_get_the_very_same_orders() -> None:
    book, ledger = OrderBook(), ledger_of(workers=2)
    book.add_worker("w0")
    renew(book, ledger)
    assert book.orders(0, 1) is book.orders(2, 1)


@given(st.lists(st.tuples(st.sampled_from(["comes", "goes", "asks"]), st.integers(0, 3)), max_size=60))
def test_every_trainer_learns_of_every_running_worker(steps: list[tuple[str, int]]) -> None:
    """Whatever comes and goes between its questions, a trainer has met all workers that run, and none twice."""
    book, ledger = OrderBook(), ledger_of(trainers=4)
    running: list[int] = []
    known: dict[int, list[str]] = {rank: [] for rank in range(4)}
    met = dict.fromkeys(known, 0)
    made = 0

    def ask(rank: int) -> None:
        renew(book, ledger)
        orders = book.orders(rank, met[rank])
        known[rank] += orders.newcomers
        met[rank] = orders.met

    for what, number in steps:
        if what == "comes":
            book.add_worker(f"w{made}")
            running.append(made)
            made += 1
        elif what == "goes" and running:
            book.remove_worker(f"w{running.pop(number % len(running))}")
        elif what == "asks":
            ask(number)
    for rank, names in known.items():
        ask(rank)
        assert len(set(names)) == len(names)
        assert {f"w{number}" for number in running} <= set(names)
