"""What clients are told: everything once, nothing twice, and the same bytes where they are due the same."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import ClusterError
from pecan_ray.plan.splits import Split
from pecan_ray.runtime.messages import Orders, WorkerInfo
from pecan_ray.runtime.notices import Notices
from pecan_ray.sampling.ledger import JobShape, Ledger

WANTED = {"local": 2, "remote": 0}


def ledger(trainers: int = 3, workers: int = 0) -> Ledger:
    made = Ledger(JobShape(world_size=trainers, epochs=None))
    made.add_splits(0, [Split(index) for index in range(8)])
    made.end_listing(0)
    for number in range(workers):
        made.join(f"w{number}")
    return made


def info(number: int) -> WorkerInfo:
    return WorkerInfo(f"w{number}", "node", number, "local", None)


def told(notices: Notices, rank: int, met: int) -> Orders:
    orders = pickle.loads(notices.pickled(rank, met))
    assert isinstance(orders, Orders)
    return orders


def names(orders: Orders) -> list[str]:
    return [pickle.loads(worker).name for worker in orders.newcomers]


def test_a_client_meets_each_worker_once() -> None:
    notices, books = Notices(), ledger()
    notices.meet(info(0))
    notices.renew(books, range(3), None, WANTED)
    first = told(notices, 0, 0)
    notices.meet(info(1))
    assert names(told(notices, 1, 0)) == ["w0"], "a worker is told of with the orders that count it"
    assert notices.renew(books, range(3), None, WANTED)
    second = told(notices, 0, first.met)
    assert (names(first), names(second), second.running) == (["w0"], ["w1"], 2)
    assert names(told(notices, 2, 0)) == ["w0", "w1"]


def test_a_worker_that_has_gone_is_not_met() -> None:
    notices, books = Notices(), ledger()
    for number in range(3):
        notices.meet(info(number))
    notices.part("w1")
    notices.renew(books, range(3), None, WANTED)
    assert names(told(notices, 0, 0)) == ["w0", "w2"]
    assert (told(notices, 0, 0).running, told(notices, 0, 0).met) == (2, 3)


def test_nothing_is_renewed_without_a_change() -> None:
    notices, books = Notices(), ledger(workers=1)
    assert notices.renew(books, range(3), None, WANTED)
    assert not notices.renew(books, range(3), None, WANTED)
    books.lost("w0")
    assert notices.renew(books, range(3), None, WANTED)
    assert not notices.renew(books, range(3), None, WANTED)


def test_only_ranks_that_owe_an_answer_are_asked_to_settle() -> None:
    notices, books = Notices(), ledger(workers=2)
    books.next_stretch("w0")
    books.take("w0")
    books.lost("w0")
    books.settled(1, "w0")
    notices.renew(books, range(3), None, WANTED)
    assert [told(notices, rank, 0).settle for rank in range(3)] == [("w0",), (), ("w0",)]
    assert notices.pickled(0, 0) is notices.pickled(2, 0), "pickled once for both"


def test_richer_ranks_are_told_what_to_keep() -> None:
    notices, books = Notices(), Ledger(JobShape(world_size=2))
    books.add_splits(0, [Split(0)])
    books.end_listing(0)
    books.join("w0")
    books.next_stretch("w0")
    lease = books.take("w0")
    assert not isinstance(lease, str)
    books.ended("w0", lease.key, 3)
    for rank, element in ((0, 0), (1, 1), (0, 2)):
        books.acked(rank, "w0", {lease.key: [(element << 32, (element + 1) << 32)]})
    books.stretch_ended("w0", {})
    notices.renew(books, range(2), None, WANTED)
    assert [told(notices, rank, 0).keep for rank in range(2)] == [1, None]


def test_an_error_reaches_the_client_with_its_type() -> None:
    notices = Notices()
    notices.renew(ledger(), range(3), ClusterError("gone"), WANTED)
    error = told(notices, 0, 0).error
    assert isinstance(error, ClusterError) and "gone" in str(error)


@given(st.lists(st.tuples(st.sampled_from(["meet", "part", "ask"]), st.integers(0, 3)), max_size=60))
def test_every_client_learns_of_every_running_worker(steps: list[tuple[str, int]]) -> None:
    """Whatever comes and goes between its questions, a client has met all workers that run, and none twice."""
    notices, books = Notices(), ledger(trainers=4)
    running: list[int] = []
    known: dict[int, list[str]] = {rank: [] for rank in range(4)}
    met = dict.fromkeys(known, 0)
    made = 0

    def ask(rank: int) -> None:
        notices.renew(books, known, None, WANTED)
        orders = told(notices, rank, met[rank])
        known[rank] += names(orders)
        met[rank] = orders.met

    for what, number in steps:
        if what == "meet":
            notices.meet(info(made))
            running.append(made)
            made += 1
        elif what == "part" and running:
            notices.part(f"w{running.pop(number % len(running))}")
        elif what == "ask":
            ask(number)
    for rank, names_known in known.items():
        ask(rank)
        assert len(set(names_known)) == len(names_known)
        assert {f"w{number}" for number in running} <= set(names_known)
