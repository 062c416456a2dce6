"""The trainer's side: a controller that does not answer, and what comes before an error."""

from __future__ import annotations

from dataclasses import replace

from pecan_ray.errors import ClusterError, OpError
from pecan_ray.job import trainer_events as told
from pecan_ray.job.blocks import RowRange
from pecan_ray.job.messages import TrainerReport, TrainerUpdate
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

    def want(self) -> list[int]:
        """Let the training loop ask; return the numbers of the batches that it is given."""
        return [given.batch.id for given in of_kind(told.DeliverBatch, self.handle(told.BatchRequested()))]

    def report(self) -> TrainerReport:
        """Let time pass until a report is sent, and return it."""
        before = len(self.reports)
        self.handle(told.TrainerTime(), after=2.0)
        assert len(self.reports) > before
        return self.reports[-1]


def waited(rig: TrainerRig, seconds: int) -> list[str]:
    """Let the training loop wait, a look each second; return what was said."""
    return [
        log.text for _ in range(seconds) for log in of_kind(told.TrainerLog, rig.handle(told.TrainerTime(), after=1.0))
    ]


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


def test_the_time_counts_in_which_the_loop_waits_while_later_rows_are_here() -> None:
    rig = TrainerRig()

    def come(row: int, after: float) -> None:
        row_range = RowRange(row, row + 1)
        batch = told.ReceivedBatch(row, "w", 0, {(0, 0, 0): (elements(row),)}, 1, 10, row_range=row_range)
        rig.handle(told.BatchesReceived("w", (batch,)), after)

    come(0, after=0.25)
    assert rig.want() == [0] and rig.want() == [] and rig.state.first_batch_s == 0.25
    come(2, after=1.0)
    come(3, after=0.5)
    come(1, after=2.0)
    assert rig.state.steps.in_line_s == 2.5 and rig.state.waited_s == 3.5
    assert rig.want() == [2] and rig.want() == [3] and rig.want() == []
    come(4, after=5.0)
    assert rig.state.steps.in_line_s == 2.5 and rig.state.first_batch_s == 0.25
