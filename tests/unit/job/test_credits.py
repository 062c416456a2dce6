"""Credits: one for each that waits, before or after it waits, and none at the end."""

from __future__ import annotations

import threading

from pecan_ray.transport.credits import Credits
from tests.ray.waiting import until


def waiting(credits: Credits, answers: list[bool]) -> threading.Thread:
    """Wait for a credit in a thread of its own."""
    thread = threading.Thread(target=lambda: answers.append(credits.wait()))
    thread.start()
    return thread


def test_a_credit_is_taken_once() -> None:
    credits = Credits()
    credits.add(2)
    assert credits.wait() and credits.wait()
    answers: list[bool] = []
    thread = waiting(credits, answers)
    thread.join(0.05)
    assert thread.is_alive() and not answers
    credits.add(1)
    thread.join(10)
    assert answers == [True]


def test_as_many_go_on_as_there_are_credits() -> None:
    credits = Credits()
    answers: list[bool] = []
    threads = [waiting(credits, answers) for _ in range(5)]
    credits.add(3)
    until(lambda: len(answers) == 3, "credits were lost")
    until(lambda: sum(thread.is_alive() for thread in threads) == 2, "others wait, or go on without a credit")
    assert len(answers) == 3
    credits.close()
    for thread in threads:
        thread.join(10)
    assert answers == [True] * 3 + [False] * 2


def test_at_the_end_nobody_waits_and_credits_do_no_harm() -> None:
    credits = Credits()
    credits.add(1)
    credits.close()
    credits.add(1)
    assert not credits.wait()


def test_who_wants_none_any_more_leaves_it_to_another() -> None:
    credits = Credits()
    wanted = [True]
    looked = threading.Event()
    answers: list[bool] = []

    def still_wanted() -> bool:
        looked.set()
        return wanted[0]

    thread = threading.Thread(target=lambda: answers.append(credits.wait(still_wanted)))
    thread.start()
    assert looked.wait(10)
    other: list[bool] = []
    second = waiting(credits, other)
    wanted[0] = False
    credits.add(1)  # may wake the one that wants none
    second.join(10)
    credits.wake()
    thread.join(10)
    assert other == [True] and answers == [False]
