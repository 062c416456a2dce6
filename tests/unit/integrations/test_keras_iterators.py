"""Which batches Keras gets where its threads fetch ahead; that each loop is a new pass is shown in tests/parity."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.integrations.keras_iterators import KerasIterators
from pecan_ray.integrations.keras_prefetch import PrefetchLimit
from pecan_ray.job.delivery_log import MOST_AHEAD

Batch = tuple[int, int]
"""Pass and place in it."""


def iterators(batches: int = 5) -> KerasIterators:
    """Keras' iterators over a job with passes of so many batches."""
    at = [0, 0]

    def following() -> Batch:
        if at[1] == batches:
            leave()
        at[1] += 1
        return at[0], at[1] - 1

    def leave() -> None:
        at[:] = at[0] + 1, 0

    return KerasIterators(batches, following, leave)


def test_epochs_of_one_batch_are_passes_and_what_is_fetched_in_vain_comes_again() -> None:
    run, seen = iterators(1), []
    run.note_created()
    for _ in range(3):  # Keras makes the next iterator when the next epoch has begun
        run.begin_epoch()
        run.note_created()
        seen.append(run.next())
        run.end_epoch()
    assert seen == [(0, 0), (1, 0), (2, 0)]
    run = iterators()
    run.begin_epoch()
    run.note_created()
    assert [run.next() for _ in range(5)] == [(0, at) for at in range(5)]
    run.note_created()
    run.end_epoch()
    assert [run.next(), run.next()] == [(1, 0), (1, 1)], "by a thread that fetches ahead"
    run.begin_epoch()
    run.note_created()
    assert [run.next() for _ in range(3)] == [(1, 0), (1, 1), (1, 2)]


def test_batches_that_keras_only_looks_at_come_again_in_its_first_epoch() -> None:
    run = iterators()
    run.note_created()
    assert [run.next(), run.next()] == [(0, 0), (0, 1)], "for their shapes"
    run.note_created()
    run.end_epoch()
    run.begin_epoch()
    run.note_created()
    assert [run.next() for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]


def test_a_reader_that_shares_goes_on_in_the_middle_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("keras")
    from pecan_ray.integrations.keras_dataset import KerasBatches

    def looks(**options: Any) -> list[int]:
        batches = ({"x": number} for number in range(9))
        data = KerasBatches(lambda: batches, ["x"], what="shared.to_keras()", steps=4, shares=True, **options)
        return [next(iter(data))[0] for _ in range(3)]

    assert looks(on_break="continue") == [0, 1, 2] and not caplog.messages
    assert looks() == [0, 1, 2]
    assert [text[:53] for text in caplog.messages] == ["shared.to_keras(): a pass was left in the middle, and"]


def test_to_close_ends_the_job_and_the_next_iterator_begins_another_one() -> None:
    pytest.importorskip("keras")
    from pecan_ray.integrations.keras_dataset import KerasBatches

    jobs: list[Any] = []

    def begin() -> Any:
        jobs.append({"x": number} for number in range(9))
        return jobs[-1]

    data = KerasBatches(begin, ["x"], what="rows.to_keras()", steps=4)
    assert data.num_batches == 4 and [data[0][0], data[1][0]] == [0, 1]
    data.close()
    assert list(jobs[0]) == [], "it is closed"
    with pytest.raises(PlanError, match="this iterator was made before"):
        data[2]  # as TensorFlow's own thread asks, which knows nothing of the end
    assert len(jobs) == 1
    assert data.num_batches == 4 and data[0][0] == 0 and len(jobs) == 2


def test_a_thread_that_fetches_stays_as_near_as_a_state_needs_it_and_ends_with_its_iterator() -> None:
    ahead, fetched, ends = PrefetchLimit(), list[int](), list[PlanError]()
    ahead.wait(lambda: 100)  # nobody tells what was used

    def fetch() -> None:
        try:
            while True:
                ahead.wait(lambda: len(fetched))
                fetched.append(len(fetched))
        except PlanError as end:
            ends.append(end)

    ahead.begin()
    ahead.wait(lambda: 100)  # the thread that trains never waits for itself
    thread = threading.Thread(target=fetch)
    thread.start()
    ahead.used(3)
    while len(fetched) < 3 + MOST_AHEAD:
        assert thread.is_alive()
    ahead.refresh_state()
    thread.join()
    assert len(fetched) == 3 + MOST_AHEAD and len(ends) == 1


def test_a_state_counts_no_batch_that_is_only_being_fetched() -> None:
    pytest.importorskip("keras")
    from pecan_ray.integrations.keras_dataset import KerasBatches

    class Job:
        """Gives its second batch when a state is asked for meanwhile, or behind a time in which none was."""

        given = 0
        asked = threading.Event()

        def __next__(self) -> dict[str, int]:
            if self.given:
                waits.set()
                self.asked.wait(0.2)
            self.given += 1
            return {"x": self.given}

        def state_dict(self, *, ahead: int) -> int:
            self.asked.set()
            return self.given - ahead

    waits = threading.Event()
    data = KerasBatches(Job, ["x"], what="rows.to_keras()", steps=4)
    assert data.num_batches == 4
    data.on_epoch_begin()
    assert data.num_batches == 4 and data[0] == (1,)
    thread = threading.Thread(target=lambda: data[1])
    thread.start()
    assert waits.wait(60)
    assert data.state_dict(used=1) == {"batches": 1}
    thread.join()
