"""Batches on a device of torch: the next one is copied while the training loop uses the one before."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from pecan_ray.errors import PlanError
from pecan_ray.integrations.formats import each

Tensors = dict[str, Any]


class OnDevice:
    """Copies batches of tensors to a device.

    To a GPU through pinned memory and on a stream of its own, so that the copy runs beside the step.  A batch is copied
    ahead only when it has come already: nobody waits for that.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        stream: Any = torch.cuda.Stream
        self._stream = stream(device) if device.type == "cuda" else None
        self._ahead: tuple[Any, Tensors] | None = None
        """A batch that the training loop does not have yet, and its copy."""

    def stage(self, columns: Any, tensors: Tensors) -> None:
        """Begin to copy a batch that comes next, unless it is lost meanwhile; `columns` names it."""
        self._ahead = columns, self._copied(tensors)

    def take(self, columns: Any) -> Tensors | None:
        """Return the copy of a batch that was staged; None if it was not."""
        ahead, self._ahead = self._ahead, None
        return self._ready(ahead[1]) if ahead is not None and ahead[0] is columns else None

    def copy(self, tensors: Tensors) -> Tensors:
        """Return a batch on the device."""
        return self._ready(self._copied(tensors))

    def _copied(self, tensors: Tensors) -> Tensors:
        with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
            moved: Tensors = each(tensors, self._moved)
            return moved

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        pinned = value.pin_memory() if self._stream is not None else value
        return pinned.to(self._device, non_blocking=True)

    def _ready(self, tensors: Tensors) -> Tensors:
        """Let the loop's stream wait for the copy, and the memory for that stream."""
        if self._stream is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_stream(self._stream)

            def record(value: Any) -> None:
                if isinstance(value, torch.Tensor):
                    value.record_stream(here)

            each(tensors, record)
        return tensors


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
