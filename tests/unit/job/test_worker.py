"""The worker as a state machine: what it asks, what it fetches, and what becomes of what its engine makes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pecan_ray.job import worker_events as told
from pecan_ray.job.assignment_batches import AssignmentBatches
from pecan_ray.job.blocks import RowRange, place_of
from pecan_ray.job.heartbeat import Heartbeat
from pecan_ray.job.lease_sizes import SideBySide
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import (
    AskLeases,
    Assigned,
    EndAssignment,
    LeftOutElement,
    NoMoreLeases,
    Reply,
    SplitOpenFailure,
    WorkerProgress,
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

    def begin(self, assignment: Assignment, version: int = 0) -> list[told.WorkerInstruction]:
        """Give it an assignment, for which it has asked."""
        self.handle(told.WorkStarted())
        return self.reply(RUN, Assigned(assignment, version))

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


def test_none_beside_others_is_no_end() -> None:
    rig = Rig(LedgerShape(serial=True))
    rig.begin(Assignment(0))
    asked: list[tuple[int, int, int]] = []

    def take(reading: int, *replies: tuple[Lease, ...]) -> list[int | None]:
        done = rig.handle(told.LeaseRequested(0, SideBySide(4, reading)))
        for reply in replies:
            request = rig.request("take:0")
            assert isinstance(request, AskLeases)
            asked.append((request.streams, request.reading, request.most))
            done += rig.reply("take:0", reply)
        return given(done)

    assert [take(0, leases(0, 1)), take(1), take(2, ()), take(1, ())] == [[0], [1], [None], [None]]
    assert [take(0, leases(2)), take(0, ()), take(0)] == [[2], [None], [None]]
    assert asked == [(4, 0, 4), (4, 2, 2), (4, 1, 3), (4, 0, 4), (4, 0, 4)]


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


def test_the_next_lot_is_asked_for_while_half_of_one_is_left_and_lasts_as_long_as_the_job_says() -> None:
    rig = Rig()
    rig.begin(Assignment(0))
    assert given(rig.take(leases(0))) == [0]
    rig.now = 0.1
    rig.handle(told.LeaseRequested(0))
    asked = rig.request("take:0")
    assert isinstance(asked, AskLeases) and asked.most == 5, "half a second of leases that take 0.1 s"
    assert given(rig.reply("take:0", leases(1, 2, 3, 4))) == [1] and not rig.requested
    for taken in (2, 3):
        rig.now += 0.1
        assert given(rig.handle(told.LeaseRequested(0))) == [taken]
    assert rig.requested["take:0"].prefetch
    assert given(rig.reply("take:0", ())) == [] and given(rig.handle(told.LeaseRequested(0))) == [4]
    assert given(rig.handle(told.LeaseRequested(0))) == [None] and not rig.requested, (
        "the job has said that there are no more"
    )


def test_in_one_sequence_leases_beside_others_are_waited_for() -> None:
    rig = Rig(one_sequence=True)
    rig.begin(Assignment(0))
    rig.handle(told.LeaseRequested(0, SideBySide(4, 1)))
    assert isinstance(asked := rig.request("take:0"), AskLeases) and (asked.streams, asked.reading) == (1, 0)


def test_a_batch_is_for_the_rank_whose_turn_it_is_and_numbered_by_the_rows_of_that() -> None:
    shape = LedgerShape(in_row_order=True, world_size=3, batch_size=2)

    def put_out(first: int) -> tuple[int | None, RowRange | None]:
        put = AssignmentBatches(Assignment(0), shape).put_out(batch(1, elements(0)), RowRange(first, first + 1))
        assert isinstance(put, told.PutOut)
        return put.rank, put.row_range

    assert [put_out(first) for first in (0, 2, 10)] == [(0, RowRange(0, 1)), (1, RowRange(0, 1)), (2, RowRange(2, 3))]
    assert put_out(3) == (None, None), "a split is longer than it told"


def test_data_without_a_row_gives_its_memory_back() -> None:
    rig = Rig()
    rig.begin(Assignment(0))
    rig.take(leases(0))
    made = batch(0, elements(0, 4))
    assert told.Release(made) in rig.handle(told.BatchProduced(made))


def test_an_engine_is_built_for_another_version_or_beginning_of_the_plan() -> None:
    rig = Rig(LedgerShape(serial=True))
    done = rig.begin(first := Assignment(0, behind=2), version=1)
    assert done == [told.LoadPlan(1, 2), told.RunAssignment(first)]
    rig.handle(told.AssignmentFinished({}))
    rig.reply(RUN, "return")
    assert rig.reply(RUN, Assigned(first, 1)) == [told.RunAssignment(first)]


def test_a_worker_tells_at_once_what_the_job_must_know_and_else_now_and_then() -> None:
    rig, calm = Rig(), WorkerProgress(threads=2)
    rig.begin(Assignment(0))
    rig.handle(told.BatchProduced(batch(5, elements(0))))
    assert rig.handle(told.WorkerTime(calm)) == [told.TellJob(WorkerProgress(5, 1, threads=2))]
    rig.now = 9.0
    assert rig.handle(told.WorkerTime(calm)) == []
    for urgent in (WorkerProgress(sigterm_received=True), WorkerProgress(stuck="map", stuck_s=1.0)):
        assert len(rig.handle(told.WorkerTime(urgent))) == 1 and not rig.handle(told.WorkerTime(urgent))
    assert len(rig.handle(told.WorkerTime(WorkerProgress(stuck="map", stuck_s=21.0)))) == 1, "it hangs"
    rig.now = 20.0
    assert len(rig.handle(told.WorkerTime(WorkerProgress(stuck="map", stuck_s=32.0)))) == 1


def test_the_row_that_fails_is_the_first_that_is_in_no_batch() -> None:
    split, rig = Split(0, elements=100), Rig(LedgerShape(in_row_order=True), one_sequence=True)
    spans = [elements(0, 20), elements(40, 20)]
    rig.handle(told.WorkStarted())
    rig.reply(RUN, Assigned(Assignment(0)))
    assert rig.state.failing_row is None
    rig.handle(told.LeaseRequested(0))
    rig.reply("take:0", tuple(Lease(0, split, (span,), row=0) for span in spans))
    rig.handle(told.LeaseRequested(0))
    rows: list[int | None] = []
    for first in (0, 10, 40, 50):
        rows.append(rig.state.failing_row)
        rig.handle(told.BatchProduced(batch(10, elements(first, 10))))
    assert rows == [0, 10, 40, 50] and rig.state.failing_row is None


def test_the_element_that_fails_is_the_first_that_is_in_no_block_where_rows_are_joined() -> None:
    rig = Rig(LedgerShape(in_row_order=True, joined=True, batch_size=2))
    rig.begin(Assignment(0))
    rig.take((Lease(0, Split(0, elements=100), (elements(20, 40),), row=1000, place=7),))
    rows = [rig.state.failing_row]
    for these in ((20, 25), (30, 59)):
        rig.handle(told.BatchProduced(batch(2, *map(elements, these))))
        rows.append(rig.state.failing_row)
    assert rows == [place_of(7, elements(20)[0]), place_of(7, elements(26)[0]), None]


def test_a_run_follows_one_of_whole_batches_and_a_batch_that_has_rows_of_both_is_divided() -> None:
    """The first split holds one element less than it told."""
    rig, split = Rig(LedgerShape(in_row_order=True, joined=True, one_row_each=True, batch_size=4)), Split(0, elements=9)
    rig.begin(Assignment(0))
    assert given(rig.take((Lease(0, split, (elements(1, 8),), row=0, place=0),))) == [0]
    assert given(rig.take((Lease(0, Split(2, elements=8), (elements(0, 4),), row=16, place=2),))) == [2], "no end"
    rig.handle(told.BatchProduced(batch(4, *(elements(n, 1) for n in range(1, 5)))))
    of_both = batch(4, *(elements(n, 1) for n in range(5, 8)))
    of_both.row_parts.append(((0, 0, 2), *elements(0, 1)))
    *put, last = rig.handle(told.BatchProduced(of_both))
    assert [one.rows for one in put if isinstance(one, told.PutOut)] == [(0, 3), (3, 4)]
    assert last == told.Release(of_both), "its parts are copies"
    assert given(rig.take((Lease(0, Split(2, elements=8), (elements(4, 2),), row=20, place=2),))) == [2]
    assert given(rig.handle(told.LeaseRequested(0))) == [None], "what is shorter than a batch ends the assignment"


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


@pytest.mark.parametrize("joined", [False, True])
def test_rows_of_a_split_that_told_of_none_take_no_time_that_is_counted(joined: bool) -> None:
    rig = Rig(LedgerShape(in_row_order=True, joined=joined, one_row_each=joined, batch_size=4))
    rig.begin(Assignment(0))
    told_of_none, place = Split(0, elements=0), 0 if joined else None
    rig.take((Lease(0, told_of_none, row=0, place=place),))
    (put_out,) = rig.handle(told.BatchProduced(batch(4, *(elements(n) for n in range(4)))))
    assert isinstance(put_out, told.PutOut)


def test_nothing_is_asked_for_behind_a_split_that_cannot_be_opened_where_rows_are_joined() -> None:
    rig = Rig(LedgerShape(in_row_order=True, joined=True, one_row_each=True, batch_size=4))
    rig.begin(Assignment(0))
    run = Lease(0, Split(0, elements=9), (elements(0, 4),), row=0, place=0)
    rig.take((run,))
    rig.handle(told.SplitOpenFailed(SplitOpenFailure(KEY, run.spans, LeftOutElement("0", "read", "0", "not there"))))
    assert given(rig.handle(told.LeaseRequested(0))) == [None] and not rig.requested
    rig.handle(told.AssignmentFinished({}))
    ending = rig.request(RUN)
    assert isinstance(ending, EndAssignment) and ending.split_open_failures


def test_a_row_takes_as_long_as_it_is_made_and_not_as_it_is_read() -> None:
    """An engine reads a short run to its end long before it has made its rows."""
    rig, split = Rig(LedgerShape(in_row_order=True, batch_size=4)), Split(0, elements=1000)
    rig.begin(Assignment(0))
    rig.take((Lease(0, split, (elements(0, 4),), row=0),))
    asked = []
    for first, now in ((4, 0.001), (8, 4.0), (12, 8.0)):
        rig.now = now
        if first > 4:
            rig.handle(told.BatchProduced(batch(4, elements(first - 8, 4))))
        rig.handle(told.LeaseRequested(0))
        request = rig.request("take:0")
        assert isinstance(request, AskLeases)
        asked.append(request.most)
        rig.reply("take:0", (Lease(0, split, (elements(first, 4),), row=0),))
    assert asked == [1, 1, 1], "not as many as the source reads in half a second: a row takes one"
