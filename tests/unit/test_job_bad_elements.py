"""Bad elements: each counted once, by elements, and how many a job bears."""

from __future__ import annotations

from dataclasses import replace

from pecan_ray.errors import ErrorBudgetError
from pecan_ray.job import bad_elements, events
from pecan_ray.job.bad_elements import BadElements, QuarantineQueue
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskLeases, EndData, LeftOutElement
from pecan_ray.job.questions import MOST_LOGGED
from tests.unit.job_rig import JobRig, said


def bad(number: int, count: int = 1) -> LeftOutElement:
    """A bad element."""
    return LeftOutElement(("decode", "a.jpg", number), "decode", f"element {number} of a.jpg", "torn", count)


def test_an_element_that_is_read_again_counts_once() -> None:
    known = BadElements("job", 0.01)
    assert known.add([bad(1), bad(2), bad(1)]) == [bad(1), bad(2)]
    assert known.add([bad(2), bad(3)]) == [bad(3)]
    assert known.count == 3


def test_the_rest_of_a_broken_split_counts_by_its_elements() -> None:
    known = BadElements("job", 0.01)
    known.add([bad(1, count=500)])
    assert known.count == 500
    assert known.over_budget(good=50_000) is None
    error = known.over_budget(good=1_000)
    assert isinstance(error, ErrorBudgetError) and "500 elements" in str(error) and "a.jpg" in str(error)


def test_a_few_bad_elements_are_always_borne() -> None:
    known = BadElements("job", 0.0)
    assert known.over_budget(0) is None
    known.add([bad(number) for number in range(10)])
    assert known.over_budget(0) is None
    known.add([bad(10)])
    assert known.over_budget(0) is not None


def test_memory_is_bounded_and_the_newest_are_remembered() -> None:
    known, most = BadElements("job", 1.0), bad_elements.MOST_REMEMBERED
    known.add(bad(number) for number in range(most + 5))
    assert known.add([bad(most + 4), bad(5)]) == []
    assert known.add([bad(0)]) == [bad(0)]


def test_a_bad_element_that_worker_and_trainer_report_counts_once_and_is_told_once() -> None:
    rig = JobRig()
    (worker,) = rig.begin()
    rig.assign(worker)
    rig.take(worker)
    first = said(rig.ask(worker, EndData(0, {}, left_out=(bad(1),))))
    assert "left out element 1 of a.jpg in decode: torn" in first
    assert said(rig.report(left_out=(bad(1), bad(2)))).count("left out") == 1
    assert rig.job.facts(0.0).bad_elements == 2


def test_a_broken_split_is_told_however_many_elements_it_had() -> None:
    rig = JobRig(error_budget=1.0)
    rig.begin()
    assert "left out element 1" in said(rig.report(left_out=(bad(1, count=10 * MOST_LOGGED),)))


def test_too_many_bad_elements_end_the_job_at_once() -> None:
    rig = JobRig(error_budget=0.5)
    (worker,) = rig.begin()
    rig.assign(worker)
    (lease,) = rig.take(worker)
    rig.acknowledge(worker, lease, 0, count=20)
    rig.report(left_out=tuple(bad(number) for number in range(20)))
    assert rig.job.error is None
    rig.report(left_out=(bad(20),))
    assert isinstance(rig.job.error, ErrorBudgetError)
    assert rig.job.orders(0).error is rig.job.error
    assert rig.answer(worker, AskLeases(0, 0)) == (), "workers get nothing more"


def test_only_the_first_bad_elements_are_told_one_by_one() -> None:
    rig = JobRig(error_budget=1.0)
    rig.begin()
    done = rig.report(left_out=tuple(bad(number) for number in range(3 * MOST_LOGGED)))
    assert said(done).count("left out") == MOST_LOGGED
    assert rig.job.facts(0.0).bad_elements == 3 * MOST_LOGGED


def keeping(ranks: int = 1) -> tuple[JobRig, str]:
    """A job that keeps bad elements, and its worker, which has begun."""
    rig = JobRig(LedgerShape(world_size=ranks), on_error="quarantine", error_budget=1.0)
    (worker,) = rig.begin()
    rig.assign(worker)
    return rig, worker


def test_what_no_batch_brings_is_told_to_one_trainer_until_it_has_it() -> None:
    rig, worker = keeping(ranks=2)
    rig.ask(worker, EndData(0, {}, left_out=(bad(1), bad(2))))
    assert rig.job.orders(0).quarantine == (bad(1), bad(2)) and rig.job.orders(1).quarantine == ()
    rig.report(0, quarantined=1)
    rig.ask(worker, EndData(0, {}, left_out=(bad(2), bad(3))))
    orders = rig.job.orders(0)
    assert (orders.quarantined, orders.quarantine) == (1, (bad(2), bad(3)))
    rig.report(0, quarantined=3)
    assert rig.job.orders(0) == rig.job.orders(1)
    rig.report(0, left_out=(bad(4),))
    assert rig.job.orders(0).quarantine == (), "it has what a batch has brought"


def test_a_trainer_that_leaves_hands_on_what_it_has_not_taken() -> None:
    rig, worker = keeping(ranks=2)
    rig.ask(worker, EndData(0, {}, left_out=(bad(1), bad(2))))
    rig.report(0, quarantined=1)
    rig.handle(events.TrainerLeft(0, "t0"))
    assert (rig.job.orders(1).quarantined, rig.job.orders(1).quarantine) == (1, (bad(2),))


def test_nothing_is_told_where_nothing_is_to_be_kept() -> None:
    rig = JobRig()
    (worker,) = rig.begin()
    rig.assign(worker)
    rig.ask(worker, EndData(0, {}, left_out=(bad(1),)))
    assert rig.job.orders(0).quarantine == ()


def test_what_waits_for_a_trainer_is_bounded() -> None:
    queue, size = QuarantineQueue(), bad_elements.MOST_KEPT_BYTES // 4
    queue.add(replace(bad(number), kept=bytes(size)) for number in range(6))
    assert [len(one.kept) for one in queue.waiting] == [size] * 4 + [0] * 2
    assert queue.waiting[5].error == "torn (not kept: too much waited to be)"
    queue.took(2)
    queue.took(2)
    queue.add([replace(bad(6), kept=bytes(size))])
    assert [len(one.kept) for one in queue.waiting] == [size] * 2 + [0] * 2 + [size]
    queue.took(100)
    assert (queue.waiting, queue.taken) == ((), 7)
