"""A quota of remote reads: the bucket by a clock of the test's, the rest against real servers."""

from __future__ import annotations

import heapq
import os
import random
from collections.abc import Iterator, Sequence
from typing import NoReturn

import pytest

from pecan_ray import storage
from pecan_ray.errors import SourceReplacedError
from pecan_ray.storage.retry import RequestCancelledError
from pecan_ray.storage.throttle import LEAST_PIECE, MOST_PIECE, PIECE_S, Throttle
from pecan_ray.storage.token_bucket import TokenBucket
from tests.object_stores import Bucket
from tests.unit.storage.conftest import WAYS, StoredObject

MB = 1e6


def received(
    bucket: TokenBucket,
    readers: int,
    answer_s: float,
    nbytes: int,
    until_s: float,
    rates: Sequence[tuple[float, float]] = (),
) -> list[tuple[float, int]]:
    """Return when readers asked for how many bytes, on a clock of their own; each asks anew with its answer.

    `rates`: when the rate becomes which one.
    """
    draw, left, found = random.Random(0), list(rates), list[tuple[float, int]]()
    events = [(0.0, reader, 0.0) for reader in range(readers)]
    # When something happens to whom, and the place that is waited for.
    while events[0][0] < until_s:
        now, reader, place = heapq.heappop(events)
        while left and left[0][0] <= now:
            bucket.set_rate(left.pop(0)[1], now)
        place = place or bucket.reserve(nbytes, now)
        wait_s = bucket.wait_s(place, now)
        if wait_s > 1e-9:
            heapq.heappush(events, (now + min(wait_s, 0.1), reader, place))
            continue
        found.append((now, nbytes))
        heapq.heappush(events, (now + answer_s * (0.5 + draw.random()), reader, 0.0))
    return found


def rate_between(found: list[tuple[float, int]], begin: float, end: float) -> float:
    return sum(nbytes for at, nbytes in found if begin <= at < end) / (end - begin)


@pytest.mark.parametrize("bytes_per_s", [1 * MB, 1000 * MB])
@pytest.mark.parametrize(("readers", "answer_s"), [(1, 0.001), (16, 0.02), (64, 0.3)])
def test_readers_get_their_quota_within_five_percent_over_any_ten_seconds(
    bytes_per_s: float, readers: int, answer_s: float
) -> None:
    piece = max(LEAST_PIECE, min(MOST_PIECE, int(bytes_per_s * PIECE_S)))
    found = received(TokenBucket(bytes_per_s, 0.0), readers, answer_s, piece, 60.0)
    for begin in (0.0, 1.0, 7.3, 20.0, 49.9):
        assert rate_between(found, begin, begin + 10.0) == pytest.approx(bytes_per_s, rel=0.05), begin


def test_a_change_of_the_rate_holds_at_once_for_those_who_wait() -> None:
    found = received(TokenBucket(1 * MB, 0.0), 32, 0.01, 100_000, 30.0, [(10.0, 100 * MB), (20.0, 2 * MB)])
    for begin, end, rate in ((0.0, 10.0, 1 * MB), (10.2, 20.0, 100 * MB), (20.2, 30.0, 2 * MB)):
        assert rate_between(found, begin, end) == pytest.approx(rate, rel=0.06)


class FakeTime:
    """A clock that only goes on while somebody sleeps."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_read_comes_in_pieces_of_one_version_with_the_bytes_that_were_asked_for() -> None:
    time_, stored = FakeTime(), StoredObject(random.Random(1).randbytes(100_000))
    data, throttle = stored.data, Throttle(lambda: time_.now, time_.sleep)
    throttle.limit(10.0)  # the least piece
    for start, stop in ((0, None), (5, 99_999), (99_990, 200_000), (0, 1), (100_000, None), (0, 100_000)):
        stored.requested.clear()
        piece = throttle.read(stored.ask, start, stop, "")
        assert piece.data == data[start:stop] and piece.size == len(data) and piece.version == "v1"
        assert all(end is not None and end - begin <= LEAST_PIECE for begin, end, _ in stored.requested)
        assert [version for *_, version in stored.requested] == ["", *["v1"] * (len(stored.requested) - 1)]
    assert throttle.nbytes == 100_000 + 99_994 + 10 + 1 + 0 + 100_000
    # All that was read has flowed, but for what had flowed before.
    assert time_.now == pytest.approx(throttle.nbytes / 10.0, rel=0.1)


def test_a_read_that_fails_costs_nothing_and_one_that_is_given_up_neither() -> None:
    time_ = FakeTime()
    throttle = Throttle(lambda: time_.now, time_.sleep)
    throttle.limit(1 * MB)

    def fails(*_: object) -> NoReturn:
        raise SourceReplacedError("gone")

    def give_up(seconds: float) -> NoReturn:
        raise RequestCancelledError

    for _ in range(50):
        with pytest.raises(SourceReplacedError):
            throttle.read(fails, 0, 100_000, "")
    assert time_.now == 0.0
    other = Throttle(lambda: 0.0, give_up)
    other.limit(1 * MB)
    stored = StoredObject(bytes(300_000))
    for _ in range(50):
        with pytest.raises(RequestCancelledError):
            other.read(stored.ask, 0, None, "")
        assert len(stored.requested) <= 2, "more was read than had flowed"


# --- against real servers -----------------------------------------------------------------------------------


@pytest.fixture
def quota() -> Iterator[None]:
    yield
    storage.limit_remote_io(None)


@pytest.mark.usefixtures("quota")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_reading_a_bucket_keeps_to_the_quota(bucket: Bucket, way: str) -> None:
    """By the bytes of each request, each of which has to wait until they have flowed."""
    body, rate = os.urandom(300_000), 2e6
    bucket.put({"object": body})
    (listed,) = storage.list_files(f"{bucket.url}/object")
    storage.reset_clients()
    storage.limit_remote_io(rate)
    before, asked = storage.remote_bytes(), len(bucket.proxy.requests)
    assert WAYS[way](listed) == body
    assert storage.remote_bytes() - before == len(body)
    requests = [one for one in bucket.proxy.requests[asked:] if one.startswith("GET") and "object" in one]
    assert len(requests) >= len(body) // int(rate * PIECE_S)
