"""Listing: a page at a time, and the next one when the job has taken the one before."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from pecan_ray.errors import SourceError
from pecan_ray.job.events import Event, JobFailed, ListingEnded, SplitPageReceived
from pecan_ray.plan.splits import Element, Split
from pecan_ray.runtime.listing import PAGE, list_sources

WAIT_S = 60.0


class Files:
    """A source of names, numbered from `first` on; it fails after so many."""

    def __init__(self, count: int, fails: bool = False, first: int = 0) -> None:
        self.count, self.fails, self.first, self.listed = count, fails, first, 0

    def splits(self) -> Iterator[Split]:
        for index in range(self.count):
            self.listed += 1
            yield Split(self.first + index, f"file-{index}")
        if self.fails:
            raise OSError("the bucket is gone")

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        yield {}

    def num_elements(self) -> int | None:
        return None

    def identity(self) -> str:
        return "files"


class Handled:
    """Takes events, and says when each was handled."""

    def __init__(self) -> None:
        self.events: queue.Queue[tuple[Event, Future[None]]] = queue.Queue()

    def __call__(self, event: Event) -> Future[None]:
        done: Future[None] = Future()
        self.events.put((event, done))
        return done


def test_the_next_page_waits_until_the_one_before_was_handled() -> None:
    source, handled = Files(1 + 2 * PAGE), Handled()
    list_sources([source], (), handled)
    sizes = []
    while True:
        event, done = handled.events.get(timeout=WAIT_S)
        if isinstance(event, ListingEnded):
            break
        assert isinstance(event, SplitPageReceived) and handled.events.empty()
        sizes.append(len(event.splits))
        assert source.listed == sum(sizes), "nothing is listed ahead"
        done.set_result(None)
    assert sizes == [1, PAGE, PAGE]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Files(0, fails=True), "listing Files failed: OSError: the bucket is gone"),
        (Files(1, first=1), "Files.splits() has numbered split 1 (file-0) where split 0 was due"),
    ],
)
def test_a_source_that_fails_or_numbers_its_splits_wrongly_ends_the_job_with_its_name(source: Files, said: str) -> None:
    handled = Handled()
    list_sources([source], (), handled)
    event, _ = handled.events.get(timeout=WAIT_S)
    assert isinstance(event, JobFailed) and isinstance(event.error, SourceError)
    assert said in str(event.error)
