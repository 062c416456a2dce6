"""Epochs that training loops leave: nothing more of them is given or counted, and the next ones are whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pecan_ray.engines.accounted_leases import AccountedLeases
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.registry import build_engine
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.left_epochs import LoopPlace
from pecan_ray.job.trainer_events import BatchWanted, Discard, EndOfEpoch, EpochLeft, HandOver
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sources import Arrays
from pecan_ray.transport.outbox import Outbox
from pecan_ray.transport.owned_slots import OwnedSlots
from pecan_ray.transport.ring import RingSlots
from tests.protocol import Fault, Scenario, play
from tests.protocol.scenario import SplitModel
from tests.ray.waiting import until
from tests.unit.job.test_job_ledger import ledger_of
from tests.unit.job.test_job_trainer import TrainerRig, of_kind
from tests.unit.transport.outbox_batches import Memory, batch, number_of

LEFT = LoopPlace(left=1, closed=1)


def test_the_last_epoch_can_be_left_and_an_endless_run_does_not_end_by_it() -> None:
    ledger = ledger_of(LedgerShape(epochs=1), "w", splits=2)
    ledger.leave(0, LEFT)
    assert ledger.finished and ledger.next_assignment("w") == "stop"
    endless = ledger_of(LedgerShape(epochs=None), "w", splits=2, listed=False)
    endless.leave(0, LoopPlace(3, 3))
    assert (endless.epoch, endless.finished) == (3, False)


# --- a trainer's side ------------------------------------------------------------------------------------------


def test_ranks_pass_over_what_others_use_until_all_have_left() -> None:
    rig = TrainerRig(world_size=2)
    rig.receive(4)
    rig.order(allowed=1)
    assert rig.want() == [0]
    rig.handle(BatchWanted(within=1))
    assert not of_kind(Discard, rig.handle(EpochLeft(0))) and rig.reports[-1].place == LoopPlace(left=1)
    assert [one.batch.id for one in of_kind(Discard, rig.order(allowed=3))] == [1, 2]
    done = rig.order(level=3)
    assert [one.batch.id for one in of_kind(Discard, done)] == [3] and rig.reports[-1].place == LEFT
    given = rig.reports[-1].given_back
    assert given is not None and (given.batches, given.ids, rig.reports[-1].kept) == (1, (3,), 3)
    assert of_kind(Discard, rig.receive(1, epoch=0)), "it was on its way"
    rig.order(epoch=1, allowed=0, level=None)
    rig.receive(1, epoch=1)
    assert of_kind(HandOver, rig.order(allowed=1)), "the loop still waits for its batch of the next epoch"
    assert not of_kind(EndOfEpoch, rig.handle(BatchWanted(within=1)))


# --- a worker's side -------------------------------------------------------------------------------------------


def test_an_outbox_drops_left_epochs_and_lets_those_go_on_who_wait_for_room() -> None:
    outbox = Outbox(most_bytes=8)
    batches = [batch(0), batch(1), batch(2, epoch=1)]
    outbox.put(batches[0], 0)
    waiting = threading.Thread(target=outbox.put, args=(batches[1], 0))
    waiting.start()
    outbox.leave_epochs(1)
    waiting.join(10)
    assert not waiting.is_alive()
    outbox.put(batches[2], 0)
    outbox.close()
    assert [number_of(one) for one in outbox.take(0)] == [2] and outbox.take(0) == []
    assert [one.slot.released for one in batches if isinstance(one.slot, Memory)] == [1, 1, 0]


def test_a_slot_that_nobody_refers_to_is_given_back_but_not_one_that_was_handed_on() -> None:
    ring = RingSlots(100)
    slots = OwnedSlots(ring)
    held = [slots.acquire(60), slots.acquire(60)]
    handed_on = held[0].handed_on()
    held.clear()
    until(lambda: ring._flying == 1, "a slot that was forgotten stays in flight")
    assert handed_on is not None
    handed_on.release()
    assert ring._flying == 0
    ring.close()


class LateLeases:
    """Leases that come when they are let."""

    def __init__(self) -> None:
        self.asked, self.come = threading.Event(), threading.Event()

    def take(self, branch: int = 0) -> Lease | None:
        self.asked.set()
        assert self.come.wait(10)
        return Lease(0, Split(0))

    def ended(self, lease: Lease, elements: int) -> None:
        raise AssertionError


def test_a_thread_of_a_stretch_that_was_left_gets_no_lease_of_the_next_one() -> None:
    late, got = LateLeases(), list[Lease | None]()
    leases = AccountedLeases(late)
    asking = threading.Thread(target=lambda: got.append(leases.take()))
    asking.start()
    assert late.asked.wait(10)
    closing = threading.Thread(target=leases.close)
    closing.start()
    until(lambda: leases._closed, "it is not closed")
    assert closing.is_alive(), "the lease that is asked for is waited for"
    late.come.set()
    for thread in (asking, closing):
        thread.join(10)
    assert got == [Lease(0, Split(0))] and leases.take() is None


# --- whole histories -------------------------------------------------------------------------------------------


def sources(*sizes: int) -> tuple[tuple[SplitModel, ...], ...]:
    return (tuple(SplitModel((1,) * size) for size in sizes),)


KILLED: Sequence[Fault] = (Fault(0.9, "kill worker"), Fault(1.3, "kill controller", seconds=0.5))


@pytest.mark.parametrize("faults", [(), KILLED], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("kind", ["cut", "serial", "in order", "rounds", "off"])
def test_epochs_behind_left_ones_are_whole(kind: str, apart: bool, faults: tuple[Fault, ...]) -> None:
    for seed in range(3):
        scenario = Scenario(
            seed=seed,
            sources=sources(9, 5, 0, 7, 12, 3),
            epochs=5,
            ranks=1 + seed,
            local=2,
            batch_size=2,
            serial=kind == "serial",
            in_order=kind == "in order",
            buckets=2 if kind == "rounds" else 0,
            sharding="off" if kind == "off" else "dynamic",
            left=0.6,
            left_apart=apart,
            faults=tuple(faults),
        )
        outcome = play(scenario)
        assert outcome.failure == ""
        assert outcome.endings.keys() == {"end"}


# --- engines ---------------------------------------------------------------------------------------------------

PLANS: dict[str, Callable[[PecanPipeline], PecanPipeline]] = {
    "threads": lambda pipe: pipe.map(lambda i: i, on="i").filter(lambda i: i % 3 != 0, on="i").batch(4),
    "one by one": lambda pipe: pipe.filter(lambda i: i % 3 != 0, on="i").padded_batch(4),
    "columns": lambda pipe: pipe.filter(lambda i: i % 3 != 0, on="i").batch(4).prefetch(2),
    "one sequence": lambda pipe: pipe.filter(lambda i: i % 3 != 0, on="i").batch(4).take(1000),
}


@pytest.mark.parametrize(
    ("kind", "engine"),
    [*((kind, "python") for kind in PLANS), ("threads", "tensorflow"), ("one sequence", "tensorflow")],
)
def test_an_engine_runs_a_whole_epoch_behind_one_that_was_left(kind: str, engine: EngineName) -> None:
    if engine == "tensorflow":
        pytest.importorskip("tensorflow")
    pipe = PLANS[kind](PecanPipeline(Arrays(i=np.arange(3000)), engine=engine).shuffle(50))
    ring = RingSlots(1 << 20)
    built = build_engine(engine, pipe.plan, EngineOptions(threads=2), OwnedSlots(ring))
    for epoch in range(3):
        leases = AccountedLeases(AllLeases(list(pipe.plan.sources()), epoch, 1))
        stretch = built.batches(leases)
        left = [next(stretch) for _ in range(3)]
        stretch.close()
        leases.close()
        assert all(one.epoch == epoch for one in left)
    del left, stretch
    until(lambda: ring._flying <= 1, "slots of stretches that were left stay in flight")
    leases = AccountedLeases(AllLeases(list(pipe.plan.sources()), 3, 1))
    seen = list[int]()
    for one in built.batches(leases):
        leases.mention(one.spans)
        assert one.epoch == 3
        seen += one.columns["i"].tolist() if one.rows else []
    assert sorted(seen) == [i for i in range(3000) if i % 3]
    built.close()
    ring.close()
