"""What a lane keeps until it is confirmed, and what the outbox gives to whom."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pecan_ray.engines.contract import Produced
from pecan_ray.errors import PlanError
from pecan_ray.options import Config
from pecan_ray.transport.flight_lanes import LOT_BYTES, MOST_BATCHES, Lane
from pecan_ray.transport.outbox import COALESCE, Outbox
from tests.ray.waiting import until


class Memory:
    """A slot that knows whether it was given back."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(64))
        self.released = 0

    def release(self) -> None:
        self.released += 1


def batch(number: int, nbytes: int = 8) -> Produced:
    return Produced({"x": np.zeros(nbytes, np.uint8)}, {(0, 0, 0): [(number, number + 1)]}, 1, 0, slot=Memory())


def number_of(produced: Produced) -> int:
    return produced.spans[0, 0, 0][0][0]


def outbox_of(batches: list[Produced]) -> Outbox:
    outbox = Outbox()
    for one in batches:
        outbox.put(one, None)
    outbox.close()
    return outbox


@settings(deadline=None)
@given(st.lists(st.integers(1, 400_000), max_size=80), st.randoms(use_true_random=False))
def test_streams_that_break_anywhere_bring_every_batch_once_and_in_order(sizes: list[int], chance: Any) -> None:
    batches = [batch(number, nbytes) for number, nbytes in enumerate(sizes)]
    lane = Lane(0, outbox_of(batches))
    got: list[int] = []
    received = 0
    over = False
    while not over:
        turn, sent = lane.open(received), received
        while chance.random() < 0.8:
            lot = lane.lot(sent, turn)
            if lot is None:
                over = received == sent
                break
            sent += 1
            if chance.random() < 0.7 and received < sent:  # one more arrives: what was sent comes in order
                got += [number_of(one) for one in lane._kept[received - lane._confirmed]]
                received += 1
                if chance.random() < 0.7:
                    lane.confirm(received)
    assert got == list(range(len(sizes)))
    lane.confirm(received)
    assert all(isinstance(one.slot, Memory) and one.slot.released == 1 for one in batches)


@given(st.integers(0, 30), st.integers(0, 30))
def test_what_a_closed_lane_has_not_delivered_goes_back(count: int, received: int) -> None:
    batches = [batch(number, LOT_BYTES) for number in range(30)]
    outbox = outbox_of(batches)
    lane = Lane(3, outbox)
    turn = lane.open(0)
    for number in range(count):
        assert lane.lot(number, turn)
    received = min(received, count)
    lane.close(received)
    assert lane.finished.is_set() and lane.lot(received, turn) is None
    rest = [number_of(one) for _ in range(30 - received) for one in outbox.take(3, 1)]
    assert rest == list(range(received, 30)) and outbox.take(3, 1) == []
    assert [one.slot.released for one in batches if isinstance(one.slot, Memory)] == [1] * received + [0] * (
        30 - received
    )


def test_a_stream_that_waits_loses_its_turn_to_a_newer_one() -> None:
    outbox = Outbox()
    lane = Lane(0, outbox)
    old = lane.open(0)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(lane.lot(0, old)))
    waiting.start()
    until(lambda: lane._taking.locked(), "the old stream does not wait")
    new = lane.open(0)
    waiting.join(10)
    assert got == [None] and not lane.current(old) and lane.current(new)
    outbox.put(batch(7), None)
    lot = lane.lot(0, new)
    assert lot is not None and number_of(lot[0]) == 7


def test_small_batches_are_taken_together_up_to_a_size_and_a_number() -> None:
    outbox = outbox_of([batch(n, nbytes) for n, nbytes in enumerate([100, 100, LOT_BYTES, 10, LOT_BYTES + 1, 5])])
    taken = [[number_of(one) for one in outbox.take(0, MOST_BATCHES, LOT_BYTES)] for _ in range(5)]
    assert taken == [[0, 1], [2], [3], [4], [5]]
    many = outbox_of([batch(n) for n in range(MOST_BATCHES + 1)])
    assert len(many.take(0, MOST_BATCHES, LOT_BYTES)) == MOST_BATCHES


def test_who_is_not_to_take_yet_gets_as_many_as_were_asked_for() -> None:
    outbox = Outbox()
    got: list[list[int]] = []

    def take() -> None:
        later = time.monotonic() + 600
        got.append([number_of(one) for one in outbox.take(0, COALESCE, not_before=later)])
        got.append([number_of(one) for one in outbox.take(0, COALESCE, not_before=later)])

    taking = threading.Thread(target=take)
    taking.start()
    for number in range(COALESCE + 2):
        outbox.put(batch(number), None)
    until(lambda: got, "a full message waits")
    assert got == [list(range(COALESCE))] and taking.is_alive()
    outbox.close()
    taking.join(10)
    assert got[1] == [COALESCE, COALESCE + 1], "at the end nothing is left behind"


def test_who_waits_for_more_delays_nobody_else() -> None:
    outbox = Outbox()
    gathering = threading.Thread(target=lambda: outbox.take(1, 2, not_before=time.monotonic() + 600))
    gathering.start()
    got: list[list[Produced]] = []
    hungry = threading.Thread(target=lambda: got.append(outbox.take(0, COALESCE)))
    hungry.start()
    outbox.put(batch(0), 0)
    hungry.join(10)
    assert [number_of(one) for one in got[0]] == [0] and gathering.is_alive()
    outbox.close()
    gathering.join(10)
    assert not gathering.is_alive()


def test_the_time_is_soon_over() -> None:
    outbox = Outbox()
    outbox.put(batch(0), None)
    assert [number_of(one) for one in outbox.take(0, COALESCE, not_before=time.monotonic() + 0.01)] == [0]


def test_the_bytes_of_strings_count() -> None:
    texts = [batch(number) for number in range(4)]
    for one in texts:
        one.columns["text"] = np.array([b"x" * LOT_BYTES], object)
    outbox = outbox_of(texts)
    assert [len(outbox.take(0, MOST_BATCHES, LOT_BYTES)) for _ in range(4)] == [1] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"transport": "pigeon"},
            "transport must be one of 'auto', 'ring', 'flight', 'object_store', but got 'pigeon'",
        ),
        ({"compression": "gzip"}, "compression must be one of 'auto', 'none', 'lz4', 'zstd', but got 'gzip'"),
        ({"flight_streams": 0}, "flight_streams must be from 1 to 16, but got 0"),
        ({"flight_streams": 17}, "flight_streams must be from 1 to 16, but got 17"),
    ],
)
def test_nonsense_about_transports_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Config(**options)
