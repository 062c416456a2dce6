"""Fetching beginnings of files early, with requests that end when the test says so."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from pecan_ray.storage.heads import HEAD_BYTES, Head, Heads
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.retry import Backoff, RetryRegistry, retry
from pecan_ray.storage.threads import RequestThreads
from tests.ray.waiting import until


class Line:
    """Requests that were begun and wait for the test to carry them out."""

    def __init__(self, most_bytes: int = 100, most_at_once: int = 4) -> None:
        self.calls: list[Callable[[], None]] = []
        self.fetched: list[str] = []
        self.failing: set[str] = set()
        self.heads = Heads(self.fetch, self.calls.append, most_bytes=most_bytes, most_at_once=most_at_once)

    def fetch(self, head: Head) -> FileRange:
        self.fetched.append(head.path)
        if head.path in self.failing:
            raise TimeoutError(head.path)
        return FileRange(head.path.encode() * 5, 10, head.version)

    def notify_of(self, *paths: str, nbytes: int = 20) -> None:
        self.heads.notify_of(Head(path, "v", nbytes) for path in paths)

    def work(self) -> None:
        while self.calls:
            self.calls.pop(0)()


def test_errors_reach_whoever_takes_and_a_reader_that_overtakes_fetches_for_itself() -> None:
    line = Line(most_at_once=1)
    line.notify_of("a", "b")
    assert line.heads.take("b", "v") is None
    line.work()
    assert line.fetched == ["a"], "what a reader fetches itself is not fetched twice"
    assert line.heads.take("a", "other") is None, "another version is another file"
    line = Line()
    line.failing.add("a")
    line.notify_of("a", "b")
    line.work()
    with pytest.raises(TimeoutError, match="a"):
        line.heads.take("a", "v")
    assert line.heads.take("a", "v") is None
    assert line.heads.take("b", "v") is not None
    assert line.heads.nbytes == 5


def test_readers_and_requests_in_any_order_get_what_was_announced_and_hold_no_more_than_they_may() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        most_at_once = rng.randint(1, 5)
        line = Line(most_bytes=rng.choice((20, 60, 200)), most_at_once=most_at_once)
        line.failing = {str(n) for n in range(40) if rng.random() < 0.1}
        waiting = [str(n) for n in range(40)]
        line.notify_of(*waiting)
        while waiting or line.calls:
            if line.calls and (rng.random() < 0.6 or not waiting):
                line.calls.pop(rng.randrange(len(line.calls)))()
            elif waiting:
                path = waiting.pop(0)
                held = line.heads._held.get((path, "v"))
                if held is not None and not held.file_range.done():
                    line.work()
                fails = held is not None and path in line.failing
                with pytest.raises(TimeoutError) if fails else nullcontext():
                    assert line.heads.take(path, "v") in (None, FileRange(path.encode() * 5, 10, "v"))
            assert len(line.calls) <= most_at_once
            assert 0 <= line.heads.nbytes <= line.heads._most_bytes
        assert len(line.fetched) == len(set(line.fetched)), seed


class Down:
    """A store that is down, and says when a request has failed."""

    def __init__(self) -> None:
        self.backoff = Backoff(patience_s=1e9, first_s=0.01, longest_s=0.01)
        self.failed, self.down = threading.Event(), True
        self.heads = Heads(self.fetch, RequestThreads(4).start, most_bytes=HEAD_BYTES, most_at_once=4)

    def fetch(self, head: Head) -> FileRange:
        def ask() -> FileRange:
            if self.down:
                self.failed.set()
                raise TimeoutError
            return FileRange(b"data", 4, head.version)

        return retry(ask, passes=lambda _: True, path=head.path, backoff=self.backoff, registry=RetryRegistry())


def test_what_a_reader_waits_for_is_tried_again_also_when_all_is_forgotten() -> None:
    store = Down()
    store.heads.notify_of([Head("a", "v", 4)])
    taken: list[FileRange | None] = []
    reader = threading.Thread(target=lambda: taken.append(store.heads.take("a", "v")))
    reader.start()
    until(lambda: store.heads._held["a", "v"].waiting, "the reader does not wait")
    store.heads.forget()
    store.failed.clear()
    assert store.failed.wait(20)
    store.down = False
    reader.join()
    assert taken == [FileRange(b"data", 4, "v")]
