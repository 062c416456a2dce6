"""Which losses of workers end a job: those that follow one another without a batch, and not those of one machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pecan_ray.job.events import LossCause
from pecan_ray.job.losses import MOST_IN_A_ROW, TOGETHER_S, Loss, Losses


def crash(losses: Losses, at: float, node: str = "n", cause: LossCause = "process", requested: float = 0.0) -> str:
    """Lose a worker; return why the job cannot go on."""
    return losses.add(Loss(f"w{losses.count}", node, cause, "signal 11", requested, at))


@pytest.mark.parametrize(
    "lost",
    [
        lambda n: {"at": 100.0 * n},
        lambda n: {"at": n + 1.0, "requested": float(n)},
        lambda n: {"at": 2 * TOGETHER_S * n},
        lambda n: {"at": 0.0, "node": f"n{n}"},
        lambda n: {"at": 0.0, "node": ""},
    ],
    ids=["seldom", "each replaces the one before", "far apart on one node", "of many nodes", "before they had a node"],
)
def test_six_crashes_in_a_row_end_a_job_and_the_message_names_the_last_one(lost: Callable[[int], Any]) -> None:
    losses = Losses()
    fatal = [crash(losses, **lost(number)) for number in range(MOST_IN_A_ROW + 1)]
    assert fatal[:-1] == [""] * MOST_IN_A_ROW
    assert "6 workers in a row" in fatal[-1] and "w5, since signal 11" in fatal[-1]


def test_a_batch_begins_the_count_anew() -> None:
    losses = Losses()
    for number in range(20):
        assert not crash(losses, at=100.0 * number)
        if number % MOST_IN_A_ROW == 4:
            losses.delivered()
    assert losses.count == 20


@pytest.mark.parametrize("cause", ["process", "stream"])
def test_workers_of_one_node_that_are_lost_together_count_once(cause: LossCause) -> None:
    losses = Losses()
    assert not any(crash(losses, at=1.0 + 0.5 * number, cause=cause) for number in range(8))
    assert losses.count == 8
    assert [bool(crash(losses, at=100.0 * number, cause=cause)) for number in range(1, 6)] == [False] * 4 + [True]
