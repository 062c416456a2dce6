"""Which order of rows is in force, and when a run gives it up; the simulation shows that it is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pecan_ray.job import events
from pecan_ray.job.blocks import place_of
from pecan_ray.job.lease_rows import rows_of
from pecan_ray.job.lease_sizes import elements_in
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import AskLeases, EndAssignment, LeftOutElement, SplitOpenFailure
from pecan_ray.job.row_order import row_order
from pecan_ray.job.slow_head import SlowHead
from pecan_ray.job.suspicion import CRASHED
from pecan_ray.options import AutoWorkers, IterOptions, Workers
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import END, OUTPUT_BITS, Split
from pecan_ray.sources import Arrays, TextLines
from tests.unit.job.job_rig import JobRig, elements, said

ROWS = PecanPipeline(Arrays(x=np.arange(10)), name="rows")
PLAIN, SHUFFLED, FIRSTS = ROWS.batch(4), ROWS.shuffle(5).batch(4), ROWS.shuffle(5).take(3)
FILTERED, LINES = ROWS.filter(bool, on="x"), PecanPipeline(TextLines("x.txt"), name="lines")
WHOLE, PADDED = FILTERED.batch(4).map(dict), FILTERED.padded_batch(4)
ONE, REMOTE = Workers(local=1), Workers(local=0, remote=1)


@pytest.mark.parametrize(
    ("pipe", "options", "kept", "why"),
    [
        (PLAIN, {"workers": REMOTE}, True, "whatever the workers"),
        (PLAIN, {"workers": AutoWorkers()}, True, "whatever the workers"),
        (FILTERED.batch(4).repeat(2), {"workers": AutoWorkers()}, True, "whatever the workers"),
        (FILTERED, {"workers": REMOTE}, True, "whatever the workers"),
        (WHOLE, {"workers": ONE}, True, "no operator shuffles, and one worker makes them"),
        (LINES, {"workers": REMOTE}, True, "no operator shuffles, and one worker makes them"),
        (PLAIN, {"workers": ONE, "sharding": "static"}, True, "no operator shuffles, and one worker makes them"),
        (PLAIN, {"workers": ONE, "order": "relaxed"}, False, 'as order="relaxed" says'),
        (WHOLE, {"workers": Workers(local=2)}, False, "bool leaves elements out, and dict works on whole batches"),
        (PADDED, {"workers": Workers(local=2)}, False, "padded_batch makes batches of rows that are known to one"),
        (ROWS.flat_map(list), {"workers": AutoWorkers()}, True, "whatever the workers"),
        (ROWS.flat_map(list).batch(2).map(dict), {"workers": AutoWorkers()}, False, "list makes several elements"),
        (ROWS.autocache(), {"workers": AutoWorkers()}, False, "autocache keeps what whole splits give"),
        (LINES, {"workers": AutoWorkers()}, False, "TextLines learns how many elements its splits hold by"),
        (PLAIN, {"workers": AutoWorkers(), "on_error": "skip"}, True, "whatever the workers"),
        (
            ROWS.batch(2).map(dict),
            {"workers": AutoWorkers(), "on_error": "skip"},
            False,
            "elements out, and dict works",
        ),
        (PLAIN, {"workers": AutoWorkers(), "visitation": "at_most_once"}, False, "'at_most_once' promises less"),
        (PLAIN, {"workers": AutoWorkers(), "world_size": 2}, True, "rank r of 2 gets batches r, r + 2"),
        (FILTERED, {"workers": ONE, "world_size": 2}, False, "a filter or flat_map decides late which row an element"),
        (
            PLAIN,
            {"workers": ONE, "world_size": 2, "coordinated": True},
            False,
            "coordinated=True makes batches in rounds",
        ),
        (PLAIN, {"workers": Workers(local=2), "order": "strict"}, True, 'as order="strict" asks for'),
        (SHUFFLED, {"workers": ONE}, False, "the pipeline shuffles, mixes or makes buckets"),
        (PLAIN.mix(PLAIN, weights=[1, 1]), {"workers": ONE}, False, "the pipeline shuffles, mixes or makes buckets"),
        (FIRSTS, {"workers": AutoWorkers()}, True, "one worker runs it"),
    ],
)
def test_the_order_in_force_and_its_reason(pipe: PecanPipeline, options: dict[str, Any], kept: bool, why: str) -> None:
    found = row_order(IterOptions(**options), plan_shape(pipe.plan))
    assert found.kept is kept
    assert why in found.why


def test_the_order_is_told_where_it_ends_while_a_job_runs_and_in_debug_mode() -> None:
    several = row_order(IterOptions(workers=ONE), plan_shape(LINES.plan), workers=2)
    assert "as workers finish them, since scale() has asked for several" in several.why
    given_up = row_order(IterOptions(), plan_shape(PLAIN.plan), given_up="a split was longer")
    assert given_up.kept and "as workers finish them from now on: a split was longer" in given_up.why
    assert PLAIN.iter_batches(debug=True).explain().endswith("order: batches come in one sequence.")


def numbered_job(*lengths: int | None) -> tuple[JobRig, str]:
    """Return a job of numbered rows with two workers, and the first of them, which has an assignment."""
    rig = JobRig(LedgerShape(in_row_order=True, batch_size=2), Workers(2))
    first, _ = rig.begin([Split(index, elements=one) for index, one in enumerate(lengths)])
    rig.assign(first)
    return rig, first


def test_the_order_is_given_up_where_a_split_is_not_counted_is_shorter_than_it_told_or_cannot_be_opened() -> None:
    rig, worker = numbered_job(2, None)
    assert [lease.row for lease in rig.take(worker)] == [0]
    (lease,) = rig.take(worker)
    assert (lease.split.index, lease.row) == (1, None)
    assert "rows come as workers finish them" in said(rig.done[-1]) and rig.job.trainer_update(0).unordered
    rig, worker = numbered_job(4, 4)
    rig.take(worker, 4)
    rig.response(worker, AskLeases(0, 0, 4, lengths=(((0, 0, 0), 3),)))
    assert "of split 0 4 elements were told, and it holds 3" in rig.job.stats(rig.now).order_given_up
    rig, worker = numbered_job(4, 4)
    (lease,) = rig.take(worker, 4)
    failure = SplitOpenFailure(lease.key, lease.spans, LeftOutElement("0", "read", "split 0", "it is not there"))
    rig.response(worker, AskLeases(0, 0, 4, split_open_failures=(failure,)))
    assert f"{worker} cannot open split 0" in rig.job.stats(rig.now).order_given_up


def numbered_ledger(*, promised: bool = False, joined: bool = False, from_front: tuple[int, ...] = ()) -> Ledger:
    shape = LedgerShape(in_row_order=True, joined=joined, order_required=promised, batch_size=2, from_front=from_front)
    ledger = Ledger(shape)
    ledger.add_splits(0, [Split(index, elements=4) for index in range(3)])
    ledger.end_listing(0)
    return ledger


@pytest.mark.parametrize(("expected", "rows"), [(1, 12), (2, 2)])
def test_the_first_worker_leaves_rows_to_those_that_are_being_started(expected: int, rows: int) -> None:
    """Else a short epoch is one run: what comes a moment later would stand by until the next epoch.

    A quarter of the rows are three, and runs of more than a batch are whole batches.
    """
    ledger = numbered_ledger(joined=True)
    ledger.join("first")
    ledger.next_assignment("first")
    run = ledger.take_run("first", 100, expected) or ()
    assert sum(elements_in(lease) or 0 for lease in run) == rows


def die(ledger: Ledger, worker: str) -> None:
    """Let a worker come and die with the first run that it is given."""
    ledger.join(worker)
    ledger.next_assignment(worker)
    assert ledger.take_run(worker, 100)
    ledger.lost(worker, died=CRASHED)
    ledger.settled(0, worker)


@pytest.mark.parametrize("promised", [False, True])
def test_a_batch_that_workers_die_of_alone_ends_the_order_and_nothing_else_does(promised: bool) -> None:
    ledger = numbered_ledger(promised=promised)
    die(ledger, "a")
    die(ledger, "b")
    ledger.join("c")
    ledger.next_assignment("c")
    (lease,) = ledger.take_run("c", 100) or ()
    assert lease.spans == ((elements(0)[0], elements(1)[1]),), "two have died with it, and with more"
    assert ledger.take_run("c", 100) == (), "it works on nothing else"
    ledger.ack(0, "c", 0, {lease.key: lease.spans})
    for worker in "def":
        assert ledger.runs.kept and not ledger.runs.fatal_reason
        die(ledger, worker)
    assert "worked on rows 2 to 3 of epoch alone" in (ledger.runs.fatal_reason if promised else ledger.runs.given_up)
    assert ledger.runs.kept == promised


def test_of_joined_rows_an_element_that_workers_die_of_alone_yields_nothing_at_its_place() -> None:
    ledger = numbered_ledger(joined=True)
    for worker in "abc":  # the last one of the batch alone
        die(ledger, worker)
    alone: list[tuple[int, bool]] = []
    for worker in "defgh":
        ledger.join(worker)
        ledger.next_assignment(worker)
        (lease,) = ledger.take_run(worker, 100) or ()
        alone.append((lease.spans[0][0] >> OUTPUT_BITS, lease.left_out))
        if alone[-1] == (1, False):
            ledger.lost(worker, died=CRASHED)
            ledger.settled(0, worker)
        else:
            ledger.ack(0, worker, 0, {lease.key: lease.spans})
    assert alone == [(0, False), (1, False), (1, False), (1, True), (2, False)] and ledger.runs.kept
    assert [one.element for one in ledger.fatal_elements.found] == [1]


def test_of_joined_rows_that_are_read_from_the_front_no_second_element_in_a_row_is_blamed() -> None:
    ledger = numbered_ledger(joined=True, from_front=(0,))
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


def test_of_joined_rows_what_a_worker_cannot_open_is_for_others_and_yields_nothing_where_none_can() -> None:
    rig = JobRig(LedgerShape(in_row_order=True, joined=True, batch_size=2), Workers(2), on_error="skip")
    one, other = rig.begin([Split(0, elements=4), Split(1, elements=4)])
    for worker in (one, other):
        rig.assign(worker)
        (lease,) = rig.take(worker, 4)
        assert (lease.split.index, lease.spans[0][0], lease.left_out) == (0, 0, False)
        failure = SplitOpenFailure(lease.key, lease.spans, LeftOutElement("0", "read", "split 0", "it is not there"))
        rig.response(worker, EndAssignment(0, {}, split_open_failures=(failure,)))
    rig.assign(one)
    (lease,) = rig.take(one, 4)
    assert (lease.split.index, lease.left_out) == (0, True) and rig.job.stats(rig.now).order_given_up == ""


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


def test_rows_that_all_wait_for_belong_to_a_second_worker_and_are_used_once() -> None:
    ledger, head = numbered_ledger(), SlowHead()
    for worker in ("late", "quick"):
        ledger.join(worker)
        ledger.next_assignment(worker)
    (first,) = ledger.take_run("late", 2) or ()
    (second,) = ledger.take_run("late", 2) or ()
    (third,) = ledger.take_run("quick", 2) or ()
    assert not any(head.look(ledger, 0, now) for now in (0.0, 1e6)), "nothing has come yet"
    ledger.ack(0, "late", 0, {first.key: first.spans})
    assert not any(head.look(ledger, queued, now) for queued, now in ((0, 10.0), (1, 1e9)))
    assert head.look(ledger, 0, 1e9) == "late"
    check_ledger(ledger)
    assert ledger.take_run("late", 2) == (), "it has these rows"
    assert ledger.take_run("quick", 2) == (second,)
    assert not head.look(ledger, 0, 2e9), "no third one gets them"
    ledger.ack(0, "late", 0, {second.key: second.spans})  # it comes all the same, and first
    assert list(ledger.workers["quick"].pending_leases) == [third.key]


@pytest.mark.parametrize("step_s", [0.0, 30.0])
def test_a_worker_is_late_by_what_workers_need_and_not_by_their_start_or_the_steps_of_the_trainer(
    step_s: float,
) -> None:
    ledger, head, now = numbered_ledger(), SlowHead(), 0.0
    for worker in ("late", "quick"):
        ledger.join(worker)
        ledger.next_assignment(worker)
    runs = [lease for _ in range(4) for lease in ledger.take_run("late", 2) or ()]
    head.look(ledger, 0, now)
    for lease, waited_s in zip(runs[:3], (60.0, 0.1, 0.1), strict=True):  # for 60 s workers start
        now += waited_s
        ledger.ack(0, "late", 0, {lease.key: lease.spans})
        head.look(ledger, 0, now)
        now += step_s
        head.look(ledger, 1, now)
    assert head.look(ledger, 0, now + 1.1) == "late"


def test_in_the_last_round_a_rank_gets_an_even_share_which_a_second_worker_makes_where_the_first_is_late() -> None:
    ledger, head = Ledger(LedgerShape(in_row_order=True, world_size=2, batch_size=4)), SlowHead()
    ledger.add_splits(0, [Split(0, elements=9), Split(1, elements=0), Split(2, elements=2)])
    ledger.end_listing(0)
    for worker in ("quick", "late"):
        ledger.join(worker)
        ledger.next_assignment(worker)
    for rank in range(2):
        (lease,) = ledger.take_run("quick", 4) or ()
        ledger.ack(rank, "quick", 0, {lease.key: lease.spans})
        head.look(ledger, 0, rank)
    (first,) = ledger.take_run("late", 100) or ()
    assert (rows_of(first), ledger.workers["late"].ends) == ((8, 9), True), "the shares are of one row and of two"
    assert ledger.take_run("quick", 4) == (), "a share is an assignment of its own"
    for worker in ("quick", "third"):
        ledger.join(worker)
        ledger.next_assignment(worker)
    second = ledger.take_run("quick", 100) or ()
    assert [(lease.key[2], rows_of(lease)) for lease in second] == [(1, (12, 12)), (2, (12, 14))]
    ledger.ack(1, "quick", 0, {lease.key: lease.spans for lease in second})
    assert head.look(ledger, 0, 3.0) == "" and head.look(ledger, 0, 1e9) == "late"
    assert ledger.take_run("third", 100) == (first,)
    ledger.ack(0, "late", 0, {first.key: first.spans})
    assert not any(state.holds for state in ledger.workers.values()), "it comes all the same, and first"


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
    ledger = numbered_ledger(joined=True)
    for worker in "ab":
        ledger.join(worker)
        ledger.next_assignment(worker)
    (first,) = ledger.take_run("a", 1) or ()
    ledger.ack(0, "a", 0, {first.key: first.spans}, rows=1000)
    ledger.assignment_ended("a", {})
    for worker in "ab":
        assert ledger.next_assignment(worker) == Assignment(0)
        assert [elements_in(lease) for lease in ledger.take_run(worker, 1) or ()] == [1]
