"""Bad elements: each counted once, by elements, and kept for a trainer within bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.errors import ErrorBudgetError
from pecan_ray.job import bad_elements
from pecan_ray.job.bad_elements import BadElements, QuarantineQueue
from pecan_ray.job.messages import LeftOutElement, TrainerProgress
from pecan_ray.job.spec import ErrorPolicy
from pecan_ray.observe.report import Report
from pecan_ray.plan.splits import END
from pecan_ray.sampling.budget import BadCount, elements_in_hand, over_budget
from tests.protocol.scenario import BAD, Fault, Scenario, SplitModel
from tests.unit.job.job_histories import played, split_of
from tests.unit.job.job_rig import JobRig, elements

KEY = (0, 0, 7)


def parts(one_of: int) -> tuple[SplitModel, ...]:
    """A source of 800 elements, of which the last one of each so many is bad."""
    return tuple(split_of(200, *range(one_of - 1, 200, one_of), kind=BAD) for _ in range(4))


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
    rig = JobRig(errors=ErrorPolicy(budget=1.0))
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


@pytest.mark.parametrize(
    ("unfinished", "held"),
    [
        ([(KEY, [elements(0, 10)])], 3),  # without the bad ones, and without what lies behind them
        ([(KEY, [(5, 6), elements(2)]), (KEY, [elements(3), (elements(4)[0], END)])], 3),
        ([((0, 0, 8), [(0, END)])], 0),  # nothing tells that any of it was read
    ],
)
def test_what_is_unfinished_before_a_bad_element_is_in_hand(unfinished: Any, held: int) -> None:
    assert elements_in_hand({KEY: {4, 1, 5}}, unfinished) == held


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("faults", [(), (Fault(0.2, "kill controller", seconds=1.0), Fault(0.5, "kill worker"))])
def test_a_tenth_within_the_budget_never_ends_a_job_whatever_waits_and_a_fifth_ends_it_soon(
    seed: int, faults: tuple[Fault, ...]
) -> None:
    queues: dict[str, Any] = {
        "batch_size": 8 << seed % 3,
        "window": 64,
        "local": 1 + seed % 3,
        "prefetch_bytes": 1 << 26,
    }
    borne = Scenario(seed, (parts(10),), error_budget=0.1, epochs=2, ranks=1 + seed // 3, **queues)
    assert borne.within_budget
    state = played(replace(borne, faults=faults)).job.state
    assert state.error is None and state.bad.count == 2 * 80
    error = played(replace(borne, sources=(parts(5),), faults=faults)).job.state.error
    assert isinstance(error, ErrorBudgetError) and error.fields["bad"] <= 100, "of 320 in both epochs"


@pytest.mark.parametrize("ways", [{}, {"serial": True}, {"in_order": True}, {"numbered": True, "joined": True}])
def test_a_source_in_which_everything_is_bad_is_not_read_to_its_end(ways: Any) -> None:
    source = (split_of(5000, *range(5000), kind=BAD),)
    error = played(Scenario(0, (source,), batch_size=4, error_budget=0.5, **ways)).job.state.error
    assert isinstance(error, ErrorBudgetError) and error.fields["bad"] <= 5000


def test_epochs_that_are_left_take_the_good_elements_with_them_that_were_in_hand() -> None:
    endless = Scenario(2, (parts(10),), error_budget=0.1, epochs=8, left=1.0, window=64, batch_size=8)
    state = played(endless).job.state
    assert state.error is None and state.ledger.left.count > 3 and state.bad.abandoned > 0


SPLITS = tuple(SplitModel((1,) * 7) for _ in range(12))
TWO_NODES = Scenario(sources=(SPLITS,), batch_size=4, local=1, remote=1, epochs=2, error_budget=0.0)


@pytest.mark.parametrize(("unseen", "told"), [(0.3, 0), (1.0, 1)])
def test_what_a_remote_worker_cannot_open_a_local_one_reads(unseen: float, told: int) -> None:
    state = played(replace(TWO_NODES, unseen=unseen)).job.state
    assert state.error is None and state.bad.count == 0 and state.received.elements == 2 * 12 * 7
    assert sum("is taken out" in event.text for event in state.story) == told
