"""Rows in order where a worker fails or an element is to blame; the simulation shows that the order is kept."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pecan_ray.job import events
from pecan_ray.job.blocks import place_of
from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.resume_point import BranchPoint, Cursor, Rest, ResumePoint
from pecan_ray.job.suspicion import CRASHED
from pecan_ray.options import Workers
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Split
from pecan_ray.sampling.spans import merged
from tests.unit.job.job_rig import JobRig, elements


def numbered_job(*lengths: int | None) -> tuple[JobRig, str]:
    """Return a job of numbered rows with two workers, and the first of them, which has an assignment."""
    rig = JobRig(LedgerShape(in_row_order=True, batch_size=2), Workers(2))
    first, _ = rig.begin([Split(index, elements=one) for index, one in enumerate(lengths)])
    rig.assign(first)
    return rig, first


STEP_S = 0.25


def helped_after(rig: JobRig) -> float:
    """Let time pass until a second worker helps; return the seconds."""
    began, told = rig.now, [event.kind for event in rig.job.story].count("order")
    while [event.kind for event in rig.job.story].count("order") == told:
        assert rig.now < began + 60.0, "nobody helps"
        rig.handle(events.TimePassed(), after=STEP_S)
    return rig.now - began


def test_a_second_worker_helps_after_four_batches_time_and_later_where_it_was_of_no_use() -> None:
    rig = JobRig(LedgerShape(in_row_order=True, batch_size=2), Workers(2))
    workers = rig.begin([Split(0, elements=100)])
    for worker in workers:
        rig.assign(worker)

    def take(worker: str) -> tuple[str, Lease]:
        return worker, rig.take(worker, 2)[0]

    def bring(worker: str, lease: Lease) -> None:
        rig.handle(events.TimePassed(), after=STEP_S)
        rig.acknowledge(worker, lease, lease.spans[0][0] >> OUTPUT_BITS, 2)

    one, late = workers
    for brought in [take(worker) for worker in (one, late, one, late)][:3]:
        bring(*brought)
    assert helped_after(rig) == 4 * STEP_S * 2, "two workers: each has twice the time of a batch"
    bring(*take(one))
    row_8 = take(late)
    assert helped_after(rig) == 4 * STEP_S * 2, "the time before was that of a slow worker"
    bring(*row_8)
    take(late)
    row_12 = take(one)
    assert helped_after(rig) == 3.5 > 1.5 * (2.0 + STEP_S), "the late one was the first after all"
    rig.acknowledge(*row_12, 12, 2)
    bring(*take(one))
    assert take(late)[1].spans[0] == elements(14, 2)
    assert helped_after(rig) == 1.5, "now the other one was: rows 10 to 13 have come in the time of a batch"


def numbered_ledger(from_front: tuple[int, ...] = ()) -> Ledger:
    ledger = Ledger(LedgerShape(in_row_order=True, joined=True, batch_size=2, from_front=from_front))
    ledger.add_splits(0, [Split(index, elements=4) for index in range(3)])
    ledger.end_listing(0)
    return ledger


def test_of_joined_rows_that_are_read_from_the_front_no_second_element_in_a_row_is_blamed() -> None:
    ledger = numbered_ledger(from_front=(0,))
    for worker in "abcdefghijklmnop":
        if ledger.runs.fatal_reason:
            break
        ledger.join(worker)
        ledger.next_assignment(worker)
        (lease, *_) = ledger.take_run(worker, 100) or ()
        if lease.spans[-1][1] <= elements(1)[0] or lease.left_out:
            ledger.ack(0, worker, 0, {lease.key: lease.spans})
            continue
        ledger.lost(worker, died=CRASHED)
        ledger.settled(0, worker)
    assert "element 1 of split 0 is to blame, or one that its dataset computes ahead of it" in ledger.runs.fatal_reason
    (named,) = ledger.fatal_elements.found
    assert named.element == 1 and "or one that its dataset computes ahead of it" in named.left_out().error


def test_of_joined_rows_a_run_goes_on_behind_no_split_that_another_worker_has() -> None:
    """Also behind one that told of no element: its place would count as come, whatever it holds."""
    ledger = Ledger(LedgerShape(in_row_order=True, joined=True, one_row_each=True, batch_size=4))
    ledger.add_splits(0, [Split(index, elements=one) for index, one in enumerate((1, 0, 4))])
    ledger.end_listing(0)
    for worker in "abc":
        ledger.join(worker)
        ledger.next_assignment(worker)
    ledger.queues.bar("b", (0, 0, 2))

    def splits_of_run(worker: str, expected: int = 0) -> list[int]:
        return [lease.split.index for lease in ledger.take_run(worker, 100, expected) or ()]

    assert (splits_of_run("a", expected=4), splits_of_run("b")) == ([0], [1])
    ledger.lost("a", died=CRASHED)
    ledger.settled(0, "a")
    assert splits_of_run("c") == [0]


def test_an_engine_that_begins_anew_behind_a_part_of_a_batch_gets_whole_batches_to_the_end_of_an_epoch() -> None:
    """A graph takes long to make: the job would look slow by that, and its next run would have fewer rows still."""
    rows: dict[bool, list[int]] = {}
    for whole in (False, True):
        shape = LedgerShape(in_row_order=True, joined=True, one_row_each=True, whole_batches=whole, batch_size=4)
        ledger = Ledger(shape)
        ledger.add_splits(0, [Split(0, about=18)])
        ledger.end_listing(0)
        for worker in "ab":
            ledger.join(worker)
            ledger.next_assignment(worker)
        runs = [ledger.take_run(worker, 1) or () for worker in "ab" * 8]
        rows[whole] = [sum(elements_in(lease) or 0 for lease in run) for run in runs if run]
    assert rows[True] == [4, 4, 4, 4, 2] and rows[False][:2] == [2, 2]


def test_a_worker_that_fails_ends_the_job_when_the_rows_before_have_come() -> None:
    rig, first = numbered_job(4, 4)
    second = next(name for name in rig.job.worker_table.workers if name != first)
    (lease,) = rig.take(first, 2)
    rig.assign(second)
    (failing,) = rig.take(second, 2)
    assert (lease.spans[0], failing.spans[0][0]) == (elements(0, 2), elements(2)[0])
    fails = events.WorkerFailed(second, ValueError("no"), 2)
    rig.handle(fails)
    assert rig.job.error is None, "two rows are to come before"
    rig.acknowledge(first, lease, 0, 2)
    rig.handle(fails)
    assert rig.job.error is fails.error
    rig, worker = numbered_job(2, None)
    assert [len(rig.take(worker)) for _ in range(2)] == [1, 1] and rig.job.trainer_update(0).unordered
    rig.handle(events.WorkerFailed(worker, ValueError("no"), 100))
    assert rig.job.error is not None, "at once where no order is kept"


def test_an_error_waits_for_the_rows_before_it_also_behind_a_split_that_is_longer_than_it_told() -> None:
    rig = JobRig(LedgerShape(in_row_order=True, joined=True, one_row_each=True, batch_size=2), Workers(2))
    quick, failing = rig.begin([Split(0, elements=2), Split(1, elements=8)])
    for worker in (quick, failing):
        rig.assign(worker)
    told = rig.take(quick, 2)
    between, last = rig.take(failing, 2), rig.take(failing, 2)
    assert [lease.spans for lease in (*told, *between, *last)] == [((0, END),), (elements(0, 2),), (elements(2),)]
    fails = events.WorkerFailed(failing, ValueError("no"), place_of(1, elements(2)[0]))
    (held,) = told  # ten elements instead of two, in two blocks
    for span, rows in ((elements(0, 8), 8), ((elements(8)[0], END), 2)):
        rig.job.ledger.ack(0, quick, 0, {held.key: [span]}, rows=rows)
    assert rig.job.ledger.rows_in_turn == 2, "the window hangs on what was given out"
    rig.handle(fails)
    assert rig.job.error is None, "two rows are to come before"
    rig.acknowledge(failing, between[0], 0, 2)
    rig.handle(fails)
    assert rig.job.error is fails.error


def test_each_worker_may_have_an_element_also_where_one_becomes_more_rows_than_the_window_holds() -> None:
    """As films become frames: nobody would be given anything, and the job would stand still."""
    ledger = numbered_ledger()
    for worker in "ab":
        ledger.join(worker)
        ledger.next_assignment(worker)
    (first,) = ledger.take_run("a", 1) or ()
    ledger.ack(0, "a", 0, {first.key: first.spans}, rows=1000)
    ledger.assignment_ended("a", {})
    for worker in "ab":
        assert ledger.next_assignment(worker) == Assignment(0)
        assert [elements_in(lease) for lease in ledger.take_run(worker, 1) or ()] == [1]


def test_what_an_estimate_has_behind_the_end_of_its_split_is_one_run() -> None:
    ledger = Ledger(LedgerShape(in_row_order=True, joined=True, one_row_each=True, batch_size=4))
    ledger.add_splits(0, [Split(0, about=4000)])
    ledger.end_listing(0)
    spans = []
    for worker in "ab":
        ledger.join(worker)
        ledger.next_assignment(worker)
        (lease,) = ledger.take_run(worker, 4, 4) or ()
        spans.append(lease.spans[0])
        ledger.ended(worker, 0, lease.key, 4)
    assert spans == [elements(0, 4), (elements(4)[0], END)], "the split is passed over once"


def whole_splits(*about: int) -> Ledger:
    """Return a ledger of splits that are not cut, as compressed files are, with the workers a and b."""
    ledger = Ledger(LedgerShape(in_row_order=True, joined=True, one_row_each=True, batch_size=2))
    ledger.add_splits(0, [Split(index, about=one, whole=True) for index, one in enumerate(about)])
    ledger.end_listing(0)
    for worker in "ab":
        ledger.join(worker)
        assert ledger.next_assignment(worker) == Assignment(0)
    return ledger


def run_of(ledger: Ledger, worker: str, most: int = 1) -> list[tuple[int, object]]:
    """Return the splits and positions of a worker's next run."""
    return [(lease.split.index, lease.spans) for lease in ledger.take_run(worker, most) or ()]


def test_each_worker_makes_a_whole_split_however_many_rows_are_before_it() -> None:
    ledger = whole_splits(10**6, 10**6, 10**6)
    assert run_of(ledger, "a") == [(0, ((0, END),))] and run_of(ledger, "b") == [(1, ((0, END),))]
    assert run_of(ledger, "a") == [], "it may have to wait in the middle of this one, and others for what it was given"
    assert ledger.next_assignment("a") == Assignment(0) and run_of(ledger, "a") == [(2, ((0, END),))]


def test_small_whole_splits_are_made_together() -> None:
    ledger = whole_splits(*[3] * 8)
    assert [index for index, _ in run_of(ledger, "a", most=6)] == [0, 1]


def test_what_is_left_of_a_whole_split_goes_to_one_worker_but_for_a_batch_with_which_two_have_died() -> None:
    ledger = whole_splits(1000)
    ledger.join("c")
    ((_, first),) = run_of(ledger, "a")
    ledger.ack(0, "a", 0, {(0, 0, 0): [elements(0, 4)]}, rows=4)
    ledger.lost("a", died=CRASHED)
    ledger.settled(0, "a")
    assert (first, run_of(ledger, "b")) == (((0, END),), [(0, ((elements(4)[0], END),))])
    ledger.lost("b", died=CRASHED)
    ledger.settled(0, "b")
    ledger.next_assignment("c")
    assert run_of(ledger, "c") == [(0, (elements(4, 2),))]


def test_what_a_worker_had_made_before_stays_its_own_where_it_cannot_open_a_split() -> None:
    ledger = whole_splits(5, 5, 5)
    run_of(ledger, "a")
    ledger.assignment_ended("a", {})
    ledger.next_assignment("a")
    run_of(ledger, "a")
    ledger.seconds.replace(ledger.workers["a"])
    assert [key[2] for key in ledger.workers["a"].pending_leases] == [0]
    assert run_of(ledger, "b") == [(1, ((0, END),))]


HALF = 1 << (OUTPUT_BITS - 1)
"""An output of an element that becomes two."""
BEGUN = st.tuples(st.integers(0, 3), st.sets(st.integers(0, 5)), st.booleans())
"""How many elements a split holds, which of their outputs are used, and whether it is known that there are no more."""


def left_of(elements: int, used: set[int], ended: bool) -> tuple[tuple[int, int], ...]:
    """Return what is left of a split."""
    outputs = [(number * HALF, (number + 1) * HALF) for number in range(2 * elements) if number not in used]
    return merged([*outputs, *([] if ended else [(2 * elements * HALF, END)])])


def outputs_in(leases: list[Lease], elements: list[int]) -> list[tuple[int, int]]:
    """Return the outputs that leases hold, each with its split."""
    return [
        (lease.split.index, number)
        for lease in leases
        for start, stop in lease.spans
        for number in range(2 * elements[lease.split.index])
        if start <= number * HALF < stop
    ]


def all_leases(ledger: Ledger, worker: str) -> list[Lease]:
    """Let the only worker take all that there is, in order or as it comes."""
    ledger.join(worker)
    leases: list[Lease] = []
    more = isinstance(ledger.next_assignment(worker), Assignment)
    while more:
        given = ledger.take_run(worker, 100) if ledger.runs.kept else None
        lease = ledger.take(worker) if given is None and not ledger.runs.kept else "none"
        given = (lease,) if isinstance(lease, Lease) else given or ()
        leases += given
        more = bool(given)
    return leases


@given(st.lists(BEGUN, max_size=4), st.lists(st.integers(0, 2), max_size=2))
@example([(1, {0, 1}, False), (1, {0, 1}, False)], [1])  # two splits of which all is used but what may lie behind
@example([(2, {2, 3}, False)], [])
@example([(2, {0}, True), (2, {3}, True)], [])  # all of the second split but its end
@example([(1, {1}, True)], [0])
def test_a_run_in_order_goes_on_with_all_that_is_left_and_with_nothing_between_that_was_used(
    begun: list[tuple[int, set[int], bool]], fresh: list[int]
) -> None:
    """Else rows came twice, or the trainer waited for ever for a block between two others."""
    left = [left_of(*split) for split in begun]
    parts = tuple(Rest(index, 0, spans) for index, spans in enumerate(left) if spans)
    start = ResumePoint(0, (BranchPoint(Cursor(0, len(begun)), parts),))
    ledger = Ledger(LedgerShape(in_row_order=True, joined=True, batch_size=1000), start)
    elements = [*(held for held, _, _ in begun), *fresh]
    ledger.add_splits(0, [Split(index, elements=held) for index, held in enumerate(elements)])
    ledger.end_listing(0)
    leases = all_leases(ledger, "a")
    missing = [Lease(0, Split(index), spans) for index, spans in enumerate([*left, *[((0, END),)] * len(fresh)])]
    assert sorted(outputs_in(leases, elements)) == outputs_in(missing, elements)
    if ledger.runs.kept:
        assert [lease.starts_epoch for lease in leases] == [True, *[False] * len(leases)][: len(leases)]
        ends = [place_of(lease.split.index, lease.spans[-1][1]) for lease in leases]
        assert ends[:-1] == [place_of(lease.split.index, lease.spans[0][0]) for lease in leases[1:]]
