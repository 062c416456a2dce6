"""The trainer's side: what it may use, what it gives back, when it settles, and what it says while it waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.errors import ClusterError, OpError
from pecan_ray.job import trainer_events as told
from pecan_ray.job.blocks import RowRange
from pecan_ray.job.loop_steps import WARM_UP
from pecan_ray.job.messages import LeftOutElement, TrainerReport, TrainerUpdate
from pecan_ray.job.trainer import TrainerState
from tests.unit.job.job_rig import elements, of_kind


class TrainerRig:
    """A trainer's side and its clock; every report is answered at once unless told otherwise."""

    def __init__(self, world_size: int = 1, prefetch_bytes: int = 1000) -> None:
        self.state = TrainerState(0, world_size, "t0", prefetch_bytes, 0.0)
        self.now = 0.0
        self.orders = TrainerUpdate()
        self.reports: list[TrainerReport] = []
        self.answering = True
        self._produced = 0

    def handle(self, event: told.TrainerEvent, after: float = 0.0) -> list[told.TrainerInstruction]:
        """Let the trainer take an event, so many seconds after the one before."""
        self.now += after
        done = self.state.handle(event, self.now)
        for sent in of_kind(told.SendReport, done):
            self.reports.append(sent.report)
            if self.answering:
                done += self.handle(told.ReportAccepted(sent.report.number, self.orders))
        return done

    def order(self, **changed: object) -> list[told.TrainerInstruction]:
        """Let new orders come."""
        self.orders = replace(self.orders, number=self.orders.number + 1, **changed)  # type: ignore[arg-type]  # fields
        return self.handle(told.UpdateReceived(self.orders))

    def receive(self, count: int = 1, epoch: int = 0) -> list[told.TrainerInstruction]:
        """Let batches of one element come in a message."""
        first, self._produced = self._produced, self._produced + count
        batches = (
            told.ReceivedBatch(number, "w", epoch, {(0, 0, 0): (elements(number),)}, 1, 10)
            for number in range(first, first + count)
        )
        return self.handle(told.BatchesReceived("w", tuple(batches)))

    def want(self) -> list[int]:
        """Let the training loop ask; return the numbers of the batches that it is given."""
        return [given.batch.id for given in of_kind(told.DeliverBatch, self.handle(told.BatchRequested()))]

    def report(self) -> TrainerReport:
        """Let time pass until a report is sent, and return it."""
        before = len(self.reports)
        self.handle(told.TrainerTime(), after=2.0)
        assert len(self.reports) > before
        return self.reports[-1]


# --- batches ---------------------------------------------------------------------------------------------------


def test_batches_that_wait_for_other_ranks_take_no_memory_from_their_worker() -> None:
    rig = TrainerRig(world_size=2)
    assert of_kind(told.TransferMemory, rig.receive(2)) == [], "the training loop may ask for them at once"
    assert [one.batch.id for one in of_kind(told.TransferMemory, rig.handle(told.BatchRequested()))] == [0, 1]
    assert [one.batch.id for one in of_kind(told.TransferMemory, rig.receive())] == [2]
    assert of_kind(told.TransferMemory, rig.order(allowed=1)) == of_kind(told.TransferMemory, rig.receive()) == []
    rig.want()
    assert [one.batch.id for one in of_kind(told.TransferMemory, rig.handle(told.TrainerTime()))] == []


def test_a_rank_that_others_hold_up_takes_more_than_it_has_room_for_once_its_report_is_answered_without_news() -> None:
    rig = TrainerRig(world_size=2, prefetch_bytes=1)
    assert of_kind(told.Grant, rig.order(new_workers=("w",), met=1, addressed=True)) == [told.Grant("w", 1)]
    rig.answering = False
    numbered = told.ReceivedBatch(0, "w", 0, {(0, 0, 0): (elements(0),)}, 1, 10, row_range=RowRange(0, 1))
    done = rig.handle(told.BatchesReceived("w", (numbered,))) + rig.handle(told.TrainerTime(), after=2.0)
    assert of_kind(told.Grant, done) == [], "the job may let it use this one"
    assert of_kind(told.Grant, rig.handle(told.ReportAccepted(rig.reports[-1].number, None))) == [told.Grant("w", 1)]


def test_closing_gives_back_all_memory_that_of_batches_that_come_later_too() -> None:
    rig = TrainerRig()
    rig.receive(2)
    assert [one.batch.id for one in of_kind(told.Discard, rig.handle(told.TrainerClosed()))] == [0, 1]
    assert [one.batch.id for one in of_kind(told.Discard, rig.receive(1))] == [2]
    assert rig.handle(told.BatchRequested()) == [] and rig.state.queue.nbytes == 0


@pytest.mark.parametrize(
    ("shape", "fetched"), [({}, False), ({"addressed": True}, True), ({"addressed": True, "coordinated": True}, True)]
)
def test_what_a_draining_worker_has_left_is_fetched_without_room_if_it_can_be_for_this_rank_alone(
    shape: dict[str, bool], fetched: bool
) -> None:
    rig = TrainerRig(world_size=2, prefetch_bytes=1)
    rig.order(new_workers=("w",), met=1, **shape)
    assert not of_kind(told.Grant, rig.receive()), "there is no room, and the other rank has yet to receive as many"
    done = rig.order(settle=("w",), new_workers=())
    assert (of_kind(told.Grant, done), of_kind(told.CloseStream, done)) == (
        ([told.Grant("w", 1)], []) if fetched else ([], [told.CloseStream("w")])
    )
    if fetched:
        assert of_kind(told.Grant, rig.receive()) == [told.Grant("w", 1)]
        assert not any(report.settled for report in rig.reports)
        rig.handle(told.StreamEnded("w"))
    assert [report.settled for report in rig.reports if report.settled] == [("w",)]


# --- ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [{}, {"finished": True}])
@pytest.mark.parametrize("failed", ["the job", "a thread"])
def test_an_error_reaches_the_training_loop_before_anything_else(failed: str, ordered: dict[str, bool]) -> None:
    rig, error = TrainerRig(), ClusterError("gone")
    rig.receive(1)
    if failed == "the job":
        rig.order(error=error, **ordered)
    else:
        rig.handle(told.TrainerFailed(error))
    assert of_kind(told.RaiseError, rig.handle(told.BatchRequested())) == [told.RaiseError(error)] and rig.state.over


@pytest.mark.parametrize("batches", [0, 1])
def test_an_epoch_ends_once_when_the_job_goes_on_to_the_next_one_and_its_batches_are_used(batches: int) -> None:
    rig = TrainerRig()
    rig.receive(batches, epoch=0)
    for _ in range(batches):
        assert of_kind(told.DeliverBatch, rig.handle(told.BatchRequested(within=0)))
    assert not of_kind(told.EndOfEpoch, rig.handle(told.BatchRequested(within=0))), "batches of it may still come"
    assert of_kind(told.EndOfEpoch, rig.order(epoch=1))
    assert not of_kind(told.EndOfEpoch, rig.order(epoch=2)), "it is told once"
    rig.receive(1, epoch=0)
    assert of_kind(told.DeliverBatch, rig.handle(told.BatchRequested(within=0)))
    assert of_kind(told.EndOfEpoch, rig.handle(told.BatchRequested(within=0)))


# --- what it tells ---------------------------------------------------------------------------------------------


def test_a_report_tells_how_the_trainer_is_doing() -> None:
    rig = TrainerRig()
    for _ in range(WARM_UP + 3):
        rig.receive()
        rig.handle(told.BatchRequested(), after=0.1)
    rig.handle(told.BatchRequested())
    rig.handle(told.RecordedInfo("ring"))
    rig.now += 0.5
    rig.handle(told.BatchesReceived("w", (), (LeftOutElement("x", "decode", "a", "torn"),)))
    rig.receive()
    progress = rig.report().progress
    assert (progress.yielded, progress.rows, progress.queued) == (WARM_UP + 4, WARM_UP + 4, 0)
    assert progress.waited_s == pytest.approx(0.5) and progress.steps.batches == 4
    assert progress.steps.waited == pytest.approx(0.5) and progress.elapsed_s == rig.now
    assert any("ring" in one.notes for one in rig.reports) and any(one.left_out for one in rig.reports)
    rig.handle(told.BatchRequested(), after=1.0)
    assert rig.state.progress(rig.now + 3.0).waited_s == pytest.approx(3.5), "a wait that is not over counts so far"


def waited(rig: TrainerRig, seconds: int) -> list[str]:
    """Let the training loop wait, a look each second; return what was said."""
    return [
        log.text for _ in range(seconds) for log in of_kind(told.TrainerLog, rig.handle(told.TrainerTime(), after=1.0))
    ]


def test_bytes_that_have_travelled_are_told_once_also_those_of_batches_that_are_discarded() -> None:
    """Floats are four times as many bytes as what came of them."""
    rig = TrainerRig()
    rig.answering = False
    for worker, epoch in (("w", 0), ("w", 0), ("far", 0)):
        batch = told.ReceivedBatch(0, worker, epoch, {(0, 0, 0): (elements(0),)}, 1, 40)
        rig.handle(told.BatchesReceived(worker, (batch,), sent_bytes=10))
    assert dict(rig.report().sent_bytes) == {"w": 20, "far": 10}
    rig.handle(told.EpochLeft(0))
    late = told.ReceivedBatch(3, "w", 0, {(0, 0, 0): (elements(3),)}, 1, 40)
    assert of_kind(told.Discard, rig.handle(told.BatchesReceived("w", (late,), sent_bytes=10)))
    rig.answering = True
    rig.handle(told.ReportAccepted(rig.reports[-1].number, None))
    assert [dict(one.sent_bytes) for one in rig.reports] == [{"w": 20, "far": 10}, {"w": 10}]


def test_a_training_loop_that_waits_for_long_says_so_once_and_for_what() -> None:
    rig = TrainerRig()
    for _ in range(20):
        rig.handle(told.BatchRequested())
        assert waited(rig, 1) == [], "many short waits are no long one"
        rig.receive(1)
    rig.order(running=1, target=(2, 1))
    rig.handle(told.BatchRequested())
    assert waited(rig, 30) == ["the trainer has waited 5 s for a batch: 1 of 3 workers run"]
    (log,) = of_kind(told.TrainerLog, rig.order(waiting_for=("w waits for a place: no CPU",)))
    assert log.text == "the trainer waits for a batch since 30 s: w waits for a place: no CPU"
    assert waited(rig, 5) == []


def test_a_rank_that_others_hold_up_says_so() -> None:
    rig = TrainerRig(world_size=2)
    rig.receive(1)
    rig.handle(told.BatchRequested())
    assert rig.reports[-1].held
    (text,) = waited(rig, 6)
    assert "rank 0 has waited 5 s for the other ranks: it may use 0 batches of epoch 0" in text
    rig.order(allowed=1)
    rig.receive(1)
    assert not rig.report().held


def test_a_controller_that_does_not_answer_is_named_once_though_the_loop_waits_for_nothing() -> None:
    rig = TrainerRig()
    rig.answering = False
    rig.report()
    first = waited(rig, 8)
    assert len(first) == 1 and first[0].startswith("the job's controller has not answered this trainer for 5 s: ")
    assert waited(rig, 8) == []
    rig.answering = True
    rig.handle(told.ReportAccepted(rig.reports[-1].number))
    assert waited(rig, 20) == []
    rig.answering = False
    assert len(waited(rig, 20)) == 1, "it is another time"


def test_what_comes_before_a_bad_element_is_handed_over_before_its_error_and_nothing_before_another_one() -> None:
    for error, given in ((OpError("no", op="f"), [[0], [1], []]), (ClusterError("gone"), [[]])):
        rig = TrainerRig()
        batches = tuple(
            told.ReceivedBatch(row, "w", 0, {(0, 0, 0): (elements(row),)}, 1, 10, row_range=RowRange(row, row + 1))
            for row in (0, 1, 3)
        )
        rig.handle(told.BatchesReceived("w", batches))
        rig.order(error=error)
        assert [rig.want() for _ in given[:-1]] == given[:-1]
        assert of_kind(told.RaiseError, rig.handle(told.BatchRequested())) == [told.RaiseError(error)], (
            "the row before the last is missing"
        )
