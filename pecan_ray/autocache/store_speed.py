"""How fast a folder of entries is read on this machine, and how fast what comes out of it is put into batches.

Both are measured once for a folder, with the engine's own code, and written down in it for later jobs.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pecan_ray.cache.execution_profile import DeliveryCost
from pecan_ray.cache.store_model import StoreModel
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.entry_format import EntryReader, EntryWriter
from pecan_ray.engines.entry_objects import EntryObjects
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.python import PythonEngine
from pecan_ray.engines.slots import HeapSlot
from pecan_ray.engines.timers import ThreadTimer
from pecan_ray.errors import CacheError
from pecan_ray.plan.operators import Batch, Map, Plan
from pecan_ray.plan.splits import OUTPUT_BITS
from pecan_ray.sources.memory import Items
from pecan_ray.storage.retry import unless_given_up

logger = logging.getLogger("pecan_ray")

BENCHED = ((256, 1 << 10), (512, 4 << 10), (64, 64 << 10), (32, 256 << 10), (8, 1 << 20))
"""Elements, and bytes of each, of the entries by which a store's speed is measured."""
BENCHED_TIMES = 3
"""Times that each of these entries is read: one read may be disturbed, and the model leaves outliers out."""
REMOTE_BENCH_S = 10.0
"""A store in the network that has taken so long is measured well enough."""
DELIVERED = ((512, 64), (512, 4 << 10), (128, 64 << 10), (64, 512 << 10))
"""Elements, and bytes of each, that are put into batches to know how long that takes."""
DELIVERED_ROWS = 16
"""Elements that are put into each batch: 8 MB of the largest, as usual batches of photographs have."""
DELIVERED_TIMES = 8
"""Times that each of these is put into batches."""
SLOTS = 4
"""In so many pieces of memory in turn, as in a job: together with the elements they are larger than a processor's cache
where elements are large."""
# docs/decisions/autocache.md#76-an-epochs-promise
HANDED_S = 0.5e-3
"""CPU time of a batch beside the engine, in the worker, the trainer, the controller, and Ray's processes."""
HANDED_BYTE_S = 1.6e-10
"""CPU time of each byte of a batch there: both measured in jobs on 2 CPUs (x86_64, Python 3.11) with batches of 2 KB to
19 MB, since it would take a job to measure it."""
PAUSE_S = 0.05
"""From the last batch of an epoch to the first one of the next, of which the first lease is only then asked for, and
until all threads are at work again: measured likewise."""
SPEED = "speed 4"
"""Under which note of a store its speed is written down."""


@dataclass(frozen=True)
class StoreSpeed:
    """What was measured of a folder, and of the machine that it is on."""

    reading: StoreModel
    delivery: tuple[tuple[float, float], ...]
    """Bytes of an element, and what one thread takes to put one of so many into a batch: more for more bytes."""

    def delivery_cost(self, nbytes: float, rows: int = 0) -> DeliveryCost:
        """Return what elements of so many bytes take to be put into batches of `rows`, and to be handed over in these.

        Between two sizes that were measured it lies on the line through both: a single line through all of them misses
        some by half, since small copies are faster and handling elements is the larger part of theirs.
        """
        sizes, seconds = zip(*self.delivery, strict=True)
        known = min(nbytes, sizes[-1])  # each byte of what is larger takes as long as one of the largest
        each = float(np.interp(known, sizes, seconds))
        # What the smallest elements take is taken for handling alone; the rest grows with the bytes.
        handling = min(seconds[0], each)
        handed = HANDED_S + HANDED_BYTE_S * nbytes * rows
        return DeliveryCost(handling, (each - handling) / known if known else 0.0, handed, PAUSE_S)


def store_speed(store: EntryStore) -> StoreSpeed:
    """Return the speed of a store as it was measured, now if it was not before."""
    written = store.read_note(SPEED)
    if written is not None:
        try:
            told = json.loads(written)
            return StoreSpeed(StoreModel(**told["reading"]), tuple((size, took) for size, took in told["delivery"]))
        except (KeyError, TypeError, ValueError):
            logger.info("the speed of the cache in %s is measured again", store.folder)
    speed = measured_speed(store)
    note_speed(store, speed)
    return speed


def memory_speed(cache: Cache) -> tuple[StoreModel, int] | None:
    """Return how fast the tier in memory is read, and its bytes; None where there is none."""
    if cache.memory_folder is None:
        return None
    try:
        # In the folder of the tier itself: memory is as fast as this machine's, and the note stays with it.
        with EntryStore(cache.memory_folder, max_bytes=cache.memory_bytes, private=True) as store:
            return store_speed(store).reading, cache.memory_bytes
    except CacheError as error:
        logger.info("nothing is kept in memory: %s", error.message)
        return None


def note_speed(store: EntryStore, speed: StoreSpeed) -> None:
    """Write a store's speed down for later jobs."""
    store.note(SPEED, json.dumps({"reading": _as_json(speed.reading), "delivery": speed.delivery}))


def measured_speed(store: EntryStore) -> StoreSpeed:
    """Measure how fast entries are read, and elements are delivered; raises CacheError where nothing can be kept."""
    return StoreSpeed(_reading(store), _delivery())


def remote_speed(store: EntryStore, objects: EntryObjects) -> StoreModel:
    """Return the speed of a store that many machines share, as it was measured from this one, now if it was not before.

    It is noted in `store`.  Raises CacheError or a SourceError where the store cannot be written and read.
    """
    written = store.read_note(f"{SPEED} {objects.root}")
    if written is not None:
        try:
            return StoreModel(**json.loads(written))
        except (TypeError, ValueError):
            logger.info("the speed of %s is measured again", objects.root)
    model = _remote_reading(objects)
    store.note(f"{SPEED} {objects.root}", json.dumps(_as_json(model)))
    return model


def _as_json(model: StoreModel) -> dict[str, Any]:
    # JSON has no infinity.
    return {name: value for name, value in asdict(model).items() if name != "most_bytes_per_s"}


def _remote_reading(objects: EntryObjects) -> StoreModel:
    """Measure how long entries of several sizes take to come, and for how much of it a CPU is needed.

    All is written and read by requests that are bounded in time, and the larger ones are left out where the smaller
    ones have taken long.
    """
    # Keys by chance: several machines may measure one store at a time.
    kind, mine, wall, cpu = "bench", secrets.token_hex(8), 0.0, 0.0
    reads: list[tuple[float, float, float]] = []
    given_up, started, kept = threading.Event(), time.perf_counter(), list[str]()
    with unless_given_up(given_up, patience_s=objects.wait_s):
        try:
            # The smallest first: if the store is slow, the larger ones are left out.
            for number, (elements, nbytes) in enumerate(sorted(BENCHED, key=lambda one: one[0] * one[1])):
                if reads and time.perf_counter() - started > REMOTE_BENCH_S:
                    break
                key = f"{mine}-{number}"
                objects.put(kind, key, _benchmark_entry(elements, nbytes), elements=elements, seconds=0.0)
                kept.append(key)
                for _ in range(BENCHED_TIMES):
                    # Both clocks: of the time in which no CPU was needed, others can compute.
                    since, spent = time.perf_counter(), time.process_time()
                    found = objects.get(kind, key)
                    whole = found is not None and sum(1 for _ in EntryReader(found.data)) == elements
                    seconds = max(time.perf_counter() - since, 1e-9)
                    if whole:
                        reads.append((elements * nbytes, elements, seconds))
                        wall, cpu = wall + seconds, cpu + time.process_time() - spent
        finally:
            for key in kept:
                objects.drop(kind, key)
    # Nothing could be kept, which has to be known before an epoch is recorded in vain.
    if not reads:
        raise CacheError(f"nothing that was written to {objects.root} could be read there.", path=objects.root)
    return StoreModel.fit(reads, waiting=min(1.0, max(0.0, 1 - cpu / wall)))


def _benchmark_entry(elements: int, nbytes: int) -> list[memoryview]:
    """Return an entry to measure with."""
    # Noise, because a file system or a store may compress what it is given.
    noise = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    writer = EntryWriter()
    for element in range(elements):
        writer.add(element, 0, 1 << OUTPUT_BITS, {"x": noise, "i": element})
    return writer.finish(elements)


def _reading(store: EntryStore) -> StoreModel:
    """Measure how long entries of several sizes take to be read, as elements."""
    reads, kind, watch = [], f"bench {secrets.token_hex(8)}", ThreadTimer()
    try:
        for number, (elements, nbytes) in enumerate(BENCHED):
            key, entry = f"{kind} {number}", _benchmark_entry(elements, nbytes)
            if not store.put(key, kind, entry, elements=elements, seconds=0.0):
                continue  # it is larger than the store
            for _ in range(BENCHED_TIMES):
                watch.start()
                found = store.get(key)
                whole = found is not None and sum(1 for _ in EntryReader(found).elements(apart=False)) == elements
                seconds = watch.stop()
                if whole:
                    reads.append((elements * nbytes, elements, max(seconds, 1e-9)))
    finally:
        store.remove([kind])
    if not reads:
        raise CacheError(f"nothing can be kept in {store.folder}: {store.last_error}.")
    return StoreModel.fit(reads)


def _delivery() -> tuple[tuple[float, float], ...]:
    """Measure what the engine takes for elements that need neither reading nor computing.

    The whole engine runs: what its threads take for handing elements to each other is a part of it, and for small
    elements the larger one.  A quarter of the times may be shorter than the one that counts: in a job the caches of the
    processor are in use too, as in most of them.
    """
    measured, longest = [], 0.0
    for elements, nbytes in DELIVERED:
        # Zeros would be one page of memory, however many there are.
        items = Items([{"x": np.ones(nbytes, np.uint8), "i": number} for number in range(elements)])
        plan = Plan(head=items, ops=(Map(name="same", fn=_same), Batch(name="batch", size=DELIVERED_ROWS)))
        engine = PythonEngine(plan, tuple(plan.sources()), EngineOptions(), WarmSlots(SLOTS))
        try:
            _delivery_seconds(engine, plan)  # memory is touched for the first time
            took = sorted(_delivery_seconds(engine, plan) / elements for _ in range(DELIVERED_TIMES))
        finally:
            engine.close()
        # More bytes cannot take less time: a size whose measurements were lucky must not bend the line.
        longest = max(longest, took[len(took) // 4])
        measured.append((float(nbytes), longest))
    return tuple(measured)


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _delivery_seconds(engine: PythonEngine, plan: Plan) -> float:
    """Return the CPU time of putting a plan's elements into batches: it never waits, and others use the machine too."""
    started = time.process_time()
    for made in engine.batches(AllLeases(tuple(plan.sources()), 0, 1)):
        if made.slot is not None:
            made.slot.release()
    return max(time.process_time() - started, 1e-9)


class WarmSlots:
    """Slots that are used again, as those of a ring are: fresh memory takes several times as long to write."""

    def __init__(self, count: int = 1) -> None:
        """`count`: so many are used in turn, or more where more are held at a time."""
        self._free: deque[_WarmSlot] = deque()
        self._missing = count

    def acquire(self, nbytes: int) -> _WarmSlot:
        """Return the slot that was given back first, or a new one: all that are asked for are of one size."""
        if self._missing <= 0 and self._free:
            return self._free.popleft()
        self._missing -= 1
        return _WarmSlot(nbytes, self._free)


class _WarmSlot(HeapSlot):
    """A piece of memory that goes back where it came from."""

    def __init__(self, nbytes: int, free: deque[_WarmSlot]) -> None:
        super().__init__(nbytes)
        self._free = free

    def release(self) -> None:
        """Give it back."""
        self._free.append(self)
