"""Batches over Arrow Flight: no copy, credits, what is kept until confirmed, streams that break, tokens, ports."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from pecan_ray.engines.contract import BadElement
from pecan_ray.errors import ClusterError
from pecan_ray.transport import flight_client, flight_wire
from pecan_ray.transport.choice import FlightAddress, choose_transport
from pecan_ray.transport.flight_lanes import LOT_BYTES, Lane
from pecan_ray.transport.flight_server import FlightEndpoint
from pecan_ray.transport.link_speed import ENOUGH_BYTES, SMALLEST_BYTES, LinkSpeed
from pecan_ray.transport.outbox import MOST_BATCHES, Outbox
from pecan_ray.transport.ring import RingSlots
from tests.ray.waiting import until
from tests.unit.transport.flight_rig import (
    Client,
    Memory,
    Wire,
    Worker,
    batch,
    beside,
    check_numbered,
    number_of,
    numbered,
    outbox_of,
    produce,
    received,
    shut,
    working,
)


def owner_of(array: Any) -> Any:
    """What keeps the memory of an array: a buffer that has arrived, or the first array if it was copied."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


# --- memory ----------------------------------------------------------------------------------------------------


def test_the_worker_sends_its_slot_and_not_a_copy_nor_the_empty_rest_behind_a_short_batch() -> None:
    batch = produce(RingSlots(1 << 20), 0, {"x": np.arange(5000), "y": np.ones((3, 4), np.float32)})
    assert batch.slot is not None
    label, body = flight_wire.wrap([batch])
    assert body.address == np.frombuffer(batch.slot.buffer, np.uint8).__array_interface__["data"][0]
    assert label.size == body.size == -(-5000 * 8 // 64) * 64 + 48
    batch.columns = {name: column[:2] for name, column in batch.columns.items()}
    label, body = flight_wire.wrap([batch])
    assert body.size == label.size < 1000
    (message,) = flight_wire.unwrap(label, np.frombuffer(body, np.uint8))
    assert message.columns["x"].tolist() == [0, 1] and message.columns["y"].shape == (2, 4)


def test_the_client_gets_views_that_are_aligned_and_its_own() -> None:
    shapes = [(300, 300), (301, 277), (1000, 133), (640, 640)]
    client = received({"x": np.full(shape, n, np.int32), "y": np.full(3, float(n))} for n, shape in enumerate(shapes))
    check_numbered(client, 4)
    for number, message in enumerate(client.messages):
        assert message.columns["x"].shape == shapes[number]
        x, y = (owner_of(message.columns[name]) for name in ("x", "y"))
        assert x is y and isinstance(x.buffer, pa.Buffer)
        for name, column in message.columns.items():
            assert column.__array_interface__["data"][0] % flight_wire.ALIGNMENT == 0, name
        message.columns["x"] += 1
        assert (message.columns["x"] == number + 1).all()


# --- what arrives ----------------------------------------------------------------------------------------------


def test_small_batches_travel_together_and_are_kept_apart() -> None:
    worker = Worker(numbered(400, (8, 8)))
    worker.join()
    client = Client(worker.endpoint.prepare_client(0))
    assert client.reader.run() is None
    assert worker.endpoint.guard.cut == 0, "clients are never cut, however small the batches"
    worker.endpoint.close()
    check_numbered(client, 400)
    assert client.reader.received <= 400 / MOST_BATCHES + 2
    first, second = (message.columns["x"] for message in client.messages[:2])
    assert owner_of(first) is not owner_of(second)


def test_batches_that_come_in_pieces_arrive_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_wire, "LARGEST_PIECE", 100_000)
    check_numbered(received(numbered(10, (300, 301))), 10)


ODD: dict[str, Any] = {
    "text": np.array(["a", b"b", None, [1, 2]], object),
    "strings": np.array(["x", "yz"]),
    "empty": np.zeros((0, 4), np.int16),
    "scalar": np.array(7.0),
    "plain": 3,
    "half": np.ones((3, 1, 2), np.float16),
    "day": np.array(["2020-02-02"], "datetime64[D]"),
}


def test_columns_of_every_kind_arrive_also_without_arrays_and_with_bad_elements() -> None:
    class Box:  # as a class that came with the pipeline
        weight = 3

    slots, boxed = RingSlots(1 << 20), {"box": np.array([Box()], object), "x": np.arange(9)}
    columns = [ODD, {"text": np.array([b"only"], object)}, boxed]
    batches = [produce(slots, number, held) for number, held in enumerate(columns)]
    batches[1].bad.append(BadElement("decode", "a.jpg", "broken", {"image": b"..."}))
    endpoint = FlightEndpoint("127.0.0.1", outbox_of(batches))
    client = Client(endpoint.prepare_client(0))
    assert client.reader.run() is None
    endpoint.close()
    odd, text, boxes = client.messages
    for name, value in ODD.items():
        got = odd.columns[name]
        assert np.asarray(got).dtype == np.asarray(value).dtype and np.shape(got) == np.shape(value), name
        assert np.array_equal(got, value), name
    assert text.columns["text"][0] == b"only" and text.bad == batches[1].bad
    assert boxes.columns["box"][0].weight == 3


def test_a_value_that_cannot_be_sent_stops_the_stream_and_not_the_client() -> None:
    unsendable = np.array([threading.Lock()], object)
    with working(iter([{"x": np.arange(99_000)}, {"lock": unsendable}])) as worker:
        client = Client(worker.endpoint.prepare_client(0))
        assert client.reader.run() is not None and client.numbers() == [0]


# --- workers that are gone and streams that break --------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (200, 200)])
def test_a_stream_that_is_cut_again_and_again_loses_and_repeats_nothing(shape: tuple[int, ...]) -> None:
    count = 3000 if shape == (8, 8) else 150
    cuts = [60_000, 400_000, 700_000, 1_300_000, 90_000, 2_000_000]
    with working(numbered(count, shape), limit=8 << 20) as worker:
        wire = Wire(worker.endpoint.prepare_client(0), cuts)
        client = Client(wire.address)
        trouble = client.reader.run()
        assert trouble is None and client.reader.ended, trouble
        wire.close()
    assert wire.cuts >= (2 if shape == (8, 8) else 4)
    check_numbered(client, count)


@pytest.mark.parametrize("kind", ["closes for good", "is refused", "is silent"])
def test_a_port_that_is_not_there_any_more_ends_the_attempts_and_is_told(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "is silent":  # the others answer or refuse, however late
        monkeypatch.setattr(flight_client, "CONNECT_S", 0.3)
    with working(numbered(50, (300, 300))) as worker, socket.create_server(("127.0.0.1", 0)) as listener:
        silent = FlightAddress("127.0.0.1", listener.getsockname()[1], "token")
        if kind == "is refused":
            listener.close()
        wire = Wire(worker.endpoint.prepare_client(0), [1_000_000] * 2 + [0] * 100)
        client = Client(wire.address if kind == "closes for good" else silent)
        trouble = client.reader.run()
        wire.close()
    assert trouble is not None and not client.reader.ended
    assert client.numbers() == list(range(len(client.messages)))
    assert (0 < len(client.messages) < 50) == (kind == "closes for good")


# --- who may read ----------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_for_every_call() -> None:
    with working(numbered(3)) as worker:
        address = worker.endpoint.prepare_client(0)
        assert address.token not in repr(address)
        client = Client(replace(address, token="0" * 64))
        trouble = client.reader.run()
        assert trouble is not None and "Unauthenticated" in trouble and client.messages == []
        with flight.FlightClient(address.location) as bare:
            wish = flight.FlightDescriptor.for_command(json.dumps({"rank": 0, "received": 0}))
            calls: list[Callable[[], Any]] = [
                lambda: bare.do_exchange(wish)[1].read_chunk(),
                lambda: list(bare.do_action(flight.Action(flight_wire.HELLO, b""))),
                lambda: list(bare.list_flights()),
                lambda: bare.do_get(flight.Ticket(b"")).read_chunk(),
            ]
            for call in calls:
                with pytest.raises(flight.FlightUnauthenticatedError):
                    call()
        assert Client(address).reader.run() is None


def test_a_host_that_is_not_this_one_cannot_be_served() -> None:
    with pytest.raises(ClusterError, match=r"no Flight server can be started on 198\.51\.100\.7"):
        FlightEndpoint("198.51.100.7", Outbox())


@pytest.mark.parametrize(
    ("nodes", "sees", "wanted", "transport", "words"),
    [
        ("aa", True, "auto", "ring", "share a node"),
        ("ab", True, "auto", "flight", "different nodes"),
        ("aa", False, "auto", "object_store", "memory files"),
        ("aa", True, "flight", "flight", "asks for it"),
        ("ab", True, "object_store", "object_store", "asks for it"),
        ("ab", True, "ring", "flight", "cannot be followed: worker and trainer are on different nodes"),
        ("aa", False, "ring", "object_store", "cannot be followed: the trainer may not open"),
    ],
)
def test_a_transport_is_chosen_with_its_reason(nodes: str, sees: bool, wanted: Any, transport: str, words: str) -> None:
    chosen, reason = choose_transport(nodes[0], nodes[1], sees, wanted)
    assert chosen == transport
    assert words in reason


def test_large_lots_tell_once_there_are_enough_of_them() -> None:
    speed = LinkSpeed()
    speed.add(SMALLEST_BYTES - 1, 100.0)
    speed.add(ENOUGH_BYTES - 1, 0.5)
    assert speed.bytes_per_s is None
    speed.add(ENOUGH_BYTES + 1, 0.5)
    assert speed.bytes_per_s == pytest.approx(2 * ENOUGH_BYTES)


# --- credits, and what is kept until it is confirmed -------------------------------------------------------------


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
