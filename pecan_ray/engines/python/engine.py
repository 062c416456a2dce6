"""The python engine: the user's functions on a pool of threads, batches written once."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import cloudpickle
import numpy as np

from pecan_ray.engines.contract import EngineOptions, Leases, Produced, Slots
from pecan_ray.engines.python.assemble import Assembly
from pecan_ray.engines.python.chain import Chain
from pecan_ray.engines.python.fill import Filler, lay_out
from pecan_ray.engines.python.items import Item, Loose, merge
from pecan_ray.plan.operators import Batch, ElementOp, Plan
from pecan_ray.plan.splits import Source

CHUNK_S = 0.001
"""Elements are handed to threads in chunks of about this much work, so that tiny ones stay cheap."""
MOST_PER_CHUNK = 256
READY_BATCHES = 8


class PythonEngine:
    """Runs a plan on this machine; one stretch at a time."""

    def __init__(self, plan: Plan, sources: Sequence[Source], options: EngineOptions, slots: Slots) -> None:
        self._plan, self._sources, self._options, self._slots = plan, sources, options, slots
        self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="pecan")
        self._processes: ProcessPoolExecutor | None = None
        limit_native_threads()

    def batches(self, leases: Leases) -> Generator[Produced, None, None]:
        """Yield the batches of one stretch."""
        loose = Loose()
        assembly = Assembly(
            self._plan, self._sources, self._options, leases, loose, pool=self._pool, call=self._callable
        )
        fused = _fused(self._plan)
        if fused is None:
            yield from self._one_by_one(assembly)
        else:
            yield from self._filled(assembly, *fused)

    def _one_by_one(self, assembly: Assembly) -> Generator[Produced, None, None]:
        batched = False
        for item in assembly.items():
            batched = batched or item.row_parts is not None
            yield self._produced(item, assembly.loose)
        parts, bad = assembly.loose.take()
        if parts or bad:
            yield Produced({}, merge(parts), 0, assembly.epoch, partial=True, bad=bad)

    def _produced(self, item: Item, loose: Loose) -> Produced:
        """Copy a finished item into a slot, if it holds arrays."""
        parts, bad = loose.take()
        columns = dict(item.value)
        arrays = {
            name: column
            for name, column in columns.items()
            if isinstance(column, np.ndarray) and not column.dtype.hasobject and column.nbytes
        }
        slot = None
        if arrays:
            offsets, total = lay_out([array.nbytes for array in arrays.values()])
            slot = self._slots.acquire(total)
            memory = np.frombuffer(slot.buffer, np.uint8)
            for offset, (name, array) in zip(offsets, arrays.items(), strict=True):
                place = memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
                place[...] = array
                columns[name] = place
        return Produced(
            columns, merge(item.parts + parts), item.rows, item.lease.epoch, partial=item.partial, slot=slot, bad=bad
        )

    def _filled(self, assembly: Assembly, ops: list[ElementOp], batch: Batch) -> Generator[Produced, None, None]:
        """Run element operators on the pool, each thread writing its results into the batch."""
        ready: queue.Queue[Produced | BaseException | None] = queue.Queue()
        strict = self._options.order == "strict"
        filler = Filler(batch.size, batch.name, self._slots, assembly.loose, strict, ready.put)
        feeder = Feeder(self._pool, self._options.threads, assembly.chain(ops), filler, ready.put)
        reader = threading.Thread(target=feeder.feed, args=(assembly.items(()),), name="pecan-read", daemon=True)
        reader.start()
        try:
            while (got := ready.get()) is not None:
                if isinstance(got, BaseException):
                    raise got
                yield got
            rest = filler.rest()
            if rest is None:
                parts, bad = assembly.loose.take()
                if not parts and not bad:
                    return
                rest = Produced({}, merge(parts), 0, assembly.epoch, partial=True, bad=bad)
            yield rest
        finally:
            feeder.stop()

    def _callable(self, op: ElementOp) -> Callable[..., Any]:
        if not op.processes:
            return op.fn
        if self._processes is None:
            self._processes = ProcessPoolExecutor(self._options.threads, mp_context=get_context("spawn"))
        return _InProcess(self._processes, op.fn)

    def close(self) -> None:
        """Stop threads and processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.shutdown(wait=False, cancel_futures=True)


class Feeder:
    """Hands elements to the pool in chunks; bounds what is in progress."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        threads: int,
        chain: Chain,
        filler: Filler,
        ready: Callable[[Produced | BaseException | None], None],
    ) -> None:
        self._pool, self._chain, self._filler, self._ready = pool, chain, filler, ready
        self._most = 2 * threads + 2
        self._free = threading.Semaphore(self._most)
        self._stopped = threading.Event()
        self._per_element_s = CHUNK_S

    def feed(self, items: Iterator[Item]) -> None:
        """Read all items and hand them out; ends with None, or with the error that stopped it."""
        try:
            number = 0
            chunk: list[Item] = []
            for item in items:
                chunk.append(item)
                if len(chunk) >= min(MOST_PER_CHUNK, CHUNK_S / max(self._per_element_s, 1e-9)):
                    self._submit(number, chunk)
                    number, chunk = number + 1, []
                if self._stopped.is_set():
                    return
            if chunk:
                self._submit(number, chunk)
            for _ in range(self._most):
                self._free.acquire()
            self._ready(None)
        except BaseException as error:
            self._ready(error)

    def _submit(self, number: int, chunk: list[Item]) -> None:
        self._free.acquire()
        if not self._stopped.is_set():
            self._pool.submit(self._work, number, chunk)

    def _work(self, number: int, chunk: list[Item]) -> None:
        try:
            if not self._stopped.is_set():
                began = time.perf_counter()
                done = [made for item in chunk for made in self._chain.run(item)]
                spent = (time.perf_counter() - began) / len(chunk)
                self._per_element_s += 0.2 * (spent - self._per_element_s)
                self._filler.place(number, done)
        except BaseException as error:
            self._stopped.set()
            self._ready(error)
        finally:
            self._free.release()

    def stop(self) -> None:
        """Let nothing new begin, and wake the reader."""
        self._stopped.set()
        self._free.release(self._most)


class _InProcess:
    """Calls a function in a process pool."""

    def __init__(self, pool: ProcessPoolExecutor, fn: Callable[..., Any]) -> None:
        self._pool, self._payload = pool, cloudpickle.dumps(fn)

    def __call__(self, value: Any, **keywords: Any) -> Any:
        return self._pool.submit(_call_pickled, self._payload, value, keywords).result()


_functions: dict[bytes, Callable[..., Any]] = {}
"""Functions that this pool process was sent already."""


def _call_pickled(payload: bytes, value: Any, keywords: dict[str, Any]) -> Any:
    fn = _functions.get(payload)
    if fn is None:
        fn = _functions[payload] = cloudpickle.loads(payload)
    return fn(value, **keywords)


def _fused(plan: Plan) -> tuple[list[ElementOp], Batch] | None:
    """Return the element operators and the batch of a plan that is nothing else."""
    ops = list(plan.ops)
    if not ops or not isinstance(ops[-1], Batch):
        return None
    before = [op for op in ops[:-1] if isinstance(op, ElementOp)]
    return (before, ops[-1]) if len(before) == len(ops) - 1 else None


def limit_native_threads() -> None:
    """Keep OpenCV from starting threads of its own beside ours, if it is in use."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(1)
