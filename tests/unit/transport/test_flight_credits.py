"""Arrow Flight sends what clients have granted credits for, and keeps it until it is confirmed, where streams break."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.transport.flight_lanes import LOT_BYTES, Lane
from pecan_ray.transport.outbox import Outbox
from tests.ray.waiting import until
from tests.unit.transport.flight_rig import (
    Client,
    Memory,
    Wire,
    batch,
    beside,
    number_of,
    numbered,
    outbox_of,
    shut,
    working,
)


def test_a_rank_gets_as_many_messages_as_it_has_granted_credits_for_and_its_next_client_what_was_not_confirmed() -> (
    None
):
    with working(numbered(40, (300, 300))) as worker:
        first = Client(worker.endpoint.prepare_client(0), ahead=0)
        first.reader.grant(3)  # before there is a stream
        with first.reading():
            worker.join()
            until(lambda: len(first.lots) == 3, "credits from before the stream are lost")
            first.reader.grant(5)
            until(lambda: len(first.lots) == 8, "credits are lost")
            assert len(worker.outbox) == 40 - 8, "what was not asked for stays with the worker"
            first.reader.stop()
        second = Client(worker.endpoint.prepare_client(0), ahead=0)
        with second.reading():
            second.reader.grant(1)
            until(lambda: len(second.lots) == 1, "its first credit brought nothing")
            second.reader.grant(40)
    assert set(first.numbers() + second.numbers()) == set(range(40))
    assert second.reader.ended and second.numbers() == sorted(second.numbers())
    second.reader.grant(1)


def test_credits_that_a_broken_stream_has_lost_are_granted_again() -> None:
    with working(numbered(30, (300, 300))) as worker:
        wire = Wire(worker.endpoint.prepare_client(0), [])
        client = Client(wire.address, ahead=0)
        with client.reading():
            client.reader.grant(1)
            until(lambda: len(client.lots) == 1, "nothing came")
            for _ in range(5):
                shut(*wire._open)
                client.reader.grant(1)  # on a stream that is cut, or on none
            client.reader.grant(24)
        wire.close()
    assert client.reader.ended and client.numbers() == list(range(30)), "the end needs no credit"


def lane_of(outbox: Outbox, rank: int = 0, credits: int = 1 << 20) -> Lane:
    lane = Lane(rank, outbox)
    lane.granted(credits)
    return lane


@given(st.lists(st.integers(1, 400_000), max_size=80), st.randoms(use_true_random=False))
def test_streams_that_break_anywhere_bring_every_batch_once_and_in_order(sizes: list[int], chance: Any) -> None:
    batches = [batch(number, nbytes) for number, nbytes in enumerate(sizes)]
    lane = lane_of(outbox_of(batches))
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
    lane = lane_of(outbox, rank=3)
    turn, received = lane.open(0), min(received, count)
    assert all(lane.lot(number, turn) for number in range(count))
    lane.close(received)
    assert lane.finished.is_set() and lane.lot(received, turn) is None
    rest = [number_of(one) for _ in range(30 - received) for one in outbox.take(3, 1)]
    assert rest == list(range(received, 30)) and outbox.take(3, 1) == []
    released = [one.slot.released for one in batches if isinstance(one.slot, Memory)]
    assert released == [1] * received + [0] * (30 - received)


def test_what_is_sent_again_needs_no_credit_what_is_new_does_and_a_newer_stream_takes_the_turn() -> None:
    outbox, got = outbox_of([batch(number, LOT_BYTES) for number in range(5)]), list[Any]()
    lane = lane_of(outbox, credits=2)
    turn = lane.open(0)
    sent = [lane.lot(number, turn) for number in range(2)]
    turn = lane.open(1)
    assert lane.lot(1, turn) == sent[1]
    with beside(lambda: got.append(lane.lot(2, turn))):
        until(lambda: lane._take_lock.locked(), "it does not wait")
        assert not got and len(outbox) == 3
        lane.granted(3)
    assert number_of(got.pop()[0]) == 2 and len(outbox) == 2
    outbox = Outbox()
    lane = lane_of(outbox, credits=1)
    old = lane.open(0)
    with beside(lambda: got.append(lane.lot(0, old))):
        until(lambda: outbox._waiters, "it does not wait for batches")
        new = lane.open(0)
    assert got == [None] and not lane.current(old) and lane.current(new)
    outbox.put(batch(0), None)
    assert lane.lot(0, new), "the old one has left it its credit"
