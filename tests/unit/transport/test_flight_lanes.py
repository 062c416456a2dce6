"""What a lane keeps until it is confirmed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.options import Config
from pecan_ray.transport.credits import Credits
from pecan_ray.transport.flight_lanes import LOT_BYTES, Lane
from pecan_ray.transport.outbox import Outbox
from tests.ray.waiting import until
from tests.unit.runtime.outbox_batches import Memory, batch, number_of, outbox_of


def plenty() -> Credits:
    credits = Credits()
    credits.add(1 << 20)
    return credits


@given(st.lists(st.integers(1, 400_000), max_size=80), st.randoms(use_true_random=False))
def test_streams_that_break_anywhere_bring_every_batch_once_and_in_order(sizes: list[int], chance: Any) -> None:
    batches = [batch(number, nbytes) for number, nbytes in enumerate(sizes)]
    lane = Lane(0, outbox_of(batches), plenty())
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
    lane = Lane(3, outbox, plenty())
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


def test_what_is_sent_again_needs_no_credit_and_what_is_new_does() -> None:
    credits = Credits()
    outbox = outbox_of([batch(number, LOT_BYTES) for number in range(5)])
    lane = Lane(0, outbox, credits)
    credits.add(2)
    turn = lane.open(0)
    sent = [lane.lot(number, turn) for number in range(2)]
    turn = lane.open(1)
    assert lane.lot(1, turn) == sent[1]
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(lane.lot(2, turn)))
    waiting.start()
    until(lambda: lane._taking.locked(), "it does not wait")
    assert not got and len(outbox) == 3
    credits.add(1)
    waiting.join(10)
    assert number_of(got[0][0]) == 2 and len(outbox) == 2


def test_a_stream_that_waits_loses_its_turn_to_a_newer_one_and_leaves_it_its_credit() -> None:
    credits, outbox = Credits(), Outbox()
    lane = Lane(0, outbox, credits)
    credits.add(1)
    old = lane.open(0)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(lane.lot(0, old)))
    waiting.start()
    until(lambda: outbox._takers, "it does not wait for batches")
    new = lane.open(0)
    waiting.join(10)
    assert got == [None] and not lane.current(old) and lane.current(new)
    outbox.put(batch(0), None)
    lot = lane.lot(0, new)
    assert lot is not None and number_of(lot[0]) == 0


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
