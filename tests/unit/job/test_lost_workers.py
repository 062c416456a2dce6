"""Workers that die, hang, or are told to end: replaced, counted, and what they die of or hang at is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.errors import ClusterError, OpError
from pecan_ray.job import events
from pecan_ray.job.instructions import DrainWorker, Instruction, KillWorker
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.losses import MOST_IN_A_ROW, TOGETHER_S, Loss, Losses
from pecan_ray.job.messages import AskLeases, WorkerProgress
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import OnError, Workers
from pecan_ray.plan.splits import OUTPUT_BITS, AtWork, Lease, Origin, origin_of
from tests.protocol.scenario import HANGING, Scenario
from tests.unit.job.job_histories import played, split_of
from tests.unit.job.job_rig import JobRig, of_kind, said


def started(done: list[Instruction]) -> list[str]:
    return [start.worker for start in of_kind(StartWorker, done)]


# --- how many losses end a job ----------------------------------------------------------------------------------


def crash(
    losses: Losses, at: float, node: str = "n", cause: events.LossCause = "process", requested: float = 0.0
) -> str:
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


@pytest.mark.parametrize("cause", ["process", "stream"])
def test_a_batch_begins_the_count_anew_and_workers_of_one_node_that_are_lost_together_count_once(
    cause: events.LossCause,
) -> None:
    losses = Losses()
    for number in range(20):
        assert not crash(losses, at=100.0 * number, cause=cause)
        if number % MOST_IN_A_ROW == 4:
            losses.delivered()
    assert losses.count == 20
    losses = Losses()
    assert not any(crash(losses, at=1.0 + 0.5 * number, cause=cause) for number in range(8))
    assert losses.count == 8
    another = Loss("w8", "n", cause, "signal 11", 0.0, 5.0)
    assert losses.is_work_at_fault(another, LedgerShape())
    assert not losses.is_work_at_fault(another, LedgerShape(sharding="off")), "it has read what the others have"
    assert [bool(crash(losses, at=100.0 * number, cause=cause)) for number in range(1, 6)] == [False] * 4 + [True]


# --- workers whose end is announced -----------------------------------------------------------------------------


def test_workers_that_are_asked_to_end_one_after_the_other_end_the_job_before_a_batch_comes() -> None:
    rig, told = JobRig(workers=Workers(1)), WorkerProgress(sigterm_received=True)
    (worker,) = rig.begin(splits=4)
    for _ in range(MOST_IN_A_ROW):
        (worker,) = started(rig.handle(events.WorkerProgressReported(worker, told), after=20.0))
        rig.place(worker)
    rig.handle(events.WorkerProgressReported(worker, told), after=20.0)
    assert "asked to end (SIGTERM)" in str(rig.job.error)


def test_a_worker_that_is_gone_when_the_next_controller_looks_for_it_is_replaced_and_nobody_is_blamed() -> None:
    rig = JobRig()
    (worker,) = rig.begin()
    rig.handle(events.ControllerRestarted())
    for _ in range(4 * MOST_IN_A_ROW):
        (another,) = started(rig.handle(events.WorkerLost(worker, "restart", "it is gone")))
        rig.handle(events.WorkerFailed(worker, ValueError("its controller was gone")))
        worker = another
    assert rig.job.error is None and rig.job.worker_table.losses.count == 0
    rig.handle(events.WorkerFailed(worker, ValueError("no such luck")))
    assert str(rig.job.error) == "no such luck", "of one that was not lost"


def test_workers_of_a_trainers_own_node_work_as_long_as_it_is_there_and_are_not_replaced() -> None:
    rig = JobRig(workers=Workers(2))
    first, second = rig.begin(splits=4)
    done = rig.handle(events.NodesLeave((("node", 120.0),)))
    assert "with it rank 0" in said(done) and "state_dict()" in said(done)
    assert not started(done) and not of_kind(DrainWorker, done)
    assert not started(rig.handle(events.WorkerLost(first, "process")))
    rig.handle(events.WorkerLost(second, "stream"))
    rig.handle(events.TimePassed())
    rig.report()
    done = rig.handle(events.TimePassed(), after=20.0)
    assert not started(done) and "no worker is started on node node" in said(done)


# --- workers that hang ------------------------------------------------------------------------------------------

AFTER_S = 30.0


def begun(on_error: OnError = "skip") -> tuple[JobRig, str]:
    rig = JobRig(on_error=on_error, hung_after_s=AFTER_S, error_budget=1.0)
    (worker,) = rig.begin()
    return rig, worker


def stuck(seconds: float, origin: Origin | None, *, reads: bool = False) -> WorkerProgress:
    text = "decode has been working on element 7 of a.jpg for {seconds}"
    return WorkerProgress(stuck=text, stuck_s=seconds, at=AtWork("decode", origin, reads))


def hang(rig: JobRig, worker: str, *, reads: bool = False) -> str:
    """Let a worker take the split, and hang in it; return the one that comes up in its place, if one does."""
    rig.assign(worker)
    (lease,) = rig.take(worker)
    done = rig.handle(events.WorkerProgressReported(worker, stuck(AFTER_S + 1, origin_of(lease, 7), reads=reads)))
    assert of_kind(KillWorker, done) == [KillWorker(worker)]
    assert "it hangs: decode has been working on element 7 of a.jpg for 31 s" in said(done)
    rig.report(settled=(worker,))
    for another in started(done):
        rig.place(another)
        return another
    return ""


def test_a_worker_that_is_busy_with_one_thing_for_too_long_is_replaced_and_others_are_left_alone() -> None:
    rig, worker = begun()
    waits = WorkerProgress(stuck="s3://a has been tried again for {seconds}: 503", stuck_s=1000.0)
    assert not of_kind(KillWorker, rig.handle(events.WorkerProgressReported(worker, waits))), (
        "a storage that is tried again"
    )
    assert not of_kind(KillWorker, rig.handle(events.WorkerProgressReported(worker, stuck(AFTER_S, None))))
    assert hang(rig, worker)
    rig.handle(events.WorkerProgressReported(worker, stuck(AFTER_S + 1, None)))
    assert rig.job.stats(rig.now).workers_lost == 1 and rig.take(worker) == ()


def test_an_element_at_which_two_workers_hang_is_left_out_or_raised_by_its_name() -> None:
    rig, worker = begun()
    third = hang(rig, hang(rig, worker))
    assert [event.text for event in rig.job.story if event.kind == "bad"] == [
        "element 7 of split 0 is left out: decode had not done with it after 30 s, twice (Config(hung_after_s=...))"
    ]
    rig.assign(third)
    (lease,) = rig.take(third)
    assert [(a >> 32, b >> 32) for a, b in lease.spans] == [(0, 7), (8, 1 << 30)], "all others are given out"
    assert rig.job.bad.count == 1
    rig, worker = begun("raise")
    hang(rig, hang(rig, worker))
    error = rig.job.error
    assert isinstance(error, OpError) and error.fields["op"] == "decode" and error.fields["element"] == 7
    assert "element 7 of split 0 cannot be processed: decode had not done with it after 30 s" in str(error)


@pytest.mark.parametrize("on_error", ["skip", "raise"])
def test_a_storage_at_which_two_workers_hang_ends_the_job_and_takes_no_element_for_bad(on_error: OnError) -> None:
    rig, worker = begun(on_error)
    hang(rig, hang(rig, worker, reads=True), reads=True)
    assert isinstance(rig.job.error, ClusterError) and "decode has been working on element 7" in str(rig.job.error)
    assert rig.job.bad.count == 0


# --- whole jobs -------------------------------------------------------------------------------------------------

ONE = Scenario(sources=((split_of(300), split_of(300, 177), split_of(300)),), batch_size=8, element_s=0.001, window=4)
HANGS = replace(ONE, sources=((split_of(300), split_of(300, 177, kind=HANGING), split_of(300)),))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("scenario", "most", "bad"),
    [
        (ONE, 6, 1),
        (replace(ONE, epochs=3), 6, 3),
        (replace(ONE, num_passes=2), 9, 2),
        (HANGS, 2, 1),
        (replace(HANGS, in_order=True, ranks=2), 2, 1),
        (replace(HANGS, names_element=False), 6, 1),
    ],
)
def test_an_element_that_kills_or_stops_workers_costs_a_few_and_is_left_out_of_the_epochs_and_passes_to_come(
    scenario: Scenario, most: int, bad: int, workers: int
) -> None:
    world = played(replace(scenario, local=workers))
    state = world.job.state
    assert state.error is None and world.deaths <= most and state.bad.count == bad
    told = [event.text for event in state.story if event.kind == "bad"]
    assert len(told) == bad and told[0].startswith("element 177 of split 1 is left out")


def test_one_sequence_ends_with_the_reason_where_workers_do_not_name_the_element_at_which_they_hang() -> None:
    error = played(replace(HANGS, in_order=True, names_element=False)).job.state.error
    assert "since it hangs: map works on it for 20 s" in str(error)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(("splits", "ranks", "workers"), [((100,) * 3, 1, 2), ((300,), 1, 5), ((7,) * 30, 3, 1)])
def test_processes_that_die_again_and_again_and_get_on_are_no_reason_to_end(
    splits: tuple[int, ...], ranks: int, workers: int, on_error: OnError
) -> None:
    source = tuple(map(split_of, splits))
    leaky = replace(ONE, sources=(source,), leaks_after=25, batch_size=10, on_error=on_error, window=2)
    world = played(replace(leaky, local=workers, ranks=ranks))
    assert world.job.state.bad.count == 0 and world.deaths > 5


class FrontReader:
    """A job of one worker at a time, which comes to an element of its only split through all those before it."""

    def __init__(
        self, elements: int, fatal: int, *, ahead: int | None = None, on_error: OnError = "skip", dies_at: int = -1
    ) -> None:
        """`ahead`: reading dies of the fatal element, and computes so many ahead; None: an operator dies of it.

        `dies_at`: a worker dies as soon as the trainer has the element before this one, and another one at this one.
        """
        self._dies_before, self._dies_at = dies_at - 1, dies_at
        self.rig = JobRig(LedgerShape(from_front=(0,)), on_error=on_error, error_budget=1.0)
        self._elements, self._fatal, self._ahead = elements, fatal, ahead
        (self._worker,) = self.rig.begin()
        self.used: list[int] = []
        self.deaths = 0

    def run(self) -> None:
        while not (self.rig.job.ledger.finished or self.rig.job.error):
            self.rig.assign(self._worker)
            for lease in self.rig.leases(self._worker):
                if not self._read(lease):
                    break
            else:
                self.rig.end(self._worker)

    def _read(self, lease: Lease) -> bool:
        first, stop = (position >> OUTPUT_BITS for position in lease.spans[0])
        for number in range(first, max(first + 1, min(stop, self._elements))):
            if number == self._fatal if self._ahead is None else number + self._ahead >= self._fatal:
                self._die()
                return False
            if number == self._dies_at:
                self._dies_at = -1
                self._die()
                return False
            if number < self._elements:
                self.rig.acknowledge(self._worker, lease, number)
                self.used.append(number)
            if number == self._dies_before >= 0:
                self._dies_before = -1
                self._die()
                return False
        if stop > self._elements:
            self.rig.ask(self._worker, AskLeases(0, 0, 1, lengths=((lease.key, self._elements),)))
        return True

    def _die(self) -> None:
        self.deaths += 1
        lost, done = self._worker, self.rig.handle(events.WorkerLost(self._worker, "process", "it died"))
        started_again = started([*done, *self.rig.report(settled=(lost,))])
        for self._worker in started_again:
            self.rig.place(self._worker)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("ahead", [None, 0, 3])
def test_an_element_that_is_read_with_those_before_it_is_blamed_only_if_one_behind_it_can_be_read(
    ahead: int | None, on_error: OnError
) -> None:
    job = FrontReader(40, 13, ahead=ahead, on_error=on_error)
    job.run()
    named = 13 - (ahead or 0)
    error, told = job.rig.job.error, [event.text for event in job.rig.job.story if event.kind == "bad"]
    text = str(error) if on_error == "raise" else told[0]
    assert text.startswith(f"element {named} of split 0") and job.deaths <= 7
    assert ("or one that its dataset computes ahead of it" in text) == (ahead is not None)
    if on_error == "skip":
        assert job.used == [n for n in range(40) if (n != 13 if ahead is None else n < named)]
        assert (error, len(told), str(job.rig.job.bad.bad_count)) == (None, 1, "1" if ahead is None else "at least 1")


def test_an_element_is_blamed_where_the_worker_that_has_read_the_one_behind_it_dies_of_something_else() -> None:
    job = FrontReader(40, 13, dies_at=15)
    job.run()
    told = [event.text for event in job.rig.job.story if event.kind == "bad"]
    assert len(told) == 1 and told[0].startswith("element 13 of split 0 is left out: it ended the process of each")
    assert job.used == [number for number in range(40) if number != 13]
