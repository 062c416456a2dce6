"""What is waited for: said once, again when it changes, and forgotten when it is over."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from pecan_ray.job import events
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskAssignment, AskLeases, WorkerProgress
from pecan_ray.job.waiting import Waits
from pecan_ray.options import Workers
from tests.unit.job.job_rig import JobRig, said


def test_what_is_waited_for_is_said_once_and_again_when_it_was_over() -> None:
    waits = Waits(5.0)
    assert waits.look(0.0, {"a": "for a"}) == [] and waits.look(4.9, {"a": "for a"}) == []
    assert waits.look(5.0, {"a": "for a"}) == ["for a"]
    assert waits.look(500.0, {"a": "for a"}) == [] and waits.active_messages == ("for a",)
    assert waits.look(501.0, {}) == [] and not waits.active_messages
    assert waits.look(502.0, {"a": "for a"}) == [] and waits.look(506.9, {"a": "for a"}) == []
    assert waits.look(507.0, {"a": "for a"}) == ["for a"]


def test_it_is_said_again_when_it_changes_but_not_all_the_time() -> None:
    waits = Waits(5.0)
    waits.look(0.0, {"a": "for 3 of a"})
    assert waits.look(6.0, {"a": "for 3 of a"}) == ["for 3 of a"]
    assert waits.look(6.2, {"a": "for 2 of a"}) == []
    assert waits.look(6.4, {"a": "for 3 of a"}) == [] and waits.due is None, "what changes back needs no word"
    assert waits.look(6.5, {"a": "for 2 of a"}) == [] and waits.due == 11.0
    assert waits.look(10.9, {"a": "for 1 of a"}) == [] and waits.active_messages == ("for 3 of a",)
    assert waits.look(11.0, {"a": "for 1 of a"}) == ["for 1 of a"] and waits.due is None
    assert waits.active_messages == ("for 1 of a",)


def test_how_long_it_has_been_is_filled_in_and_makes_no_other_text_of_it() -> None:
    waits = Waits(5.0)
    text: dict[Hashable, str] = {"a": "{'cpu': 1} since {seconds}"}
    waits.look(0.0, text)
    assert waits.look(7.0, text) == ["{'cpu': 1} since 7 s"]
    assert waits.look(70.0, text) == [] and waits.active_messages == ("{'cpu': 1} since 7 s",)


def look(rig: JobRig, seconds: float = 6.0) -> str:
    """Let time pass in a job; return what it says meanwhile."""
    return said(rig.handle(events.TimePassed())) + said(rig.handle(events.TimePassed(), after=seconds))


def test_a_job_says_which_ranks_have_not_come() -> None:
    rig = JobRig(LedgerShape(world_size=20))
    for rank in (0, 2, 3):
        rig.handle(events.TrainerCame(rank, f"t{rank}", "node"))
    text = look(rig)
    assert "ranks 1, 4, 5, 6, 7, 8, 9, 10 and 9 more of 20 did not come within 6 s" in text
    assert look(rig) == ""


def test_a_job_says_in_what_a_rank_differs_that_it_waits_for_until_it_comes_as_the_others_are() -> None:
    rig = JobRig(LedgerShape(world_size=3))
    rig.handle(events.TrainerCame(0, "t0", "node", (("map", "1"),)))
    rig.handle(events.TrainerCame(1, "t1", "node", (("map", "{2}"),)))
    text = look(rig)
    assert "ranks 1, 2 of 3 did not come" in text
    assert "rank 1 differs from rank 0 in map: {2} instead of 1, and was refused" in text
    rig.handle(events.TrainerCame(1, "t1", "node", (("map", "1"),)))
    text = look(rig)
    assert "rank 2 of 3 did not come" in text and "differs" not in text


def test_a_job_says_that_its_listing_is_hindered_by_the_storage() -> None:
    rig = JobRig()
    rig.come()
    text = "s3://data/ has been tried again for {seconds}: 503"
    done = rig.handle(events.ListingRetrying(text, 5.0)) + rig.handle(events.TimePassed())
    assert said(done) == "the sources are being listed: s3://data/ has been tried again for 5 s: 503"
    rig.handle(events.ListingRetrying(""))
    rig.handle(events.TimePassed())
    assert rig.job.orders(0).waits == ()


@pytest.mark.parametrize("unplaced", [1, 3])
def test_a_job_says_which_workers_have_no_place_and_why(unplaced: int) -> None:
    rig = JobRig(workers=Workers(1, unplaced))
    local, *others = rig.come()
    rig.place(local)
    rig.list_splits(1)
    for worker in others:
        rig.handle(events.WorkerPending(worker, "job other has all CPUs of far"))
    text = look(rig)
    assert "job other has all CPUs of far" in text and others[0] in text and text.count("\n") == 0
    assert ("2 more remote" in text) == (unplaced == 3)
    assert rig.job.orders(0).waits == (text,), "trainers are told too"
    for worker in others:
        rig.place(worker, "far")
    rig.handle(events.TimePassed())
    assert rig.job.orders(0).waits == ()


def test_a_job_says_that_the_sources_are_being_listed_where_workers_wait_for_it() -> None:
    rig = JobRig()
    (worker,) = rig.come()
    rig.place(worker)
    rig.assign(worker)
    assert look(rig) == ""
    rig.ask(worker, AskLeases(0, 0))
    assert "listed: 0 splits are known" in look(rig)


def test_a_job_says_that_the_order_of_operators_is_not_known() -> None:
    rig = JobRig(ordered=False)
    (worker,) = rig.begin()
    rig.ask(worker, AskAssignment())
    assert "order of operators" in look(rig)
    rig.handle(events.OrderKnown(changed=True))
    assert look(rig) == ""


def test_what_a_worker_has_been_doing_for_long_is_said_at_once_and_again_when_it_is_something_else() -> None:
    rig = JobRig()
    (worker,) = rig.begin()
    rig.handle(events.WorkerTold(worker, WorkerProgress(stuck="decode on a.jpg for {seconds}", stuck_s=5.5)))
    assert said(rig.handle(events.TimePassed(), after=0.5)).endswith(f"{worker}: decode on a.jpg for 6 s")
    rig.handle(events.WorkerTold(worker, WorkerProgress(stuck="decode on a.jpg for {seconds}", stuck_s=9.0)))
    assert said(rig.handle(events.TimePassed(), after=3.0)) == ""
    rig.handle(events.WorkerTold(worker, WorkerProgress(stuck="decode on b.jpg for {seconds}", stuck_s=5.0)))
    assert said(rig.handle(events.TimePassed())).endswith(f"{worker}: decode on b.jpg for 5 s")
    rig.handle(events.WorkerTold(worker, WorkerProgress()))
    rig.handle(events.TimePassed())
    assert rig.job.orders(0).waits == ()


def test_a_job_says_which_ranks_must_settle() -> None:
    rig = JobRig(LedgerShape(world_size=3), Workers(2))
    first, _ = rig.begin()
    rig.assign(first)
    rig.take(first)
    rig.handle(events.WorkerLost(first, "process"))
    rig.report(1, settled=(first,))
    assert f"ranks 0, 2 must yet say what came from {first}" in look(rig)
