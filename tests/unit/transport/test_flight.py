"""Batches over Arrow Flight: no copy, nothing lost when streams break, tokens, closed ports."""

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
from pyarrow import flight

from pecan_ray.engines.contract import BadElement
from pecan_ray.errors import ClusterError
from pecan_ray.transport import flight_client, flight_wire
from pecan_ray.transport.choice import FlightAddress, choose_transport
from pecan_ray.transport.flight_server import FlightEndpoint
from pecan_ray.transport.link_speed import ENOUGH_BYTES, SMALLEST_BYTES, LinkSpeed
from pecan_ray.transport.outbox import MOST_BATCHES, Outbox
from pecan_ray.transport.ring import RingSlots
from tests.unit.transport.flight_rig import (
    Client,
    Wire,
    Worker,
    check_numbered,
    numbered,
    outbox_of,
    produce,
    received,
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
