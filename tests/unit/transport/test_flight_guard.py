"""A stranger cannot fill a worker's memory through its Flight port."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from pecan_ray.transport.choice import FlightAddress
from pecan_ray.transport.flight_guard import MOST_AHEAD
from pecan_ray.transport.flight_wire import HELLO
from tests.ray.waiting import until
from tests.unit.transport.flight_rig import Client, Wire, Worker, numbered, working

LARGE, HUGE = 8 << 20, 1 << 30


def serve(pipe: Connection) -> None:
    worker = Worker(numbered(20))
    pipe.send(worker.endpoint.welcome(0))
    pipe.recv()
    pipe.send(worker.endpoint.guard.cut)


def resident(pid: int) -> int:
    return 1024 * int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


def in_an_action(client: Any, options: Any, data: bytes) -> None:
    list(client.do_action(flight.Action(HELLO, pa.py_buffer(data)), options))


def in_a_descriptor(client: Any, options: Any, data: bytes) -> None:
    client.get_flight_info(flight.FlightDescriptor.for_command(data), options)


def in_an_answer(client: Any, options: Any, data: bytes) -> None:
    wish = json.dumps({"rank": 0, "lane": 0, "received": 0, "granted": 0}).encode()
    exchange(client, options, wish, data)


def exchange(client: Any, options: Any, wish: bytes, data: bytes = b"") -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(wish), options)
    if data:
        writer.write_metadata(pa.py_buffer(data))
    writer.done_writing()
    reader.read_chunk()


STRANGERS = pytest.mark.parametrize(
    ("send", "knows_the_token"), [(in_an_action, False), (in_a_descriptor, False), (in_an_answer, True)]
)


def check_refused(address: FlightAddress, send: Callable[[Any, Any, bytes], None], token: str, nbytes: int) -> None:
    """Send a message of so many bytes, which the server must refuse."""
    options = flight.FlightCallOptions(timeout=60, headers=[(b"authorization", f"Bearer {token}".encode())])
    with flight.FlightClient(address.location) as stranger, pytest.raises((flight.FlightError, pa.ArrowException)):
        send(stranger, options, bytes(nbytes))


@STRANGERS
def test_who_sends_more_than_clients_do_is_cut_before_all_has_come(
    send: Callable[[Any, Any, bytes], None], knows_the_token: bool
) -> None:
    with working(numbered(20)) as worker:
        guard, address = worker.endpoint.guard, worker.endpoint.welcome(0)

        def hold(passed: int) -> None:
            if passed > 2 * MOST_AHEAD:
                until(lambda: guard.cut, "it is not cut")

        wire = Wire(address, [], before=hold)
        check_refused(wire.address, send, address.token if knows_the_token else "guessed", LARGE)
        wire.close()
        client = Client(address)
        assert client.reader.run() is None and client.numbers() == list(range(20))


@pytest.mark.slow
@STRANGERS
def test_a_huge_message_is_refused_and_takes_no_memory(
    send: Callable[[Any, Any, bytes], None], knows_the_token: bool
) -> None:
    """Of a message that is cut off, some comes before that is seen; on a busy machine more."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process: Any = context.Process(target=serve, args=(theirs,))
    process.start()
    address = mine.recv()
    before = peak = resident(process.pid)
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.005):
            peak = max(peak, resident(process.pid))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        check_refused(address, send, address.token if knows_the_token else "guessed", HUGE)
    finally:
        over.set()
        watching.join()
    client = Client(address)
    assert client.reader.run() is None and client.numbers() == list(range(20))
    mine.send("end")
    assert mine.recv() >= 1
    process.join(30)
    assert peak - before < HUGE // 2


def test_clients_are_never_cut_however_small_the_batches() -> None:
    with working(numbered(3000, (2, 2)), streams=2) as worker:
        client = Client(worker.endpoint.welcome(0))
        assert client.reader.run() is None
        assert worker.endpoint.guard.cut == 0
    assert MOST_AHEAD >= 1 << 20


def test_what_is_no_wish_is_refused_by_name() -> None:
    with working(numbered(1)) as worker:
        address = worker.endpoint.welcome(0)
        options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {address.token}".encode())])
        for wish in (b"\xff", b"3", b"{}", b'{"rank": 0, "lane": -1, "received": 0, "granted": 0}'):
            with (
                flight.FlightClient(address.location) as client,
                pytest.raises(flight.FlightError, match=r"stream|lane"),
            ):
                exchange(client, options, wish)
        worker.endpoint.give_up(0, {})
