"""Batches on a device of torch: the next one is copied while the training loop uses the one before."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from pecan_ray.errors import PlanError
from pecan_ray.integrations.formats import Converter, each
from pecan_ray.plan.splits import Element
from pecan_ray.runtime.wakeup_event import WakeupEvent

Tensors: TypeAlias = dict[str, Any]


class NextBatchSource(Protocol):
    """What knows the batch that the training loop uses next, as `BatchClient`."""

    def on_next_batch(self, prepare: Callable[[Element], None]) -> None:
        """Call a function, on a thread of its own, with each batch that is used next, once it has come."""
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
    """Copies batches of tensors to a device, on a thread of its own: pinning memory takes as long as copying it.

    To a GPU through pinned memory and on a stream of its own, so that the copy runs beside the step.  One batch is
    copied ahead.  It belongs to the job until the loop takes it: a state leaves it out.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        stream: Any = torch.cuda.Stream
        self._stream = stream(device) if device.type == "cuda" else None
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
            return self._make_copy(convert(columns))
        while started.result is None:
            self._done.wait()
        if isinstance(started.result, BaseException):
            raise started.result
        return started.result

    def _prepare(self, convert: Converter, columns: Element) -> None:
        """Copy a batch ahead; an error is raised where the loop takes it."""
        with self._lock:
            taken, self._taken = self._taken, None
            if taken is columns:
                return
            started = PrefetchedCopy(columns)
            self._prefetched = (*self._prefetched[-1:], started)
        result: OnItsWay | BaseException
        try:
            result = self._make_copy(convert(columns))
        except BaseException as error:
            result = error
        with self._lock:
            started.result = result
            self._done.ring()

    def _make_copy(self, tensors: Tensors) -> OnItsWay:
        if self._stream is None:
            return OnItsWay(each(tensors, self._moved), None)
        with torch.cuda.stream(self._stream):
            moved: Tensors = each(tensors, self._moved)
            return OnItsWay(moved, self._stream.record_event())

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        pinned = value.pin_memory() if self._stream is not None else value
        return pinned.to(self._device, non_blocking=True)

    def _ready(self, batch: OnItsWay) -> Tensors:
        """Let the loop's stream wait for the copy, and the memory for that stream."""
        if batch.copy_event is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(batch.copy_event)

            def record(value: Any) -> None:
                if isinstance(value, torch.Tensor):
                    value.record_stream(here)

            each(batch.tensors, record)
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
