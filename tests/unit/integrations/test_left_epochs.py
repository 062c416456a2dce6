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
from pecan_ray.job.instructions import LeaveEpochs
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.left_epochs import LoopPlace
from pecan_ray.job.trainer_events import BatchWanted, Discard, EndOfEpoch, EpochLeft, HandOver
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.simulator.protocol import Fault, Scenario, play
from pecan_ray.simulator.protocol.scenario import SplitModel
from pecan_ray.sources import Arrays
from pecan_ray.transport.outbox import Outbox
from pecan_ray.transport.owned_slots import OwnedSlots
from pecan_ray.transport.ring import RingSlots
from tests.ray.waiting import until
from tests.unit.job.job_rig import JobRig
from tests.unit.job.test_job_ledger import element, ledger_of, take
from tests.unit.job.test_job_trainer import TrainerRig, of_kind
from tests.unit.runtime.outbox_batches import Memory, batch, number_of

LEFT = LoopPlace(left=1, closed=1)


def whole_epoch(ledger: Ledger, worker: str, rank: int = 0) -> list[int]:
    """Give a worker all of the epoch, of which a rank receives each split as a batch; return the splits."""
    assignment = ledger.next_assignment(worker)
    assert isinstance(assignment, Assignment)
    given = []
    while isinstance(lease := ledger.take(worker), Lease):
        given.append(lease.split.index)
        ledger.acked(rank, worker, assignment.epoch, {lease.key: lease.spans})
    ledger.assignment_ended(worker, {})
    return given


@pytest.mark.parametrize("sharding", ["dynamic", "static", "off"])
@pytest.mark.parametrize("serial", [False, True], ids=["cut", "serial"])
def test_what_a_left_epoch_was_given_to_workers_is_forgotten_and_the_next_one_is_whole(
    sharding: str, serial: bool
) -> None:
    shape = LedgerShape(epochs=3, sharding=sharding, serial=serial)  # type: ignore[arg-type]  # one of them
    ledger = ledger_of(shape, "w", splits=4)
    ledger.assign_static(["w"])
    assert isinstance(ledger.next_assignment("w"), Assignment)
    first, second = take(ledger, "w"), take(ledger, "w")
    ledger.acked(0, "w", 0, {first.key: [element(0)]})
    assert ledger.leave(0, LEFT) and ledger.epoch == 1 and ledger.left.count == 1
    ledger.acked(0, "w", 0, {second.key: second.spans})  # which was on its way
    assert ledger.counts == [0] and not ledger.leave(0, LEFT), "it is told again"
    check_ledger(ledger)
    if not serial:
        assert whole_epoch(ledger, "w") == [0, 1, 2, 3] and ledger.epoch == 2
        assert ledger.left_out_elements == 0


def test_of_several_ranks_all_must_have_left_and_then_keep_equally_much() -> None:
    ledger = ledger_of(LedgerShape(epochs=2, world_size=2), "w", splits=9)
    ledger.next_assignment("w")
    leases = [take(ledger, "w") for _ in range(5)]
    for rank, lease in zip([0, 0, 0, 1, 1], leases, strict=True):
        ledger.acked(rank, "w", 0, {lease.key: lease.spans})
    assert not ledger.leave(0, LoopPlace(left=1)) and ledger.level() is None and ledger.allowed() == 2
    lease = take(ledger, "w")  # for those that go on
    assert ledger.leave(1, LoopPlace(left=1)) and ledger.level() == 2
    assert ledger.take("w") == "none" and ledger.next_assignment("w") == "wait" and ledger.keeps() is None
    assert not ledger.leave(1, LEFT) and ledger.epoch == 0, "the other one may have yet to receive something"
    ledger.acked(0, "w", 0, {lease.key: lease.spans})
    ledger.given_back(0, 0, {lease.key: lease.spans}, 2, 2)
    assert not ledger.leave(0, LEFT) and (ledger.epoch, ledger.counts, ledger.level()) == (1, [0, 0], None)
    assert isinstance(ledger.next_assignment("w"), Assignment) and take(ledger, "w").key == (0, 0, 0)


def test_a_worker_that_is_lost_with_a_left_epoch_leaves_nothing_behind() -> None:
    ledger = ledger_of(LedgerShape(epochs=2), "w", "x", splits=4)
    ledger.next_assignment("w")
    take(ledger, "w")
    ledger.lost("w")
    ledger.leave(0, LEFT)
    ledger.settled(0, "w")
    assert whole_epoch(ledger, "x") == [0, 1, 2, 3] and ledger.finished


def test_the_last_epoch_can_be_left_and_an_endless_run_does_not_end_by_it() -> None:
    ledger = ledger_of(LedgerShape(epochs=1), "w", splits=2)
    ledger.leave(0, LEFT)
    assert ledger.finished and ledger.next_assignment("w") == "stop"
    endless = ledger_of(LedgerShape(epochs=None), "w", splits=2, listed=False)
    endless.leave(0, LoopPlace(3, 3))
    assert (endless.epoch, endless.finished) == (3, False)


def test_an_epoch_of_which_nothing_is_missing_was_not_left_before_its_end() -> None:
    ledger = ledger_of(LedgerShape(epochs=2), "w", splits=1)
    ledger.next_assignment("w")
    lease = take(ledger, "w")
    ledger.acked(0, "w", 0, {lease.key: lease.spans})
    assert ledger.epoch == 0, "the worker has yet to say that it is done"
    ledger.leave(0, LEFT)
    assert (ledger.epoch, ledger.left.count) == (1, 0)


def test_the_workers_of_a_job_are_told_of_an_epoch_that_is_left() -> None:
    rig = JobRig(LedgerShape(epochs=2))
    (worker,) = rig.begin(splits=3)
    rig.assign(worker)
    (lease,) = rig.take(worker)
    rig.acknowledge(worker, lease, 0)
    done = rig.report(0, place=LEFT)
    assert [one for one in done if isinstance(one, LeaveEpochs)] == [LeaveEpochs(worker, 1)]
    assert rig.job.facts(rig.now).left_epochs == 1


# --- a trainer's side ------------------------------------------------------------------------------------------


def test_a_rank_that_is_alone_drops_what_it_has_of_the_epoch_and_takes_nothing_more_of_it() -> None:
    rig = TrainerRig()
    rig.receive(3, epoch=0)
    rig.receive(1, epoch=1)
    assert rig.want() == [0]
    done = rig.handle(EpochLeft(0))
    assert [one.batch.id for one in of_kind(Discard, done)] == [1, 2]
    report = rig.reports[-1]
    assert (report.place, report.progress.passed, report.progress.used, report.kept) == (LEFT, 2, 3, 4)
    assert [one.batch.id for one in of_kind(Discard, rig.receive(2, epoch=0))] == [4, 5]
    assert rig.report().kept == 4, "what came late was not acknowledged"
    assert rig.want() == [3] and rig.state.yielded == 2


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
