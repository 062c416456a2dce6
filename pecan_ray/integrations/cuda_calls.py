"""The calls of CUDA that copies of batches to a GPU need, through torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pecan_ray.integrations.formats import each
from pecan_ray.integrations.pinned_slots import Tensors

cuda: Any = torch.cuda  # which has no types
PORTABLE = 1
"""cudaHostRegisterPortable: the pages are locked for all devices of the process."""


class CudaCalls:
    """`DeviceCalls` of one GPU, with a stream of its own beside that of the training step."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, cuda.Stream(device)

    def register(self, address: int, nbytes: int) -> str | None:
        """Lock pages of this process for DMA; return None, or why CUDA refuses."""
        runtime = cuda.cudart()
        with cuda.device(self._device):
            code = runtime.cudaHostRegister(address, nbytes, PORTABLE)
        return f"error {int(code)}: {runtime.cudaGetErrorString(code)}" if int(code) else None

    def unregister(self, address: int) -> None:
        """Unlock pages."""
        runtime = cuda.cudart()
        with cuda.device(self._device):
            runtime.cudaHostUnregister(address)

    def copy(self, tensors: Tensors, is_registered: Callable[[int], bool]) -> tuple[Tensors, Any]:
        """Begin to copy tensors to the GPU; those that do not lie in registered memory are pinned first."""

        def moved(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.is_cuda:
                return value  # also what was decoded there
            pinned = value if is_registered(value.data_ptr()) else value.pin_memory()
            return pinned.to(self._device, non_blocking=True)

        with cuda.stream(self._stream):
            try:
                copies: Tensors = each(tensors, moved)
                event = cuda.Event(blocking=True)  # a thread that waits for it sleeps
                event.record(self._stream)
            # Copies that have begun still read memory that the caller is going to give back.
            except BaseException:
                self._stream.synchronize()
                raise
        return copies, event

    def wait(self, event: Any | None) -> None:
        """Wait until the copies before an event are done; None: all copies."""
        (self._stream if event is None else event).synchronize()

    def hand_over(self, tensors: Tensors, event: Any) -> None:
        """Let the calling thread's stream wait for the copies, and the tensors' memory for that stream."""
        here = cuda.current_stream(self._device)
        here.wait_event(event)

        def record(value: Any) -> None:
            if isinstance(value, torch.Tensor):
                value.record_stream(here)

        each(tensors, record)
