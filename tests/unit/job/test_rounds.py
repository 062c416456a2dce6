"""Rounds: when they are complete, in which order they are used, what is given back of them, and who holds them up."""

from __future__ import annotations

import pytest

from pecan_ray.job.events import TimePassed
from pecan_ray.job.instructions import Log
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.rounds import HeldUp, Rounds, expand_rounds
from pecan_ray.options import Workers
from tests.unit.job.job_rig import JobRig, of_kind


def turns(rounds: Rounds, used: int = 0) -> list[str]:
    rounds.schedule_rounds(used)
    return list(expand_rounds(rounds.first, rounds.schedule, rounds.first))


def test_workers_have_their_turns_one_after_the_other_and_nobody_waits_for_a_slow_one() -> None:
    rounds = Rounds(2)
    for worker, made in (("a", 4), ("b", 2)):
        for rank in range(2):
            rounds.received(rank, worker, made)
    assert turns(rounds) == ["a", "b", "a", "b", "a", "a"]
    for worker in ("a", "b"):
        for rank in range(2):
            rounds.received(rank, worker, 1)
    assert turns(rounds)[6:] == ["b", "a"], "after a it is the turn of b"


def test_who_lacks_a_batch_holds_up_those_alone_that_have_used_all_rounds() -> None:
    rounds, held = Rounds(3), HeldUp(3)
    for rank in range(3):
        rounds.received(rank, "a", 2)
    rounds.received(0, "a", 1)
    rounds.received(1, "a", 1)
    rounds.schedule_rounds(0)
    held.look(1.0, rounds, [1])  # it has a round to use
    held.look(2.0, rounds, [2])
    held.look(5.0, rounds, [2])
    rounds.received(2, "a", 1)
    rounds.schedule_rounds(2)
    held.look(6.0, rounds, [2])
    held.look(9.0, rounds, [])
    assert held.seconds == [0.0, 0.0, 4.0]


def test_ranks_that_others_wait_for_are_named_after_some_seconds_and_in_the_report() -> None:
    rig = JobRig(LedgerShape(world_size=3, coordinated=True), Workers(1), say_after_s=5.0)
    (worker,) = rig.begin()
    rig.assign(worker)
    (lease,) = rig.take(worker)
    for rank in (0, 2):
        rig.acknowledge(worker, lease, rank, rank=rank)
    rig.report(0, held=True)
    rig.now += 3.0
    assert not of_kind(Log, rig.report(2, held=True))
    rig.now += 4.0
    rig.report(0, held=True)
    rig.handle(TimePassed())
    said = [one.text for one in of_kind(Log, rig.handle(TimePassed(), after=5.5))]
    assert any(text.startswith("rank 1 must yet receive a batch of the round") for text in said), said
    rig.acknowledge(worker, lease, 1, rank=1)
    assert rig.job.stats(rig.now).held_up[1] == pytest.approx(12.5)
    assert rig.job.ledger.allowed() == 1
