"""Batches over Arrow Flight: no copy, nothing lost when streams break, tokens, certificates, closed ports."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from pecan_ray.engines.contract import BadElement
from pecan_ray.errors import ClusterError
from pecan_ray.transport import flight_client, flight_wire
from pecan_ray.transport.choice import FlightAddress, choose_transport
from pecan_ray.transport.compression import LOTS_MEASURED
from pecan_ray.transport.flight_server import FlightEndpoint
from pecan_ray.transport.outbox import MOST_BATCHES, Outbox
from pecan_ray.transport.ring import RingSlots
from tests.ray.waiting import until
from tests.unit.transport.flight_rig import Client, Wire, Worker, numbered, produce, working


def owner_of(array: Any) -> Any:
    """What keeps the memory of an array: a buffer that has arrived, or the first array if it was copied."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def holds(message: Any, number: int) -> bool:
    return all((message.columns[name] == number).all() for name in ("x", "y"))


def test_the_worker_sends_its_slot_and_not_a_copy() -> None:
    batch = produce(RingSlots(1 << 20), 0, {"x": np.arange(5000), "y": np.ones((3, 4), np.float32)})
    assert batch.slot is not None
    label, body = flight_wire.wrap([batch])
    assert body.address == np.frombuffer(batch.slot.buffer, np.uint8).__array_interface__["data"][0]
    assert label.size == body.size == -(-5000 * 8 // 64) * 64 + 48


def test_the_client_gets_views_that_are_aligned_and_writable() -> None:
    shapes = [(300, 300), (301, 277), (1000, 133), (640, 640)]
    arrays = [np.full(shape, number, np.int32) for number, shape in enumerate(shapes)]
    with working(iter({"x": array, "y": np.full(3, float(n))} for n, array in enumerate(arrays))) as worker:
        client = Client(worker.endpoint.welcome(0))
        assert client.reader.run() is None
    assert client.numbers() == [0, 1, 2, 3]
    for number, message in enumerate(client.messages):
        assert holds(message, number) and message.columns["x"].shape == shapes[number]
        x, y = (owner_of(message.columns[name]) for name in ("x", "y"))
        assert x is y and isinstance(x.buffer, pa.Buffer)
        for name, column in message.columns.items():
            assert column.flags.aligned and column.flags.writeable, name
            assert column.__array_interface__["data"][0] % flight_wire.ALIGNMENT == 0
        message.columns["x"] += 1
        assert (message.columns["x"] == number + 1).all()


def test_a_batch_is_freed_with_its_last_view_also_while_its_stream_waits() -> None:
    go_on = threading.Event()

    def one_and_later_another() -> Iterator[dict[str, Any]]:
        yield from numbered(1, (500, 500))
        go_on.wait()
        yield from numbered(1, (500, 500))

    with working(one_and_later_another()) as worker:
        client = Client(worker.endpoint.welcome(0))
        reading = threading.Thread(target=client.reader.run)
        reading.start()
        until(lambda: client.messages, "nothing came")
        check_that_the_memory_goes_with_the_last_view(client)
        go_on.set()
        reading.join(30)


def check_that_the_memory_goes_with_the_last_view(client: Client) -> None:
    columns = client.messages.pop().columns
    view = columns["x"][3:, ::7].T
    memory = weakref.ref(owner_of(columns["x"]))
    del columns
    gc.collect()
    assert memory() is not None and (view == 0).all()
    del view
    until(lambda: memory() is None, "the memory is still held")


def serve(pipe: Connection, count: int, options: dict[str, Any]) -> None:
    worker = Worker(numbered(count, (200, 200)), **options)
    pipe.send(worker.endpoint.welcome(0))
    pipe.recv()


def start_server(count: int, **options: Any) -> tuple[Any, Connection, FlightAddress]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, count, options))
    process.start()
    return process, mine, mine.recv()


def test_batches_of_another_process_stay_valid_when_it_is_gone() -> None:
    process, pipe, address = start_server(40)
    client = Client(address)
    assert client.reader.run() is None and client.reader.ended
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    pipe.close()
    assert client.numbers() == list(range(40))
    assert all(holds(message, number) for number, message in enumerate(client.messages))


def test_of_a_killed_worker_the_client_knows_exactly_what_it_has() -> None:
    process, pipe, address = start_server(1000)
    client = Client(address, ahead=0)
    client.reader.grant(20)
    result: list[str | None] = []
    thread = threading.Thread(target=lambda: result.append(client.reader.run()))
    thread.start()
    until(lambda: len(client.lots) == 20, "not all came that was asked for")
    os.kill(process.pid, signal.SIGKILL)
    thread.join(30)
    process.join(30)
    pipe.close()
    assert not client.reader.ended
    assert result[0] is not None
    assert client.numbers() == list(range(len(client.messages)))
    assert client.reader.received == {0: len(client.messages)}


def test_small_batches_travel_together_and_are_kept_apart() -> None:
    worker = Worker(numbered(400, (8, 8)))
    worker.join()
    client = Client(worker.endpoint.welcome(0))
    assert client.reader.run() is None
    worker.endpoint.close()
    assert client.numbers() == list(range(400))
    assert all(holds(message, number) for number, message in enumerate(client.messages))
    assert client.reader.received[0] <= 400 / MOST_BATCHES + 2
    first, second = (message.columns["x"] for message in client.messages[:2])
    assert owner_of(first) is not owner_of(second)
    assert first.flags.writeable


def odd_columns() -> dict[str, Any]:
    return {
        "text": np.array(["a", b"b", None, [1, 2]], object),
        "strings": np.array(["x", "yz"]),
        "empty": np.zeros((0, 4), np.int16),
        "scalar": np.array(7.0),
        "plain": 3,
        "half": np.ones((3, 1, 2), np.float16),
        "day": np.array(["2020-02-02"], "datetime64[D]"),
    }


@pytest.mark.parametrize("count", [1, 5])
def test_columns_of_every_kind_arrive(count: int) -> None:
    worker = Worker(iter([odd_columns() for _ in range(count)]))
    worker.join()
    client = Client(worker.endpoint.welcome(0))
    assert client.reader.run() is None
    worker.endpoint.close()
    assert len(client.messages) == count
    for message in client.messages:
        for name, value in odd_columns().items():
            got = message.columns[name]
            assert np.asarray(got).dtype == np.asarray(value).dtype and np.shape(got) == np.shape(value), name
            assert np.array_equal(got, value), name


def test_batches_without_arrays_and_bad_elements_arrive() -> None:
    outbox, slots = Outbox(), RingSlots(1 << 20)
    empty = produce(slots, 0, {"text": np.array([b"only"], object)})
    empty.bad.append(BadElement("decode", "a.jpg", "broken", {"image": b"..."}))
    outbox.put(empty, 0)
    outbox.close()
    endpoint = FlightEndpoint("127.0.0.1", outbox)
    client = Client(endpoint.welcome(0))
    assert client.reader.run() is None
    endpoint.close()
    (message,) = client.messages
    assert message.columns["text"][0] == b"only" and message.bad == empty.bad


def test_values_of_classes_that_came_with_the_pipeline_arrive() -> None:
    class Box:
        def __init__(self, weight: int) -> None:
            self.weight = weight

    with working(iter([{"box": np.array([Box(3), Box(4)], object), "x": np.arange(9)}])) as worker:
        client = Client(worker.endpoint.welcome(0))
        assert client.reader.run() is None
    assert [box.weight for box in client.messages[0].columns["box"]] == [3, 4]


def test_a_value_that_cannot_be_sent_stops_the_stream_and_not_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_client, "PAUSE_S", 0.001)
    lock = threading.Lock()
    with working(iter([{"x": np.arange(99_000)}, {"lock": np.array([lock], object)}])) as worker:
        client = Client(worker.endpoint.welcome(0))
        trouble = client.reader.run()
    assert trouble is not None and client.numbers() == [0]


def test_a_short_last_batch_does_not_carry_the_empty_rest_of_its_slot() -> None:
    slots = RingSlots(1 << 30)
    batch = produce(slots, 0, {"x": np.zeros((1000, 1000), np.float64), "y": np.arange(1000)})
    batch.columns = {name: column[:2] for name, column in batch.columns.items()}
    label, body = flight_wire.wrap([batch])
    assert body.size == label.size < 20_000
    (message,) = flight_wire.unwrap(label, np.frombuffer(body, np.uint8))
    assert message.columns["x"].shape == (2, 1000) and list(message.columns["y"]) == [0, 1]


def test_a_batch_that_is_too_large_for_one_message_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_wire, "LARGEST_PIECE", 100_000)
    with working(numbered(5, (400, 401))) as worker:
        client = Client(worker.endpoint.welcome(0))
        assert client.reader.run() is None
    assert client.numbers() == list(range(5))
    assert all(holds(message, number) for number, message in enumerate(client.messages))
    assert all(message.columns["x"].flags.writeable for message in client.messages)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_batches_arrive_the_same(codec: Any) -> None:
    with working(numbered(30, (300, 300)), compression=codec) as worker:
        wire = Wire(worker.endpoint.welcome(0), [])
        client = Client(wire.address)
        assert client.reader.run() is None
        wire.close()
    assert client.numbers() == list(range(30))
    assert all(holds(message, number) for number, message in enumerate(client.messages))
    assert all(message.columns["x"].flags.writeable for message in client.messages)


def test_compression_is_decided_on_the_first_batches_and_told() -> None:
    with working(numbered(3 * LOTS_MEASURED, (500, 500))) as worker:
        client = Client(worker.endpoint.welcome(0))
        assert client.reader.run() is None
    (note,) = client.notes
    assert note.startswith("its batches travel ") and "the link carries" in note


def test_several_streams_share_the_batches_of_a_worker() -> None:
    with working(numbered(200, (200, 200)), streams=3) as worker:
        client = Client(worker.endpoint.welcome(0))
        assert client.reader.run() is None and client.reader.ended
    assert sorted(client.numbers()) == list(range(200))
    assert sum(client.reader.received.values()) == 200 and len(client.reader.received) == 3


def test_two_clients_share_a_worker() -> None:
    with working(numbered(100, (200, 200))) as worker:
        clients = [Client(worker.endpoint.welcome(rank)) for rank in range(2)]
        clients[1].reader._rank = 1
        threads = [threading.Thread(target=client.reader.run) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert sorted(clients[0].numbers() + clients[1].numbers()) == list(range(100))


# --- streams that break ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (200, 200)])
@pytest.mark.parametrize("streams", [1, 2])
def test_a_stream_that_is_cut_again_and_again_loses_and_repeats_nothing(
    shape: tuple[int, ...], streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_client, "PAUSE_S", 0.001)
    count = 3000 if shape == (8, 8) else 150
    cuts = [60_000, 400_000, 700_000, 1_300_000, 90_000, 2_000_000]
    with working(numbered(count, shape), streams=streams, limit=8 << 20) as worker:
        wire = Wire(worker.endpoint.welcome(0), cuts)
        client = Client(wire.address)
        trouble = client.reader.run()
        assert trouble is None and client.reader.ended, trouble
        wire.close()
    assert wire.cuts >= (2 if shape == (8, 8) else 4)
    assert sorted(client.numbers()) == list(range(count))
    if streams == 1:
        assert client.numbers() == list(range(count))
    assert all(holds(message, number) for message, number in zip(client.messages, client.numbers(), strict=True))


def test_what_was_not_received_when_flight_is_given_up_comes_next_and_in_order() -> None:
    with working(numbered(50, (200, 200))) as worker:
        client = Client(worker.endpoint.welcome(0), ahead=0)
        with client.reading() as trouble:
            client.reader.grant(7)
            until(lambda: len(client.messages) == 7, "not all came that was asked for")
            client.reader.stop()
        assert trouble == [None] and not client.reader.ended
        assert client.numbers() == list(range(7))
        worker.join()
        worker.endpoint.give_up(0, client.reader.received)
        worker.endpoint.attend(0)
        rest = [one for _ in range(43) for one in worker.outbox.take(0, 1)]
    assert [start >> 32 for one in rest for start, _ in one.spans[0, 0, 0]] == list(range(7, 50))
    assert all((one.columns["x"] == number).all() for number, one in enumerate(rest, 7))


def test_a_port_that_closes_for_good_ends_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_client, "PAUSE_S", 0.001)
    with working(numbered(50, (300, 300))) as worker:
        wire = Wire(worker.endpoint.welcome(0), [1_000_000] * 2 + [0] * 100)
        client = Client(wire.address)
        trouble = client.reader.run()
        assert trouble is not None and not client.reader.ended
        assert client.numbers() == list(range(len(client.messages)))
        assert 0 < len(client.messages) < 50
        wire.close()


# --- who may read ------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_for_every_call() -> None:
    with working(numbered(3)) as worker:
        address = worker.endpoint.welcome(0)
        client = Client(replace(address, token="0" * 64))
        trouble = client.reader.run()
        assert trouble is not None and "Unauthenticated" in trouble and client.messages == []
        with flight.FlightClient(address.location) as bare:
            wish = flight.FlightDescriptor.for_command(json.dumps({"rank": 0, "lane": 0, "received": 0}))
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


def test_secrets_are_not_printed() -> None:
    with working(numbered(1)) as worker:
        address = worker.endpoint.welcome(0)
        assert address.token not in repr(address)
        Client(address).reader.run()


def test_a_lane_that_was_not_offered_is_refused() -> None:
    with working(numbered(1)) as worker:
        address = worker.endpoint.welcome(0)
        other = Client(address)
        other.reader._rank = 5
        trouble = other.reader.run()
        assert trouble is not None and "no lane 0 to rank 5" in trouble
        Client(address).reader.run()


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_a_port_that_cannot_be_reached_is_known_within_seconds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_client, "CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if kind == "refused":
            listener.close()
        client = Client(FlightAddress("127.0.0.1", port, "token"))
        done: list[str | None] = []
        thread = threading.Thread(target=lambda: done.append(client.reader.run()))
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    assert done[0] is not None and not client.reader.ended


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


def test_received_memory_belongs_to_its_receiver_alone() -> None:
    memory = flight_wire.own(pa.py_buffer(np.arange(64, dtype=np.uint8)))
    memory[:] = 5
    assert (memory == 5).all() and memory.flags.writeable
