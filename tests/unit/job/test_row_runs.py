"""Runs of numbered rows: whatever workers do, and however many are lost, the trainer gets the rows in order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job import events
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import AskLeases, LeftOutElement, UnopenedSplit
from pecan_ray.job.resume_point import BranchPoint, Cursor, Rest, ResumePoint
from pecan_ray.job.row_runs import MOST_VAIN_DEATHS, WINDOW_BATCHES
from pecan_ray.job.row_sequence import RowSequence
from pecan_ray.job.suspicion import CRASHED
from pecan_ray.job.trainer_events import ReceivedBatch
from pecan_ray.options import Workers
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey, Split
from pecan_ray.sampling.spans import Span
from tests.long_form import examples
from tests.unit.job.job_rig import JobRig, elements, said


@dataclass
class Worker:
    """A worker that makes batches of the rows that it was given, in their order."""

    rows: deque[tuple[int, LeaseKey, Span]] = field(default_factory=deque)
    made: deque[ReceivedBatch] = field(default_factory=deque)
    """What the trainer has yet to receive."""
    works: bool = False


def spans_of(rows: list[tuple[int, LeaseKey, Span]]) -> dict[LeaseKey, list[Span]]:
    """Return the positions of rows."""
    spans: dict[LeaseKey, list[Span]] = {}
    for _, key, span in rows:
        spans.setdefault(key, []).append(span)
    return spans


class Plant:
    """A ledger, its workers, and a trainer that puts their batches in order."""

    def __init__(self, lengths: list[int], batch_size: int, start: ResumePoint | None = None, passes: int = 1) -> None:
        self.size, self.lengths = batch_size, lengths
        shape = LedgerShape(numbered=True, batch_size=batch_size, epochs=1, repetitions=passes)
        self.ledger = Ledger(shape, start)
        self.ledger.add_splits(0, [Split(index, elements=length) for index, length in enumerate(lengths)])
        self.ledger.end_listing(0)
        self.workers: dict[str, Worker] = {}
        self.sequence, self.got = RowSequence(), list[tuple[int, int]]()
        self.ids = self.most_workers = 0

    def join(self) -> None:
        name = f"w{self.ids}"
        self.ids += 1
        self.workers[name] = Worker()
        self.ledger.join(name)
        self.most_workers = max(self.most_workers, len(self.workers))

    @property
    def under_way(self) -> int:
        """Rows that were given out and have not had their turn."""
        made = [batch for worker in self.workers.values() for batch in worker.made]
        begun = sum(len(worker.rows) for worker in self.workers.values())
        return begun + sum(batch.rows for batch in (*made, *self.sequence.waiting))

    def ask(self, name: str, most: int) -> bool:
        """Let a worker ask for a run, and an assignment first if it has none; tell whether that changed anything."""
        worker = self.workers[name]
        if not worker.works:
            answer = self.ledger.next_assignment(name)
            worker.works = isinstance(answer, Assignment)
            return worker.works
        run = self.ledger.take_run(name, most)
        assert run is not None or self.ledger.runs.given_up
        if run:
            for lease in run:
                self._work(name, worker, lease)
            self._make(name, worker)
            return True
        rest = spans_of(list(worker.rows))
        worker.works = False
        assert self.ledger.assignment_ended(name, rest) == "flush" or not rest
        self._make(name, worker, ending=True)
        return True

    def _work(self, name: str, worker: Worker, lease: Lease) -> None:
        length = self.lengths[lease.split.index]
        for start, stop in lease.spans:
            for element in range(start >> OUTPUT_BITS, min(length, stop >> OUTPUT_BITS)):
                assert lease.row is not None
                worker.rows.append((lease.row + element, lease.key, elements(element)))
            if stop == END:
                self.ledger.ended(name, 0, lease.key, length)

    def _make(self, name: str, worker: Worker, *, ending: bool = False) -> None:
        while len(worker.rows) >= self.size or (ending and worker.rows):
            rows = [worker.rows.popleft() for _ in range(min(self.size, len(worker.rows)))]
            self.ids += 1
            worker.made.append(ReceivedBatch(self.ids, name, 0, spans_of(rows), len(rows), 1, row=rows[0][0]))

    def receive(self, name: str) -> None:
        if self.workers[name].made:
            for batch in self.sequence.came(self.workers[name].made.popleft()):
                assert batch.row is not None
                self.got.append((batch.row, batch.rows))
                self.ledger.acked(0, batch.worker, 0, batch.spans)

    def lose(self, name: str) -> None:
        del self.workers[name]
        self.sequence.lose(name)
        self.ledger.lost(name, died=CRASHED)
        self.ledger.settled(0, name)

    def finish(self) -> None:
        """Let everybody work until nothing more can be done."""
        if not self.workers:
            self.join()
        for _ in range(10_000):
            if self.ledger.finished:
                return
            for name in self.workers:
                self.ask(name, 2 * self.size)
                while self.workers[name].made:
                    self.receive(name)
        raise AssertionError("it does not come to an end")


ACTS = st.lists(
    st.tuples(st.sampled_from(("join", "ask", "ask", "ask", "receive", "receive", "lose")), st.integers(0, 99))
)


@examples(300)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 7), ACTS, st.integers(1, 2))
def test_rows_come_in_order_and_once_whatever_workers_do(
    lengths: list[int], size: int, acts: list[tuple[str, int]], passes: int
) -> None:
    plant = Plant(lengths, size, passes=passes)
    plant.join()
    for act, number in acts:
        names = list(plant.workers)
        name = names[number % len(names)] if names else ""
        if act == "join" or not names:
            plant.join()
        elif act == "ask":
            plant.ask(name, number)
        elif act == "receive":
            plant.receive(name)
        else:
            plant.lose(name)
        check_ledger(plant.ledger)
        assert plant.under_way <= WINDOW_BATCHES * size * plant.most_workers
        if plant.ledger.runs.given_up:
            return
    plant.finish()
    rows = passes * sum(lengths)
    assert plant.got == [(first, min(size, rows - first)) for first in range(0, rows, size)]


def held(start: int, stop: int) -> tuple[Span, ...]:
    """Return the positions of some elements."""
    return ((start << OUTPUT_BITS, END if stop < 0 else stop << OUTPUT_BITS),)


def test_a_run_that_goes_on_numbers_its_rows_from_where_it_stands() -> None:
    # 7 of 12 rows were used, and the rest of the first split came back.
    rests = (Rest(1, 0, held(3, -1)),)
    plant = Plant([4, 4, 4], 2, ResumePoint(0, (BranchPoint(Cursor(taken=2), rests),)))
    plant.finish()
    assert plant.got == [(0, 2), (2, 2), (4, 1)]
    assert not plant.ledger.runs.given_up


@pytest.mark.parametrize("rests", [(Rest(0, 0, held(1, 2)), Rest(1, 0, held(3, -1))), (Rest(0, 0, held(1, 2)),)])
def test_a_state_of_which_rows_behind_others_are_used_cannot_go_on_in_order(rests: tuple[Rest, ...]) -> None:
    plant = Plant([4, 4, 4], 2, ResumePoint(0, (BranchPoint(Cursor(taken=2), rests),)))
    plant.join()
    plant.ledger.next_assignment("w0")
    assert "goes on from a state" in plant.ledger.runs.given_up


def numbered_job(*lengths: int | None) -> tuple[JobRig, str]:
    """Return a job of numbered rows with two workers, and the first of them, which has an assignment."""
    rig = JobRig(LedgerShape(numbered=True, batch_size=2), Workers(2))
    workers = rig.come()
    for worker in workers:
        rig.place(worker)
    rig.handle(events.SplitsListed(0, tuple(Split(index, elements=one) for index, one in enumerate(lengths))))
    rig.handle(events.ListingEnded(0))
    rig.assign(workers[0])
    return rig, workers[0]


def test_the_order_is_given_up_where_a_split_is_not_counted() -> None:
    rig, worker = numbered_job(2, None)
    assert [lease.row for lease in rig.take(worker)] == [0]
    (lease,) = rig.take(worker)
    assert (lease.split.index, lease.row) == (1, None)
    assert "rows come as workers finish them" in said(rig.done[-1])
    assert rig.job.orders(0).unordered


def test_the_order_is_given_up_where_a_split_is_shorter_than_it_told() -> None:
    rig, worker = numbered_job(4, 4)
    rig.take(worker, 4)
    rig.answer(worker, AskLeases(0, 0, 4, lengths=(((0, 0, 0), 3),)))
    assert "of split 0 4 elements were told, and it holds 3" in rig.job.facts(rig.now).order_given_up


def test_the_order_is_given_up_where_a_worker_cannot_open_a_split() -> None:
    rig, worker = numbered_job(4, 4)
    (lease,) = rig.take(worker, 4)
    error = LeftOutElement("0", "read", "split 0", "it is not there")
    rig.answer(worker, AskLeases(0, 0, 4, unopened=(UnopenedSplit(lease.key, lease.spans, error),)))
    assert f"{worker} cannot open split 0" in rig.job.facts(rig.now).order_given_up


def test_a_few_deaths_leave_the_order_and_more_of_them_in_a_row_give_it_up() -> None:
    plant = Plant([8, 8], 2)
    for died in range(MOST_VAIN_DEATHS + 1):
        assert not plant.ledger.runs.given_up
        plant.join()
        (name,) = plant.workers
        plant.ask(name, 2)
        plant.ask(name, 2)
        plant.lose(name)
        assert bool(plant.ledger.runs.given_up) == (died == MOST_VAIN_DEATHS)


def test_batches_that_wait_are_let_go_in_order_when_it_is_given_up_and_dropped_with_their_epoch() -> None:
    sequence = RowSequence()
    late = [ReceivedBatch(row, "w", epoch, {}, 2, 1, row=row) for epoch, row in ((0, 6), (0, 2), (1, 4))]
    assert [sequence.came(batch) for batch in late] == [()] * 3
    assert sequence.leave(1) == [late[1], late[0]]
    assert sequence.give_up() == [late[2]]
    assert sequence.came(late[0]) == (late[0],)
