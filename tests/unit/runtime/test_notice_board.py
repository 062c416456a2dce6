"""Trainers that listen for orders are answered, whatever changes while others are being gathered."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pecan_ray.job.messages import LeftOutElement, Orders
from pecan_ray.job.notices import GATHER_PER_TRAINER_S, MANY_TRAINERS
from pecan_ray.runtime.job_tasks import JobTasks
from pecan_ray.runtime.notice_board import NoticeBoard

pytestmark = pytest.mark.usefixtures("each_event_loop")

RANKS = MANY_TRAINERS + 20


def board_of(orders: Callable[[int], Orders]) -> NoticeBoard:
    def failed(doing: str, error: Exception) -> None:
        raise AssertionError(doing) from error

    return NoticeBoard(orders, JobTasks(failed))


async def answered(change: Callable[[NoticeBoard], None], told: set[int]) -> list[int]:
    """Let all ranks listen, change something, and return who was answered with the new orders, in their order."""
    orders = Orders(number=1)
    board = board_of(lambda rank: orders)
    calls = {rank: asyncio.ensure_future(board.listen(rank, 1)) for rank in range(RANKS)}
    await asyncio.sleep(0)
    orders = replace(orders, number=2)
    change(board)
    done: list[int] = []

    def note(rank: int, _: object) -> None:
        done.append(rank)

    for rank, call in calls.items():
        call.add_done_callback(partial(note, rank))
    await asyncio.gather(*(calls[rank] for rank in told))
    for rank in done:
        assert pickle.loads(calls[rank].result())[0].number == 2
    for call in calls.values():
        call.cancel()
    return list(done)


def held_up(*ranks: int) -> Iterator[int]:
    """Yield ranks, after the process has lost its CPU for longer than changes are gathered."""
    time.sleep(2 * GATHER_PER_TRAINER_S * RANKS)
    yield from ranks


def due(board: NoticeBoard) -> None:
    board.tell((3, 5))


def due_for_an_allowance(board: NoticeBoard) -> None:
    board.tell((3, 5), allowance_only=True)


def what_cannot_wait_before_what_can(board: NoticeBoard) -> None:
    board.tell((3,), allowance_only=True)
    board.tell((5,))
    board.tell((7,), allowance_only=True)


def one_has_heard_with_its_report(board: NoticeBoard) -> None:
    board.tell((3, 5))
    assert pickle.loads(board.answer(3))[0].number == 2


def at_once_and_not_later_where_both_are_due(board: NoticeBoard) -> None:
    board.tell((3,), allowance_only=True)
    board.tell((3,))
    board.tell((3,), allowance_only=True)


def the_controller_loses_its_cpu(board: NoticeBoard) -> None:
    for rank in (3, 5, 7):
        board.tell(held_up(rank), allowance_only=True)
    for rank in (11, 13):
        board.tell(held_up(rank))
    board.tell((9,))


@pytest.mark.parametrize(
    ("change", "told", "later"),
    [
        (due, {3, 5}, set()),
        (due_for_an_allowance, {3, 5}, set()),
        (what_cannot_wait_before_what_can, {5}, {3, 7}),
        (one_has_heard_with_its_report, {5}, set()),
        (at_once_and_not_later_where_both_are_due, {3}, set()),
        (the_controller_loses_its_cpu, {3, 5, 7, 9, 11, 13}, set()),
    ],
)
def test_those_that_are_due_are_answered_and_no_others(
    change: Callable[[NoticeBoard], None], told: set[int], later: set[int]
) -> None:
    """`later`: those that are due after a while, which may be over on a busy machine."""
    done = asyncio.run(answered(change, told))
    assert {*done[: len(told)]} == told and {*done} <= told | later, done


def test_a_rank_that_is_due_before_it_listens_is_answered_at_once() -> None:
    async def late() -> set[int]:
        board = board_of(lambda rank: Orders(number=2))
        board.tell((3,), allowance_only=True)
        await asyncio.wait_for(board.listen(3, 1), 60)
        return {3}

    assert asyncio.run(late()) == {3}


BAD = LeftOutElement("split 0, element 3", "decode", "a.png", "not an image")


@pytest.mark.parametrize(
    "own",
    [{"quarantine": (BAD,), "quarantined": 2}, {"settle": ("local-1",)}, {"keep": 3}, {"newcomers": ("local-1",)}],
)
def test_each_rank_is_told_its_own_whoever_asks_first(own: dict[str, Any]) -> None:
    orders = [replace(Orders(number=2), **own), Orders(number=2)]
    for first in range(2):
        board = board_of(lambda rank: orders[rank])
        for rank in (first, 1 - first, first):
            assert pickle.loads(board.answer(rank))[0] == orders[rank]


def test_ranks_that_are_told_the_same_are_sent_the_same_bytes() -> None:
    board = board_of(lambda rank: Orders(number=2, quarantine=(BAD,)))
    assert board.answer(0) is board.answer(1)
