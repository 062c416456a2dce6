"""Messages through a pipe: all of them, in order, with an end, whoever goes first."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.engines.layout import ColumnPlace
from pecan_ray.transport.message_pipe import MessageReader, MessageWriter, PipeAddress
from pecan_ray.transport.messages import Message, pickled
from tests.long_form import examples
from tests.ray.waiting import until


@pytest.fixture
def writer() -> Iterator[MessageWriter]:
    with closing(MessageWriter()) as pipe:
        yield pipe


@examples(30)
@given(st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 300_000).map(bytes)), max_size=20))
def test_all_messages_arrive_in_order(messages: list[bytes]) -> None:
    with closing(MessageWriter()) as writer, closing(MessageReader(writer.address)) as reader:
        writer.opened()

        def send() -> None:
            if all(writer.wait_for_credit() and writer.put(message) for message in messages):
                writer.end()

        thread = threading.Thread(target=send)
        thread.start()
        got = []
        reader.grant(1)
        for message in reader:
            got.append(message)
            reader.grant(1)
        assert got == messages and reader.ended
        thread.join(10)


def test_a_grant_never_blocks_and_loses_no_credit(writer: MessageWriter) -> None:
    with closing(MessageReader(writer.address)) as reader:
        writer.opened()
        reader.grant(100_000)  # more than a pipe holds
        reader.grant(100_000)
        taken = 0
        while taken < 200_001:
            assert writer.wait_for_credit()
            taken += 1
            if taken == 50_000:
                reader.grant(1)
            if taken % 50_000 == 0:
                reader.grant(0)


def test_a_writer_that_waits_for_a_credit_learns_of_the_end(writer: MessageWriter) -> None:
    with closing(MessageReader(writer.address)) as reader:
        writer.opened()
        answers: list[bool] = []

        def run() -> None:
            answers.append(writer.wait_for_credit())
            writer.end()

        thread = threading.Thread(target=run)
        thread.start()
        writer.no_more()
        assert list(reader) == [] and reader.ended
        thread.join(10)
        assert answers == [False]
    writer.close()
    writer.no_more()


def test_a_writer_whose_reader_is_gone_is_told_also_while_it_waits(writer: MessageWriter) -> None:
    reader = MessageReader(writer.address)
    writer.opened()
    reader.grant(2)
    assert writer.wait_for_credit() and writer.connected() and writer.put(b"unread")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.extend(writer.wait_for_credit() for _ in range(2)))
    thread.start()
    until(lambda: answers == [True], "the writer waits too early")
    reader.close()
    thread.join(10)
    assert answers == [True, False] and not writer.connected()
    assert not writer.put(b"x" * (1 << 20))
    writer.end()
    reader.grant(1)


def test_a_reader_can_be_stopped(writer: MessageWriter) -> None:
    reader = MessageReader(writer.address)
    writer.opened()
    writer.put(b"there")
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(reader))
    thread.start()
    reader.stop()
    thread.join(10)
    assert not thread.is_alive() and got == [b"there"] and not reader.ended
    reader.close()
    reader.close()
    reader.stop()


def test_a_pipe_of_a_writer_that_is_gone_or_of_another_process_is_not_opened(writer: MessageWriter) -> None:
    mine = writer.address
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProcessLookupError, match="another process"):
        MessageReader(PipeAddress(mine.pid, mine.messages, mine.credits, (mine.inodes[0], mine.inodes[1] + 1)))
    assert len(os.listdir("/proc/self/fd")) == before
    writer.close()
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        MessageReader(mine)


def test_a_writer_that_goes_without_an_end_ends_the_messages(writer: MessageWriter) -> None:
    with closing(MessageReader(writer.address)) as reader:
        writer.opened()
        writer.put(bytes(100))
        writer.close()
        assert list(reader) == [bytes(100)] and not reader.ended


def test_a_message_of_arrays_and_one_of_objects_come_back() -> None:
    spans = {(0, 0, 0): [(0, 1)]}
    place = Message({"x": ColumnPlace(0, np.dtype(np.float32), (2, 3))}, spans, 2, 0)
    assert pickle.loads(pickled([place, place])) == [place, place]

    class Mine:  # known to this function only, so that nobody can import it
        value = 3

    (found,) = pickle.loads(pickled([Message({"x": Mine()}, spans, 1, 0)]))
    assert found.columns["x"].value == 3
