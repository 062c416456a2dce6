"""Late reads are asked for twice: the decision by numbers, the race with requests of the test's, and a real store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray import storage
from pecan_ray.errors import SourceNotFoundError
from pecan_ray.storage.hedged_reads import HedgeCount, HedgedReads
from pecan_ray.storage.hedging import (
    FEWEST,
    LEAST_S,
    MOST_SAVED,
    SHARE,
    HedgeBudget,
    LateRead,
    decide_hedge,
    late_after,
)
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.throttle import Throttle
from tests.object_stores import Bucket

PATH, NBYTES = "s3://data/object", 1000

# --- the decision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "budget", "together", "reason"),
    [
        (LateRead(1.0, 10), HedgeBudget(), 0, "it is late after 2.00 s"),
        (LateRead(3.0, 10, failing=True), HedgeBudget(), 0, "the store fails"),
        (LateRead(3.0, 10), HedgeBudget(), MOST_SAVED, "4 others are late, too"),
        (LateRead(3.0, 10), HedgeBudget(requests=0.9), 0, "5% of the requests"),
        (LateRead(3.0, 10), HedgeBudget(nbytes=9), 0, "5% of the bytes"),
        (LateRead(3.0, 10), HedgeBudget(), 0, "it has taken 3.00 s, where it is late after 2.00 s"),
    ],
)
def test_a_decision_says_why(read: LateRead, budget: HedgeBudget, together: int, reason: str) -> None:
    decision = decide_hedge(read, 2.0, budget, late_together=together)
    assert decision.reason.startswith(reason) and decision.retry == reason.startswith("it has taken")
    assert decision.look_s > 0
    assert late_after([1.0] * (FEWEST - 1)) is None, "nothing is late before enough reads of its size have come"
    assert late_after([0.01] * FEWEST) == LEAST_S
    assert late_after([1.0] * 95 + [3.0] * 5) == 6.0, "as the slowest of twenty, twice"


@given(st.lists(st.tuples(st.integers(1, 1 << 23), st.booleans()), max_size=300))
def test_no_more_is_asked_for_again_than_its_share(reads: list[tuple[int, bool]]) -> None:
    budget, first = HedgeBudget(), HedgeBudget()
    asked = nbytes = 0
    for size, late in reads:
        if late and decide_hedge(LateRead(9.0, size), 1.0, budget, late_together=0).retry:
            budget, asked, nbytes = budget.consume(size), asked + 1, nbytes + size
        budget = budget.after_read(size)
        assert asked <= first.requests + SHARE * len(reads) and 0 <= budget.requests <= MOST_SAVED
        assert nbytes <= first.nbytes + SHARE * sum(size for size, _ in reads) + 1


# --- the race ------------------------------------------------------------------------------------------------


class Store:
    """Answers at once, but for requests that a test has something else in mind for, by their number."""

    def __init__(self) -> None:
        self.reads, self.throttle = HedgedReads(), Throttle()
        self.requested, self.lock = 0, threading.Lock()
        self.special: dict[int, Callable[[], object]] = {}

    def ask(self, start: int, stop: int | None, version: str) -> FileRange:
        with self.lock:
            self.requested += 1
            special = self.special.get(self.requested)
        if special is not None:
            special()
        return FileRange(b"x" * NBYTES, NBYTES, version)

    def read(self) -> FileRange:
        return self.throttle.read(self.ask, 0, NBYTES, "1", partial(self.reads.read, PATH))


@pytest.fixture
def store() -> Store:
    """One whose reads have come at once so far."""
    made = Store()
    for _ in range(FEWEST):
        made.read()
    return made


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What requests of a test wait for; set at its end."""
    event = threading.Event()
    yield event
    event.set()


def told(event: threading.Event) -> bool:
    event.set()
    return True


def gone() -> bool:
    raise SourceNotFoundError("gone", path=PATH)


def test_a_read_that_hangs_is_answered_by_the_second_request(store: Store, hang: threading.Event) -> None:
    store.special[FEWEST + 1] = lambda: hang.wait(60)
    assert store.read().data == b"x" * NBYTES
    assert store.reads.count == HedgeCount(1, 1) and store.requested == FEWEST + 2
    assert store.throttle.nbytes == NBYTES * (FEWEST + 1), "what has not come does not count"
    failed = threading.Event()
    store.special[FEWEST + 3] = lambda: failed.wait(60)
    store.special[FEWEST + 4] = lambda: told(failed) and gone()
    assert store.read().data == b"x" * NBYTES, "a second request that fails leaves it to the first"
    assert store.reads.count == HedgeCount(2, 1)


# --- a real store --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
@pytest.mark.parametrize("hedged", [True, False])
def test_an_s3_that_does_not_answer_is_asked_by_a_second_request(
    bucket: Bucket, hedged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body, proxy = f"{bucket.url}/object", bytes(range(256)) * 40, bucket.proxy
    bucket.put({"object": body})
    version = storage.file_info(path).version
    for _ in range(FEWEST):
        assert storage.read_range(path, 0, version=version) == body
    monkeypatch.setattr("pecan_ray.storage.access._hedging.on", hedged)
    before = len(proxy.requests)
    proxy.faults.append("hang")
    if not hedged:
        threading.Timer(2 * LEAST_S, proxy.stop_hanging.set).start()
    assert storage.read_range(path, 0, version=version) == body
    assert storage.reads_hedged() == (HedgeCount(1, 1) if hedged else HedgeCount())
    assert proxy.requests[before:] == [f"GET {path.removeprefix('s3:/')}"] * 2, "the second is a retry, or a hedge"
    assert storage.remote_bytes() > 0
