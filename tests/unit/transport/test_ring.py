"""Shared-memory slots between real processes: reuse, bounds, views that outlive their writer."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.items import Item
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.python.open_batch import OpenBatch
from pecan_ray.engines.reading import Run
from pecan_ray.errors import ClusterError
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.transport.messages import BatchReader, encode_ring
from pecan_ray.transport.owned_slots import INLINE_BYTES, OwnedSlot, OwnedSlots
from pecan_ray.transport.ring import MOST_IN_FLIGHT, PAGE, RingReader, RingSlot, RingSlots
from tests.ray.waiting import until
from tests.unit.transport.flight_rig import produce


def writer(pipe: Connection, count: int, limit: int) -> None:
    slots = RingSlots(limit)
    for number in range(count):
        pipe.send(encode_ring(produce(slots, number, {"x": np.full((64, 64), number), "name": b"n"})))
    pipe.recv()


@contextlib.contextmanager
def writing(count: int, limit: int) -> Iterator[tuple[Any, Connection]]:
    """Run a process that writes batches; give it, and the pipe through which its messages come."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=writer, args=(theirs, count, limit))
    process.start()
    yield process, mine
    process.join(30)


@pytest.mark.parametrize("keeps", [False, True], ids=["slots are reused", "a reader that keeps all does not stop it"])
def test_batches_of_another_process_arrive_and_survive_it_if_it_is_killed(keeps: bool) -> None:
    reader, slots, kept = BatchReader(), set(), list[Any]()
    with writing(300, limit=100_000) as (process, pipe):
        for number in range(300):
            message = pipe.recv()
            batch = reader.open(message)
            assert batch is not None and (batch["x"] == number).all() and batch["name"] == b"n"
            kept += [batch["x"]] * keeps
            reader.taken(message)
            slots.add(message.address.slot)
        os.kill(process.pid, signal.SIGKILL)
    assert all((x == number).all() for number, x in enumerate(kept))
    assert len(slots) < 100 or keeps
    again = reader.open(message)  # it lies in a file that is mapped
    assert again is not None and (again["x"] == number).all()
    assert BatchReader().open(message) is None
    del again, batch
    gc.collect()


@pytest.mark.parametrize("keep", [lambda a: a[1:], lambda a: a.reshape(-1), lambda a: a.T])
def test_a_slot_is_free_only_when_its_last_view_is_gone(keep: Any) -> None:
    slots, reader = RingSlots(1 << 20), BatchReader()
    message = encode_ring(produce(slots, 0, {"x": np.arange(1000).reshape(10, 100)}))
    batch = reader.open(message)
    assert batch is not None
    view = keep(batch["x"])
    reader.taken(message)
    del batch
    gc.collect()
    blocked = produce(slots, 0, {"x": np.zeros((10, 100), np.int64)})
    assert blocked.slot is not None and encode_ring(blocked).address != message.address
    assert view.sum() == keep(np.arange(1000).reshape(10, 100)).sum()


@pytest.mark.parametrize(
    ("count", "nbytes", "limit"), [(2, 80_000, 100_000), (MOST_IN_FLIGHT, 10, 1 << 30)], ids=["by bytes", "by number"]
)
def test_what_is_in_flight_is_bounded_and_a_released_slot_is_given_again(count: int, nbytes: int, limit: int) -> None:
    slots = RingSlots(limit)
    held = [slots.acquire(nbytes) for _ in range(count)]
    got: list[RingSlot] = []
    begun, failed = threading.Event(), threading.Event()

    def take_two() -> None:
        begun.set()
        got.append(slots.acquire(nbytes // 2))
        with pytest.raises(ClusterError):
            slots.acquire(nbytes)
        failed.set()

    waiting = threading.Thread(target=take_two)
    waiting.start()
    begun.wait()
    held[0].release()
    until(lambda: got, "a slot that was released is not given")
    slots.close()
    waiting.join(10)
    assert failed.is_set() and got == held[:1]


def test_another_process_under_the_same_id_is_not_believed() -> None:
    slots = RingSlots(1 << 20)
    address = slots.acquire(10).address()
    forged = replace(address, file=replace(address.file, token="pecan-other"))
    assert RingReader().open(forged) is None


def test_a_batch_that_an_engine_has_laid_out_arrives_whole_and_its_layout_is_sent_as_bytes() -> None:
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    columns = {
        "when": np.arange(8).astype("M8[ns]"),
        "text": np.array(["a", None] * 4, object),
        "image": np.arange(8 * 6, dtype=np.uint8).reshape(8, 2, 3),
        "half": np.arange(8).astype(bfloat16),
        "empty": np.zeros((8, 0), np.float32),
    }
    slots, reader, lease, layouts = RingSlots(1 << 20), BatchReader(), Lease(0, Split(0)), list[Any]()
    for _ in range(2):
        batch = OpenBatch(Item({name: values[0] for name, values in columns.items()}, [], lease, 0), 8, "batch", slots)
        assert batch.write_run(0, Run(lease, 0, 8, columns, lease.spans), 0, 8)
        message = encode_ring(batch.finish(SkippedPositions()))
        assert list(message.columns) == ["text"] and message.layout is not None
        received = pickle.loads(pickle.dumps(message))
        layouts.append(received.layout)
        arrived = reader.open(received)
        assert arrived is not None and list(arrived) == list(columns)
        for name, values in columns.items():
            assert arrived[name].dtype == values.dtype and arrived[name].tolist() == values.tolist()
    assert layouts[0] is layouts[1]
    del arrived
    slots.close()


def test_a_small_batch_travels_in_its_message_and_takes_no_slot() -> None:
    ring, reader = RingSlots(PAGE), BatchReader()
    slots = OwnedSlots(ring)
    columns: dict[str, np.ndarray[Any, Any]] = {
        "n": np.arange(256, dtype=np.int32).reshape(8, 32),
        "half": np.arange(8, dtype=np.float16),
        "text": np.array([b"a", None] * 4, object),
        "empty": np.zeros((8, 0), np.float32),
    }
    # Of slots the ring gives two, and waits.
    produced = [produce(slots, number, columns) for number in range(100)]
    messages = pickle.loads(pickle.dumps([encode_ring(one) for one in produced]))
    assert all(message.address is None for message in messages)
    assert len(pickle.dumps(messages)) < 100 * 1500, "names and dtypes are sent once for a message"
    for message in messages:
        arrived = reader.open(message)
        assert arrived is not None and list(arrived) == list(columns)
        for name, values in columns.items():
            assert arrived[name].dtype == values.dtype and arrived[name].tolist() == values.tolist()
        arrived["n"][0, 0] = 7  # a batch belongs to its trainer
        reader.taken(message)
    large = encode_ring(detached(produce(slots, 0, {"n": np.zeros(INLINE_BYTES + 1, np.uint8)})))
    assert large.address is not None and large.memory is None
    ring.close()


def test_a_small_batch_that_was_cut_arrives_cut() -> None:
    lease, columns = Lease(0, Split(0)), {"n": np.arange(8, dtype=np.int64), "w": np.arange(16).reshape(8, 2)}
    slots = OwnedSlots(RingSlots(PAGE))
    batch = OpenBatch(Item({name: values[0] for name, values in columns.items()}, [], lease, 0), 8, "batch", slots)
    assert not batch.write_run(0, Run(lease, 0, 5, columns, lease.spans), 0, 5)
    arrived = BatchReader().open(pickle.loads(pickle.dumps(encode_ring(batch.finish(None)))))
    assert arrived is not None and {name: values.tolist() for name, values in arrived.items()} == {
        name: values[:5].tolist() for name, values in columns.items()
    }


def detached(produced: Produced) -> Produced:
    """As a worker hands a batch to its outbox."""
    assert isinstance(produced.slot, OwnedSlot)
    produced.slot = produced.slot.detach_slot()
    return produced


def test_held_batches_that_use_up_the_files_are_told() -> None:
    def hold_all() -> None:
        while True:
            slots.taken(slots.acquire(1 << 30).number)  # by a trainer that holds it

    slots, kept = RingSlots(1 << 40), resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, kept[1]))
    try:
        with pytest.raises(
            ClusterError, match=rf"may have {limit} files open .* of which the trainer holds .*ulimit -n"
        ):
            hold_all()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, kept)
    slots.close()


def memory_of(slot: RingSlot) -> int:
    return os.fstat(slot.file.address.fd).st_blocks * 512


def test_memory_of_a_size_that_is_no_longer_asked_for_is_given_up_and_its_file_cut_anew() -> None:
    slots, reader = RingSlots(64 << 20), RingReader()
    first = [slots.acquire(2 << 20) for _ in range(5)]
    files = {slot.file.address for slot in first}
    views = [reader.open(slot.address()) for slot in first]
    for slot, view in zip(first, views, strict=True):
        assert view is not None
        view[:] = 1
        slot.release()
    assert memory_of(first[0]) >= 10 << 20
    del view, views
    again = slots.acquire(16 << 20)
    assert memory_of(again) == 0, "its pages are new"
    assert {slots.acquire(16 << 20).file.address, again.file.address} == files, "no other file was needed"
    assert len(reader._maps) == 1
    slots.close()


def test_slots_of_one_file_do_not_overlap_and_views_outlive_those_that_are_given_up() -> None:
    slots, reader = RingSlots(64 << 20), RingReader()
    held = [slots.acquire(size) for size in (1, 4096, 4097, 100_000, 3 << 20, 40 << 20, 10, 5 << 20)]
    views = [reader.open(slot.address()) for slot in held]
    for number, slot in enumerate(held):
        np.frombuffer(slot.buffer, np.uint8)[:] = number
    for number, view in enumerate(views):
        assert view is not None and (view == number).all()
    assert len({slot.file.address.number for slot in held}) == 2, "a slot that is larger than a file has its own"
    reader.taken(held[3].address())
    held[4].release()
    slots.acquire(500_000)  # no free slot fits: the one that is free goes
    slots.close()
    reader.forget(slots.token)
    assert views[3] is not None and (views[3] == 3).all()


TRAINER = """
import pickle, sys, weakref
from pecan_ray.transport.messages import BatchReader

reader, kept = BatchReader(), []
weakref.finalize(reader, kept.clear)  # what is registered first is called last
kept.append(reader.open(pickle.loads(sys.stdin.buffer.read())))
print(int(kept[0]["x"].sum()))
"""


def test_a_trainer_that_ends_with_batches_in_its_hands_does_so_in_silence() -> None:
    slots = RingSlots(1 << 20)
    message = pickle.dumps(encode_ring(produce(slots, 0, {"x": np.ones(100)})))
    done = subprocess.run([sys.executable, "-c", TRAINER], input=message, capture_output=True, check=True)
    assert done.stdout.split() == [b"100"]
    assert done.stderr == b""


INTERRUPTED = """
import random, signal
from pecan_ray.transport.ring import RingReader, RingSlots


class Told(BaseException):
    pass


def tell(*_):
    raise Told


signal.signal(signal.SIGALRM, tell)
slots, reader, chance = RingSlots(1 << 24), RingReader(), random.Random(1)
address = slots.acquire(4096).address()
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-4))
        for _ in range(20_000):
            view = reader.open(address)
            reader.taken(address)
            view = None
        print("lost")
    except Told:
        print("told")
"""


def test_a_signal_is_never_lost_to_a_batch_that_is_just_being_released() -> None:
    """A handler that raises, as Ctrl-C's and Ray's for SIGTERM, must not do so where exceptions are ignored."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert done.stderr == ""
    assert set(done.stdout.split()) == {"told"}


def test_a_slot_that_nobody_refers_to_is_given_back_but_not_one_that_was_handed_on() -> None:
    ring = RingSlots(3 * PAGE)
    slots = OwnedSlots(ring)
    held = [slots.acquire(INLINE_BYTES + 1), slots.acquire(INLINE_BYTES + 1)]
    assert isinstance(held[0], OwnedSlot)
    detach_slot = held[0].detach_slot()
    held.clear()
    until(lambda: ring._slots_in_flight == 1, "a slot that was forgotten stays in flight")
    assert detach_slot is not None
    detach_slot.release()
    assert ring._slots_in_flight == 0
    ring.close()
