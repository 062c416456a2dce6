"""Messages through a pipe: all of them, in order, with an end, whoever goes first."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.engines.layout import ColumnPlace
from pecan_ray.transport.message_pipe import MessageReader, MessageWriter, PipeAddress
from pecan_ray.transport.messages import Message, pickled
from tests.long_form import examples
from tests.ray.waiting import until
from tests.unit.transport.flight_rig import beside

Ends = tuple[MessageWriter, MessageReader]


@contextmanager
def connected() -> Iterator[Ends]:
    with closing(MessageWriter()) as writer, closing(MessageReader(writer.address)) as reader:
        writer.opened()
        yield writer, reader


@pytest.fixture
def ends() -> Iterator[Ends]:
    with connected() as both:
        yield both


@examples(30)
@given(st.lists(st.one_of(st.binary(max_size=200), st.integers(0, 300_000).map(bytes)), max_size=20))
def test_all_messages_arrive_in_order(messages: list[bytes]) -> None:
    with connected() as (writer, reader):

        def send() -> None:
            if all(writer.wait_for_credit() and writer.put(message) for message in messages):
                writer.end()

        got = []
        with beside(send):
            reader.grant(1)
            for message in reader:
                got.append(message)
                reader.grant(1)
        assert got == messages and reader.ended


def test_a_grant_never_blocks_and_loses_no_credit(ends: Ends) -> None:
    writer, reader = ends
    for _ in range(2):
        reader.grant(100_000)  # more than a pipe holds
    for taken in range(1, 200_002):
        assert writer.wait_for_credit()
        if taken % 50_000 == 0:
            reader.grant(int(taken == 50_000))


def test_a_writer_that_waits_for_a_credit_learns_of_the_end_and_of_a_reader_that_is_gone(ends: Ends) -> None:
    writer, reader = ends
    answers: list[bool] = []

    def run() -> None:
        answers.append(writer.wait_for_credit())
        writer.end()

    with beside(run):
        writer.no_more()
        assert list(reader) == [] and reader.ended
    assert answers == [False]
    with connected() as (writer, reader):
        reader.grant(2)
        assert writer.wait_for_credit() and writer.connected() and writer.put(b"unread")
        with beside(lambda: answers.extend(writer.wait_for_credit() for _ in range(2))):
            until(lambda: answers == [False, True], "the writer waits too early")
            reader.close()
        assert answers == [False, True, False] and not writer.connected()
        assert not writer.put(b"x" * (1 << 20))
        writer.end()
        reader.grant(1)


@pytest.mark.parametrize("stopped", [True, False], ids=["a reader that is stopped", "a writer that goes"])
def test_messages_end_without_an_end(ends: Ends, stopped: bool) -> None:
    writer, reader = ends
    writer.put(b"there")
    got: list[bytes] = []
    with beside(lambda: got.extend(reader)):
        if stopped:
            reader.stop()
        else:
            writer.close()
    assert got == [b"there"] and not reader.ended
    for end in (reader.close, reader.stop, writer.close, writer.no_more) * 2:
        end()


def test_a_pipe_of_a_writer_that_is_gone_or_of_another_process_is_not_opened() -> None:
    writer = MessageWriter()
    mine = writer.address
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProcessLookupError, match="another process"):
        MessageReader(PipeAddress(mine.pid, mine.messages, mine.credits, (mine.inodes[0], mine.inodes[1] + 1)))
    assert len(os.listdir("/proc/self/fd")) == before
    writer.close()
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        MessageReader(mine)


def test_a_message_of_arrays_and_one_of_objects_come_back() -> None:
    spans = {(0, 0, 0): [(0, 1)]}
    place = Message({"x": ColumnPlace(0, np.dtype(np.float32), (2, 3))}, spans, 2, 0)
    assert pickle.loads(pickled([place, place])) == [place, place]

    class Mine:  # known to this function only, so that nobody can import it
        value = 3

    (found,) = pickle.loads(pickled([Message({"x": Mine()}, spans, 1, 0)]))
    assert found.columns["x"].value == 3
