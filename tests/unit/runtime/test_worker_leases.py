"""What a worker fetches ahead: what its leases read, and what the next epoch begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pecan_ray.job.ledger_shape import Assignment
from pecan_ray.job.messages import AskLeases, Assigned, NoMoreLeases, Reply
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.runtime.worker_questions import WorkerLeases


class Answers:
    """A job that answers as it was told to, whatever is asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    def ask(self, channel: str, question: object) -> object:
        return question

    def answer(self, asked: object) -> Reply:
        return self.replies.pop(0)


class Questions(Answers):
    """Which notes the questions."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__(*replies)
        self.asked: list[AskLeases] = []

    def ask(self, channel: str, question: object) -> object:
        assert isinstance(question, AskLeases)
        self.asked.append(question)
        return question


def test_none_beside_others_is_no_end() -> None:
    one, two, three = (Lease(0, Split(index)) for index in range(3))
    asking = Questions((one, two), (), (), (three,), ())
    leases = WorkerLeases(cast(Any, asking), ahead=False)
    leases.begin(Assigned(Assignment(0)))
    assert [leases.take_beside(0, reading, 4) for reading in (0, 1, 2)] == [one, two, None]
    assert leases.take_beside(0, 1, 4) is None
    assert [leases.take_beside(0, 0, 4), leases.take_beside(0, 0, 4)] == [three, None]
    assert [(asked.streams, asked.reading, asked.most) for asked in asking.asked] == [
        *((4, 0, 4), (4, 2, 2), (4, 1, 3)),
        *((4, 0, 4), (4, 0, 4)),
    ]


def test_in_one_sequence_leases_beside_others_are_waited_for() -> None:
    asking = Questions((Lease(0, Split(0)),), ())
    leases = WorkerLeases(cast(Any, asking), ahead=False, one_sequence=True)
    leases.begin(Assigned(Assignment(0)))
    assert leases.take_beside(0, 0, 4) is not None and leases.take_beside(0, 1, 4) is None
    assert {(asked.streams, asked.reading) for asked in asking.asked} == {(1, 0)}


def test_what_the_next_epoch_begins_with_is_fetched_at_once_and_kept_when_that_epoch_begins() -> None:
    first, second, third = (Split(index, path=f"s3://bucket/{index}") for index in range(3))
    fetched: list[tuple[int, list[Split]]] = []

    def coming(branch: int, splits: Sequence[Split]) -> None:
        fetched.append((branch, list(splits)))

    asking = cast(Any, Answers((Lease(0, first),), NoMoreLeases((third, second)), ()))
    leases = WorkerLeases(asking, ahead=False, coming=coming)
    leases.begin(Assigned(Assignment(0)))
    assert leases.take() is not None and leases.take() is None
    assert fetched == [(0, [first]), (0, [third, second])]
    leases.begin(Assigned(Assignment(0)))  # with what other workers have returned: the next epoch is still to come
    assert leases.take() is None
    del fetched[:]
    leases.begin(Assigned(Assignment(1)))
    assert fetched == [(0, [third, second])], "all that is held was just allowed to go"
    del fetched[:]
    leases.begin(Assigned(Assignment(2)))
    assert not fetched
