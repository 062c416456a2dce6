"""Batches on a device of torch: the next one is copied while the training loop uses the one before."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pecan_ray.errors import PlanError
from pecan_ray.integrations.cuda_calls import CudaCalls
from pecan_ray.integrations.formats import Converter, each
from pecan_ray.integrations.pinned_slots import PinnedSlots, Tensors
from pecan_ray.plan.splits import Element
from pecan_ray.runtime.wakeup_event import WakeupEvent


class NextBatchSource(Protocol):
    """What knows the batch that the training loop uses next, as `BatchClient`."""

    def on_next_batch(self, prepare: Callable[[Element], None]) -> None:
        """Call a function, on a thread of its own, with each batch that is used next, once it has come."""
        ...

    def note(self, text: str) -> None:
        """Note something for the job's report."""
        ...


@dataclass(frozen=True)
class OnItsWay:
    """A batch whose copy has begun."""

    tensors: Tensors
    copy_event: Any
    """An event of the stream on which it is copied; None: the copy is there."""


@dataclass(eq=False)
class PrefetchedCopy:
    """A batch that the thread copies, or has copied."""

    columns: Element
    result: OnItsWay | BaseException | None = None
    """None: it is not ready."""


class OnDevice:
    """Copies batches of tensors to a device, ahead of the training loop and on a thread of its own.

    One batch is copied ahead.  It belongs to the job until the loop takes it: a state leaves it out.  A GPU reads
    batches where the workers have written them (`PinnedSlots`), on a stream of its own beside that of the step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._calls = CudaCalls(device) if device.type == "cuda" else None
        self._slots = None if self._calls is None else PinnedSlots(self._calls)
        if self._slots is not None:
            # Not at the end of the interpreter, where CUDA may be gone.
            weakref.finalize(self, self._slots.end).atexit = False
        self._sees_next = False
        self._lock = threading.Lock()
        """Guards all below."""
        self._done = WakeupEvent()
        """For the training loop: the thread has finished a batch."""
        self._prefetched: tuple[PrefetchedCopy, ...] = ()
        """The last one, and the one before: the thread sees the next batch while the loop is about to take that."""
        self._taken: Element | None = None
        """A batch that the loop has copied itself, since the thread had not begun with it."""

    def deliver(self, columns: Element, convert: Converter, client: NextBatchSource | None) -> Tensors:
        """Return a batch on the device; with a client the next ones are copied while the loop uses this one."""
        if client is not None and not self._sees_next:
            self._sees_next = True
            if self._slots is not None:
                self._slots.note = client.note
            client.on_next_batch(functools.partial(self._prepare, convert))
        return self._ready(self._copy_of(columns, convert))

    def _copy_of(self, columns: Element, convert: Converter) -> OnItsWay:
        with self._lock:
            started = next((copy for copy in self._prefetched if copy.columns is columns), None)
            if started is None:
                self._taken = columns
            else:  # one that was begun before it is lost
                self._prefetched = self._prefetched[self._prefetched.index(started) + 1 :]
        if started is None:
            return self._make_copy(columns, convert(columns))
        while started.result is None:
            self._done.wait()
        if isinstance(started.result, BaseException):
            raise started.result
        return started.result

    def _prepare(self, convert: Converter, columns: Element) -> None:
        """Copy a batch ahead; an error is raised where the loop takes it."""
        with self._lock:
            taken, self._taken = self._taken, None
            # The loop was here first: docs/decisions/transport.md#90-copies-ahead-to-the-device.
            if taken is columns:
                return
            started = PrefetchedCopy(columns)
            self._prefetched = (*self._prefetched[-1:], started)
        result: OnItsWay | BaseException
        try:
            result = self._make_copy(columns, convert(columns))
        except BaseException as error:
            result = error
        with self._lock:
            started.result = result
            self._done.ring()

    def close(self) -> None:
        """Wait for the copies that are under way; batches that were delivered stay valid."""
        if self._slots is not None:
            self._slots.close()

    def _make_copy(self, columns: Element, tensors: Tensors) -> OnItsWay:
        if self._slots is None:
            return OnItsWay(each(tensors, self._moved), None)
        return OnItsWay(*self._slots.copy(columns, tensors))

    def _moved(self, value: Any) -> Any:
        return value.to(self._device) if isinstance(value, torch.Tensor) else value

    def _ready(self, batch: OnItsWay) -> Tensors:
        if self._calls is not None:
            self._calls.hand_over(batch.tensors, batch.copy_event)
        return batch.tensors


def on_device(name: str) -> OnDevice | None:
    """Return what copies to a device; None for the CPU, where batches are already.

    Raises PlanError where there is no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise PlanError(f"device={name!r} is no device of torch: {str(error).splitlines()[0]}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise PlanError(
            f"device={name!r}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices in this "
            'process. Use device="cpu", or give it a GPU (in Ray Train: ScalingConfig(use_gpu=True)).'
        )
    return None if device.type == "cpu" else OnDevice(device)
