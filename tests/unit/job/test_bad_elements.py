"""Bad elements: each counted once, by elements, and kept for a trainer within bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.errors import ErrorBudgetError
from pecan_ray.job import bad_elements
from pecan_ray.job.bad_elements import BadElements, QuarantineQueue
from pecan_ray.job.messages import LeftOutElement, TrainerProgress
from pecan_ray.observe.report import Report
from pecan_ray.sampling.budget import BadCount, over_budget
from tests.protocol.scenario import Scenario, SplitModel
from tests.unit.job.job_histories import played
from tests.unit.job.job_rig import JobRig


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
