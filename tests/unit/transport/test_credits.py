"""Credits: one for each that waits, before or after it waits, and none at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pecan_ray.transport.credits import Credits
from tests.ray.waiting import until


def waiting(credits: Credits, answers: list[bool], wanted: Callable[[], bool] = lambda: True) -> threading.Thread:
    """Wait for a credit in a thread of its own."""
    thread = threading.Thread(target=lambda: answers.append(credits.wait(wanted)))
    thread.start()
    return thread


def test_as_many_go_on_as_there_are_credits_and_at_the_end_nobody_waits() -> None:
    credits = Credits()
    answers: list[bool] = []
    credits.add(1)
    threads = [waiting(credits, answers) for _ in range(5)]
    credits.add(2)
    until(lambda: len(answers) == 3, "credits were lost")
    until(lambda: sum(thread.is_alive() for thread in threads) == 2, "others wait, or go on without a credit")
    assert len(answers) == 3
    credits.close()
    for thread in threads:
        thread.join(60)
    assert answers == [True] * 3 + [False] * 2
    credits.add(1)
    assert not credits.wait(), "there are none at the end"


def test_who_wants_none_any_more_leaves_it_to_another() -> None:
    credits, wanted, looked = Credits(), [True], threading.Event()
    answers: list[bool] = []
    other: list[bool] = []

    def still_wanted() -> bool:
        looked.set()
        return wanted[0]

    thread = waiting(credits, answers, still_wanted)
    assert looked.wait(60)
    second = waiting(credits, other)
    wanted[0] = False
    credits.add(1)  # may wake the one that wants none
    second.join(60)
    credits.wake()
    thread.join(60)
    assert other == [True] and answers == [False]
