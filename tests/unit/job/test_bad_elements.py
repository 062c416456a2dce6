"""Bad elements and splits that nobody can open: each counted once, by elements, and left out by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.errors import ErrorBudgetError
from pecan_ray.job import bad_elements, events
from pecan_ray.job.bad_elements import BadElements, QuarantineQueue
from pecan_ray.job.job_requests import MOST_LOGGED
from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.messages import AskLeases, LeftOutElement, SplitOpenFailure, TrainerProgress
from pecan_ray.job.split_open_failures import PLACE_S
from pecan_ray.observe.report import Report
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.budget import BadCount, over_budget
from tests.protocol.scenario import Scenario, SplitModel
from tests.unit.job.job_histories import played
from tests.unit.job.job_rig import JobRig, said


def bad(number: int, count: int = 1) -> LeftOutElement:
    return LeftOutElement(("decode", "a.jpg", number), "decode", f"element {number} of a.jpg", "torn", count)


def test_each_element_counts_once_and_the_rest_of_a_broken_split_by_its_elements() -> None:
    known = BadElements("job", 0.01)
    assert known.add([bad(1, count=500), bad(2), bad(1)]) == [bad(1, count=500), bad(2)]
    assert known.add([bad(2), bad(3)]) == [bad(3)]
    assert known.count == 502 and known.over_budget(good=51_000) is None
    error = known.over_budget(good=1_000)
    assert isinstance(error, ErrorBudgetError) and "502 elements" in str(error) and "a.jpg" in str(error)
    known.add([replace(bad(4), open_end=True)])
    few = BadElements("job", 0.0)
    few.add([bad(number) for number in range(10)])
    assert few.over_budget(0) is None, "a few are always borne"
    few.add([bad(10)])
    assert few.over_budget(0) is not None
    assert "at least 503 elements could not be processed" in str(known.over_budget(good=100))


def test_memory_is_bounded_and_the_newest_are_remembered() -> None:
    known, most = BadElements("job", 1.0), bad_elements.MOST_REMEMBERED
    known.add(bad(number) for number in range(most + 5))
    assert known.add([bad(most + 4), bad(5)]) == []
    assert known.add([bad(0)]) == [bad(0)]


def test_only_the_first_bad_elements_are_told_one_by_one() -> None:
    rig = JobRig(error_budget=1.0)
    rig.begin()
    assert "left out element 0" in said(rig.report(left_out=(bad(0, count=10 * MOST_LOGGED),))), "however many it had"
    done = rig.report(left_out=tuple(bad(number) for number in range(1, 3 * MOST_LOGGED)))
    assert said(done).count("left out") == MOST_LOGGED - 1
    assert rig.job.stats(0.0).bad_elements == 13 * MOST_LOGGED - 1
    assert rig.job.trainer_update(0).quarantine == (), "nothing is to be kept"


def test_what_waits_for_a_trainer_is_bounded() -> None:
    queue, size = QuarantineQueue(), bad_elements.MOST_KEPT_BYTES // 4
    queue.add(replace(bad(number), kept=bytes(size)) for number in range(6))
    assert [len(one.kept) for one in queue.waiting] == [size] * 4 + [0] * 2
    assert queue.waiting[5].error == "torn (not kept: too much waited to be)"
    queue.note_taken(2)
    queue.note_taken(2)
    queue.add([replace(bad(6), kept=bytes(size))])
    assert [len(one.kept) for one in queue.waiting] == [size] * 2 + [0] * 2 + [size]
    queue.note_taken(100)
    assert (queue.waiting, queue.taken) == ((), 7)


def test_the_report_says_where_the_number_of_lost_elements_is_an_estimate_or_the_least() -> None:
    rig = JobRig(error_budget=1.0)
    rig.begin()
    rig.report(left_out=(bad(1),))
    assert "  1 bad elements were left out (on_error)\n" in reported(rig)
    rig.report(left_out=(replace(bad(2, count=500), estimated=True),))
    assert "about 501 bad elements were left out (on_error): 500 of them are an estimate" in reported(rig)
    rig.report(left_out=(replace(bad(3), open_end=True),))
    assert "at least 502 bad elements were left out" in reported(rig)
    assert "nothing tells how many the rest of 1 broken splits held" in reported(rig)


def reported(rig: JobRig) -> str:
    """The text of the report that a trainer gives."""
    return f"{Report.of_job(rig.job.stats(0.0), TrainerProgress(), None)}\n"


def test_a_share_that_is_used_up_to_the_last_element_is_within_the_budget() -> None:
    for share, bad, good in ((0.29, 29, 71), (0.07, 14, 186), (0.57, 57, 43), (1.0, 100, 0)):
        assert over_budget("job", BadCount(bad), good, share, "") is None
    for share, bad, good, most in ((0.29, 30, 70, 29), (0.1, 11, 97, 10)):
        error = over_budget("job", BadCount(bad), good, share, "")
        assert f"{bad} elements could not be processed, more than the error budget allows ({most})" in str(error)


SPLITS = tuple(SplitModel((1,) * 7) for _ in range(12))
TWO_NODES = Scenario(sources=(SPLITS,), batch_size=4, local=1, remote=1, epochs=2, error_budget=0.0)


@pytest.mark.parametrize(("unseen", "told"), [(0.3, 0), (1.0, 1)])
def test_what_a_remote_worker_cannot_open_a_local_one_reads(unseen: float, told: int) -> None:
    state = played(replace(TWO_NODES, unseen=unseen)).job.state
    assert state.error is None and state.bad.count == 0 and state.rows == 2 * 12 * 7
    assert sum("is taken out" in event.text for event in state.story) == told


class TwoWorkers:
    """A job of two workers, on two nodes, with some splits of 100 bytes."""

    def __init__(self, splits: int, elements: int | None = None) -> None:
        self.rig = JobRig(workers=Workers(1, 1), on_error="skip", error_budget=1.0)
        self.local, self.remote = self.rig.come(("here", 4.0), remote=(4.0,))
        self.rig.list_splits([Split(n, f"/{n}.txt", 0, 100, elements=elements) for n in range(splits)])

    def refuse(self, worker: str, *leases: Lease) -> str:
        """Let a worker say that it cannot open splits, and return what was logged."""
        told = []
        for lease in leases:
            held, open_end = elements_in(lease) or 1, lease.split.elements is None
            error = LeftOutElement(lease.key, "read", lease.split.where(0), "no such file.", held, open_end=open_end)
            told.append(SplitOpenFailure(lease.key, lease.spans, error))
        return said(self.rig.ask(worker, AskLeases(self.rig.job.ledger.epoch, 0, 1, split_open_failures=tuple(told))))


def test_what_no_worker_can_open_is_left_out_with_its_node_and_its_size() -> None:
    two = TwoWorkers(3)
    rig = two.rig
    rig.place(two.local, "here")
    rig.place(two.remote, "there")
    rig.assign(two.local)
    rig.assign(two.remote)
    (first,) = rig.take(two.local)
    (other,) = rig.take(two.remote)
    assert two.refuse(two.remote, other) == ""
    rig.ask(two.local, AskLeases(0, 0, 1, lengths=((first.key, 50),)))
    again = rig.job.ledger.workers[two.local].pending_leases[other.key].lease
    text = two.refuse(two.local, again)
    assert f"left out element 0 of {other.split.path}" in text
    assert f"({two.remote} on node there could not open it) About 50 elements are left out" in text
    assert rig.job.bad.count == 50


def test_a_split_is_left_out_when_the_last_worker_that_could_try_is_gone() -> None:
    two = TwoWorkers(1)
    rig = two.rig
    rig.place(two.remote, "there")
    rig.assign(two.remote)
    two.refuse(two.remote, *rig.take(two.remote))
    rig.handle(events.WorkerPending(two.local, "there is no CPU"))
    assert rig.job.bad.count == 0
    rig.handle(events.TimePassed(), after=1.0)
    done = rig.handle(events.TimePassed(), after=10.0)
    assert "1 split(s) that no worker that runs can open wait" in said(done) and rig.job.bad.count == 0
    done = rig.handle(events.TimePassed(), after=PLACE_S)
    assert "left out element 0 of /0.txt" in said(done) and rig.job.bad.count == 1


@pytest.mark.parametrize(("elements", "count"), [(400, "397"), (None, "at least 0")])
def test_of_a_split_that_nobody_can_open_any_more_only_what_did_not_come_is_counted(
    elements: int | None, count: str
) -> None:
    two = TwoWorkers(1, elements)
    rig = two.rig
    rig.place(two.remote, "there")
    rig.assign(two.remote)
    two.refuse(two.remote, *rig.take(two.remote))
    rig.place(two.local, "here")
    rig.assign(two.local)
    (lease,) = rig.take(two.local)
    rig.acknowledge(two.local, lease, 0, 3)
    rig.handle(events.WorkerLost(two.local, "process", "it died"))
    rig.report(settled=(two.local,))
    for worker in rig.job.worker_table.workers:
        rig.handle(events.WorkerPending(worker, "there is no CPU"))
    done = rig.handle(events.TimePassed(), after=2 * PLACE_S)
    assert "left out element 0 of /0.txt" in said(done)
    assert (str(rig.job.bad.bad_count), rig.job.ledger.queues.waiting()) == (count, False), "elements 0 to 2 came"
