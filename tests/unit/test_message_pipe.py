"""Messages through a pipe: all of them, in order, with an end, whoever goes first."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pecan_ray.runtime.message_pipe import MOST_UNREAD, MessageReader, MessageWriter, PipeAddress
from tests.ray.waiting import until


@pytest.fixture
def writer() -> Iterator[MessageWriter]:
    with closing(MessageWriter()) as pipe:
        yield pipe


def sending(writer: MessageWriter, messages: list[bytes]) -> threading.Thread:
    """Send messages, and the end, from another thread."""

    def run() -> None:
        if all(writer.send(message) for message in messages):
            writer.end()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@settings(deadline=None, max_examples=30)
@given(st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 300_000).map(bytes)), max_size=20))
def test_all_messages_arrive_in_order(messages: list[bytes]) -> None:
    with closing(MessageWriter()) as writer, closing(MessageReader(writer.address)) as reader:
        writer.opened()
        thread = sending(writer, messages)
        assert list(reader) == messages
        assert reader.ended
        thread.join(10)


def test_what_waits_is_bounded(writer: MessageWriter) -> None:
    with closing(MessageReader(writer.address)) as reader:
        writer.opened()
        sent: list[int] = []

        def run() -> None:
            for number in range(20):
                writer.send(b"x")
                sent.append(number)

        thread = threading.Thread(target=run)
        thread.start()
        messages = iter(reader)
        next(messages)  # the first one is in the reader's hands, and counts until it asks for another
        until(lambda: len(sent) == MOST_UNREAD, "the writer stopped early")
        next(messages)
        until(lambda: len(sent) == MOST_UNREAD + 1, "a message that was read makes room for another")
        assert thread.is_alive()
        for _ in range(18):
            next(messages)
        thread.join(10)
        assert len(sent) == 20


def test_a_writer_whose_reader_is_gone_is_told(writer: MessageWriter) -> None:
    reader = MessageReader(writer.address)
    writer.opened()
    assert writer.send(b"unread")
    reader.close()
    assert not writer.send(b"x" * (1 << 20))
    writer.end()


def test_a_writer_that_waits_for_a_reader_learns_that_it_is_gone(writer: MessageWriter) -> None:
    reader = MessageReader(writer.address)
    writer.opened()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.extend(writer.send(b"x") for _ in range(MOST_UNREAD + 1)))
    thread.start()
    until(lambda: len(results) == MOST_UNREAD, "the writer waits too early")
    reader.close()
    thread.join(10)
    assert results == [True] * MOST_UNREAD + [False]


def test_what_was_written_before_the_end_of_the_writer_is_read(writer: MessageWriter) -> None:
    other = MessageWriter()
    with closing(MessageReader(other.address)) as reader:
        other.opened()
        assert other.send(b"first") and other.send(b"second")
        other.close()
        assert list(reader) == [b"first", b"second"]
        assert not reader.ended


def test_a_reader_can_be_stopped(writer: MessageWriter) -> None:
    reader = MessageReader(writer.address)
    writer.opened()
    writer.send(b"there")
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(reader))
    thread.start()
    reader.stop()
    thread.join(10)
    assert not thread.is_alive() and got == [b"there"] and not reader.ended
    reader.close()
    reader.close()
    reader.stop()


def test_a_writer_that_is_gone_is_not_opened() -> None:
    writer = MessageWriter()
    address = writer.address
    writer.close()
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        MessageReader(address)


def test_the_pipe_of_another_process_is_not_opened(writer: MessageWriter) -> None:
    mine = writer.address
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProcessLookupError, match="another process"):
        MessageReader(PipeAddress(mine.pid, mine.messages, mine.receipts, (mine.inodes[0], mine.inodes[1] + 1)))
    assert len(os.listdir("/proc/self/fd")) == before


def _child(connection: Any) -> None:
    with closing(MessageWriter()) as writer:
        connection.send(writer.address)
        connection.recv()
        writer.opened()
        writer.send(bytes(100))
        connection.send(True)
        connection.recv()
        os._exit(1)


def test_a_writer_that_dies_ends_the_messages() -> None:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    child = context.Process(target=_child, args=(theirs,))
    child.start()
    with closing(MessageReader(mine.recv())) as reader:
        mine.send(True)
        assert mine.recv()
        mine.send(True)
        assert list(reader) == [bytes(100)]
        assert not reader.ended
    child.join(10)


def test_a_message_of_arrays_and_one_of_objects_come_back() -> None:
    import pickle

    from pecan_ray.engines.layout import ColumnPlace
    from pecan_ray.runtime.transports import Message, pickled

    spans = {(0, 0, 0): [(0, 1)]}
    place = Message({"x": ColumnPlace(0, np.dtype(np.float32), (2, 3))}, spans, 2, 0)
    assert pickle.loads(pickled([place, place])) == [place, place]

    class Mine:  # known to this function only, so that nobody can import it
        value = 3

    (found,) = pickle.loads(pickled([Message({"x": Mine()}, spans, 1, 0)]))
    assert found.columns["x"].value == 3
