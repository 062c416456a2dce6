"""The worker as a state machine: what it fetches, how long its runs are, and which row fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pecan_ray.job import worker_events as told
from pecan_ray.job.heartbeat import Heartbeat
from pecan_ray.job.lease_branch import Branch, lot_of
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import (
    AskLeases,
    Assigned,
    LeftOutElement,
    NoMoreLeases,
    Reply,
    SplitOpenFailure,
)
from pecan_ray.job.worker import WorkerState
from pecan_ray.job.worker_channels import RUN
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.spans import Span
from tests.protocol.engine import Made
from tests.unit.job.job_rig import elements

KEY = (0, 0, 0)


def batch(rows: int, *spans: Span) -> Made:
    """What an engine has made of some positions of a split."""
    return Made(0, [(KEY, 0, row) for row in range(rows)], {KEY: [*spans]}, [(KEY, *span) for span in spans])


class Rig:
    """A worker, of which nothing is at hand, and a time that stands still unless it is set."""

    def __init__(self, shape: LedgerShape | None = None, *, one_sequence: bool = False) -> None:
        self.state = WorkerState(shape or LedgerShape(), Heartbeat(30.0), 20.0, one_sequence=one_sequence)
        self.now = 0.0
        self.requested: dict[str, told.AskJob] = {}

    def handle(self, event: told.WorkerEvent) -> list[told.WorkerInstruction]:
        """Return what is to be done, but for what is asked."""
        done: list[told.WorkerInstruction] = []
        for one in self.state.handle(event, self.now):
            if isinstance(one, told.FindLocalSplits):
                done += self.handle(told.LocalSplitsFound(one.branch, None))
            elif isinstance(one, told.AskJob):
                self.requested[one.channel] = one
            else:
                done.append(one)
        return done

    def reply(self, channel: str, reply: Reply) -> list[told.WorkerInstruction]:
        """Answer what was asked."""
        return self.handle(told.ReplyReceived(channel, self.requested.pop(channel).number, reply))

    def begin(self, assignment: Assignment) -> list[told.WorkerInstruction]:
        """Give it an assignment, for which it has asked."""
        self.handle(told.WorkStarted())
        return self.reply(RUN, Assigned(assignment))

    def take(self, reply: Reply) -> list[told.WorkerInstruction]:
        """Let the engine take a lease of the first source, which the job is asked for."""
        return [*self.handle(told.LeaseRequested(0)), *self.reply("take:0", reply)]

    def request(self, channel: str) -> object:
        """Return what was asked, and not answered."""
        return self.requested[channel].request


def leases(*indices: int) -> tuple[Lease, ...]:
    return tuple(Lease(0, Split(index, path=f"s3://bucket/{index}")) for index in indices)


def given(done: Sequence[told.WorkerInstruction]) -> list[int | None]:
    """Return which splits the engine was given."""
    return [one.lease.split.index if one.lease else None for one in done if isinstance(one, told.ProvideLease)]


def test_what_the_next_epoch_begins_with_is_fetched_at_once_and_kept_when_that_epoch_begins() -> None:
    rig, (first, second, third) = Rig(), leases(0, 1, 2)
    next_epoch = NoMoreLeases((third.split, second.split))
    fetched = told.FetchSplits(0, next_epoch.next_epoch)
    rig.begin(Assignment(0))
    assert rig.take((first,)) == [told.FetchSplits(0, (first.split,)), told.ProvideLease(0, first)]
    assert rig.take(next_epoch) == [fetched, told.ProvideLease(0, None)]
    rig.handle(told.AssignmentFinished({}))
    rig.reply(RUN, "return")
    again = Assignment(0)  # with what other workers have returned: the next epoch is still to come
    assert rig.reply(RUN, Assigned(again)) == [told.RunAssignment(again)]
    assert given(rig.take(())) == [None]
    for epoch, first_done in ((1, [fetched]), (2, [])):
        rig.handle(told.AssignmentFinished({}))
        rig.reply(RUN, "return")
        assert rig.reply(RUN, Assigned(Assignment(epoch))) == [*first_done, told.RunAssignment(Assignment(epoch))]


def test_the_row_that_fails_is_the_first_that_is_in_no_batch() -> None:
    split, rig = Split(0, elements=100), Rig(LedgerShape(in_row_order=True), one_sequence=True)
    spans = [elements(0, 20), elements(40, 20)]
    rig.begin(Assignment(0))
    assert rig.state.failing_row is None
    rig.handle(told.LeaseRequested(0))
    rig.reply("take:0", tuple(Lease(0, split, (span,), row=0) for span in spans))
    rig.handle(told.LeaseRequested(0))
    rows: list[int | None] = []
    for first in (0, 10, 40, 50):
        rows.append(rig.state.failing_row)
        rig.handle(told.BatchProduced(batch(10, elements(first, 10))))
    assert rows == [0, 10, 40, 50] and rig.state.failing_row is None


def test_a_run_of_joined_rows_is_long_enough_for_all_threads_also_behind_an_empty_answer() -> None:
    split = Split(0, elements=99)
    rig = Rig(LedgerShape(in_row_order=True, joined=True, one_row_each=True, batch_size=64))
    rig.begin(Assignment(0))
    rig.take((Lease(0, split, (elements(0, 4),), row=0, place=0),))
    asked = []
    for reply in ((), (Lease(0, split, (elements(4, 4),), row=4, place=0),)):
        rig.now += 4.0  # a row takes a second
        rig.handle(told.BatchProduced(batch(4, elements(0, 4))))
        rig.handle(told.AssignmentFinished({}))
        rig.reply(RUN, "return")
        rig.reply(RUN, Assigned(Assignment(0)))
        rig.handle(told.LeaseRequested(0, threads=4))
        request = rig.request("take:0")
        assert isinstance(request, AskLeases)
        asked.append(request.most)
        rig.reply("take:0", reply)
    assert asked == [64, 64]


def test_all_that_is_left_of_a_run_goes_out_in_its_order() -> None:
    rig = Rig(LedgerShape(in_row_order=True, joined=True, one_row_each=True, batch_size=64))
    rig.begin(Assignment(0))
    rig.take((Lease(0, Split(0, elements=99), (elements(0, 12),), row=0, place=0),))
    parts = [elements(first, 4) for first in (0, 4, 8)]
    for part in parts:
        assert rig.handle(told.BatchProduced(replace(batch(4, part), partial=True))) == []
    done = rig.handle(told.AssignmentFinished({}))
    assert [one.spans for one in done if isinstance(one, told.PutOut)] == [{KEY: [part]} for part in parts]


def test_what_is_made_behind_a_split_that_cannot_be_opened_is_released_where_rows_are_joined() -> None:
    rig, span = Rig(LedgerShape(in_row_order=True, joined=True, batch_size=4)), elements(0, 12)
    rig.begin(Assignment(0))
    rig.take((Lease(0, Split(0, elements=99), (span,), row=0, place=0),))
    rig.handle(told.SplitOpenFailed(SplitOpenFailure(KEY, (span,), LeftOutElement(KEY, "", "a split", "gone"))))
    made = batch(4, elements(0, 4))
    assert rig.handle(told.BatchProduced(made)) == [told.Release(made)]


def test_runs_of_an_engine_that_begins_anew_with_each_grow_though_it_begins_slowly() -> None:
    """With one that goes on, a row that takes long is one row."""
    for ends_runs, most, least in ((False, 1000, 500), (True, 1, 1)):
        branch = Branch(joined=True, ends_runs=ends_runs)
        for _ in range(40):
            rows = lot_of(branch, lot_s=0.2)
            branch.note((0.4 + 0.001 * rows) / rows)
        assert least <= lot_of(branch, lot_s=0.2) <= most
