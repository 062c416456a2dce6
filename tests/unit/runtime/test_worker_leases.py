"""What a worker fetches ahead: what its leases read, and what the next epoch begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pecan_ray.job.ledger_shape import Assignment
from pecan_ray.job.messages import Assigned, NoMoreLeases, Reply
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
