"""Batches lent to many readers: one copy, read-only, free when the last one lets go, whoever dies meanwhile."""

from __future__ import annotations

import gc
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import Unfinished
from pecan_ray.engines.layout import ColumnPlace, Layout
from pecan_ray.transport.message_pipe import MessageReader
from pecan_ray.transport.messages import BatchReader, Message
from pecan_ray.transport.ring import RingSlots
from pecan_ray.transport.share_channel import ShareChannel
from pecan_ray.transport.shared_slots import MOST_TOLD_BYTES, BatchHandle, SlotBorrower, SlotOwner
from tests.ray.waiting import until
from tests.unit.transport.flight_rig import beside


@pytest.fixture
def ring() -> Iterator[RingSlots]:
    slots = RingSlots(1 << 20)
    yield slots
    slots.close()


@pytest.fixture
def lender() -> Iterator[SlotOwner]:
    found = SlotOwner(1 << 20)
    yield found
    found.close()


@pytest.fixture
def channel() -> Iterator[ShareChannel]:
    found = ShareChannel()
    yield found
    found.close()


def borrower_of(channel: ShareChannel) -> SlotBorrower:
    return SlotBorrower(os.getpid(), channel.address.releases)


def written(ring: RingSlots, value: int, size: int = 5000) -> Message:
    slot = ring.acquire(size)
    np.frombuffer(slot.buffer, np.uint8)[:size] = value
    return Message({"x": ColumnPlace(0, np.dtype(np.uint8), (size,))}, {}, size, 3, slot.address())


def used_slot(ring: RingSlots) -> int:
    """Fill a free slot with zeros and keep it; return its number.

    A ring hands out the slot that became free last.  A caller that gave its slot back would be given the same one
    again, and would never meet another slot that became free meanwhile.
    """
    slot = ring.acquire(5000)
    np.frombuffer(slot.buffer, np.uint8)[:] = 0
    ring.taken(slot.number)
    return slot.number


def loan_of(message: Message, reader: BatchReader, lender: SlotOwner) -> BatchHandle:
    columns = reader.open(message)
    assert columns is not None
    reader.taken(message)
    return lender.make_batch_handle(message, columns, "w")


def test_a_batch_in_a_workers_slot_is_lent_there_and_nobody_writes_into_it(ring: RingSlots, lender: SlotOwner) -> None:
    reader, channels = BatchReader(), [ShareChannel(), ShareChannel()]
    batch_handle = loan_of(written(ring, 7), reader, lender)
    both = [borrower_of(one).open(batch_handle.batch)["x"] for one in channels]
    assert [int(x.sum()) for x in both] == [7 * 5000] * 2
    reader.open(written(ring, 0))  # of another slot
    batch_handle.columns["x"][0] = 9
    assert [int(x[0]) for x in both] == [9, 9], "all see one memory"
    with pytest.raises(ValueError, match="read-only"):
        both[0][0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        both[0].flags.writeable = True
    assert batch_handle.batch.address is not None and batch_handle.nbytes == batch_handle.batch.address.size
    for one in channels:
        one.close()


def test_a_slot_is_free_when_the_group_and_all_readers_have_let_go(
    ring: RingSlots, lender: SlotOwner, channel: ShareChannel
) -> None:
    reader = BatchReader()
    message = written(ring, 7)
    batch_handle = loan_of(message, reader, lender)
    x = borrower_of(channel).open(batch_handle.batch)["x"]
    number, part = batch_handle.batch.number, x[10:20]
    del x
    gc.collect()
    assert channel.released() == [], "a view of a view holds it"
    del part
    until(lambda: channel.released() == [number], "the reader has not said that it let go")
    assert message.address is not None
    own = message.address.slot

    assert used_slot(ring) != own, "the group holds it"
    del batch_handle
    until(lambda: used_slot(ring) == own, "the slot is not free")


@pytest.mark.parametrize("known", [False, True], ids=["by value", "in a layout"])
@pytest.mark.parametrize("size", [10, MOST_TOLD_BYTES + 1])
def test_a_few_other_columns_are_told_with_a_slot_of_a_worker_and_many_bytes_are_copied(
    ring: RingSlots, lender: SlotOwner, channel: ShareChannel, size: int, known: bool
) -> None:
    message, text = written(ring, 7), np.array([b"a" * size, None], object)
    places = {"text": None, **message.columns}
    outside = {"text": text}
    columns = outside if known else {**outside, **message.columns}
    message = replace(message, columns=columns, layout=Layout(places, 5000) if known else None)
    batch_handle = loan_of(message, BatchReader(), lender)
    assert batch_handle.batch.address is not None and message.address is not None
    lies_there = batch_handle.batch.address.token == message.address.token
    assert lies_there == (size == 10)
    found = borrower_of(channel).open(batch_handle.batch)
    assert list(found) == ["text", "x"] and found["x"].sum() == 7 * 5000
    np.testing.assert_array_equal(found["text"], text)


def test_readers_get_a_batch_as_it_is_behind_the_operators_that_were_left_to_the_group(
    ring: RingSlots, lender: SlotOwner, channel: ShareChannel
) -> None:
    """What its worker has written is not what was made of it here."""
    message = replace(written(ring, 7), unfinished=Unfinished(("halve",), "a row is small"))
    came = BatchReader().open(message)
    assert came is not None
    batch_handle = lender.make_batch_handle(message, {"x": came["x"] / 2}, "w")
    found = borrower_of(channel).open(batch_handle.batch)["x"]
    assert found.dtype == np.float64 and set(found) == {3.5}


def test_a_copied_batch_goes_with_its_loan_and_many_small_ones_do_not_block(lender: SlotOwner) -> None:
    loans = [lender.make_batch_handle(Message({}, {}, 1, 0), {"i": np.array([i])}, "w") for i in range(3000)]
    slots = {batch_handle.batch.address.slot for batch_handle in loans if batch_handle.batch.address}
    assert len(slots) == 3000
    del loans
    again = lender.make_batch_handle(Message({}, {}, 1, 0), {"i": np.array([1])}, "w")
    assert again.batch.address is not None and again.batch.address.slot in slots


def test_columns_of_any_kind_are_copied_and_a_batch_that_was_moved_to_disk_is_mapped_like_others(
    ring: RingSlots, channel: ShareChannel, tmp_path: Path
) -> None:
    lender, reader, borrower = SlotOwner(1 << 20, 1 << 20, tmp_path), BatchReader(), borrower_of(channel)
    text = np.array([b"few", None], object)
    copied: dict[str, Any] = {
        "text": np.array(["many" * 9000, "bc", None], object),
        "x": np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        "one": 5,
        "none": np.empty((0, 3), np.int64),
        "when": np.array(["2024-01-01"], "M8[D]"),
    }
    message = written(ring, 7)
    message = replace(message, columns={"text": text, **message.columns})
    loans = [loan_of(message, reader, lender), lender.make_batch_handle(Message(copied, {}, 12, 1), copied, "w")]
    moved = [lender.to_disk(batch_handle) for batch_handle in loans]
    assert list(tmp_path.iterdir()) == [], "no name is left behind"
    assert len({batch_handle.batch.number for batch_handle in (*loans, *moved)}) == 4
    first, second = (borrower.open(batch_handle.batch) for batch_handle in (moved[0], loans[1]))
    assert int(first["x"].sum()) == int(moved[0].columns["x"].sum()) == 7 * 5000
    np.testing.assert_array_equal(first["text"], text)
    for found in (second, borrower.open(moved[1].batch), moved[1].columns):
        assert list(found) == list(copied)
        for name, column in copied.items():
            np.testing.assert_array_equal(found[name], column)
    with pytest.raises(ValueError, match="read-only"):
        second["x"][0] = 1
    del loans, second, found
    own = message.address.slot if message.address is not None else -1
    until(lambda: used_slot(ring) == own, "the slot is not free")
    address = moved[0].batch.address
    assert address is not None and str(tmp_path) in os.readlink(f"/proc/self/fd/{address.file.fd}")
    lender.close()


def test_a_disk_without_room_is_an_error_and_kills_nobody(ring: RingSlots, tmp_path: Path) -> None:
    """A map of a file that the disk has no room for kills who writes into it."""
    lender = SlotOwner(1 << 20, 1 << 20, tmp_path)
    batch_handle = loan_of(written(ring, 7), BatchReader(), lender)
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, kept[1]))
        with pytest.raises(OSError, match="File too large"):
            lender.to_disk(batch_handle)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, handler)  # which Python ignores from its start on: other tests count on it
    assert int(lender.to_disk(batch_handle).columns["x"].sum()) == 7 * 5000
    lender.close()


def test_a_message_larger_than_the_pipe_is_written_when_there_is_room_and_a_reader_that_is_gone_is_noticed(
    channel: ShareChannel,
) -> None:
    reader = MessageReader(channel.address.pipe)
    assert not channel.opened
    reader.grant(2)
    assert channel.credits() == 2 and channel.opened and channel.credits() == 0
    large, found = os.urandom(200_000), list[bytes]()
    assert not channel.put(large)
    with beside(lambda: found.append(next(iter(reader)))):
        until(channel.flush, "the reader reads nothing")
    assert found == [large]
    reader.close()
    assert channel.credits() is None
    assert channel.put(b"nobody reads this"), "and nothing blocks"
