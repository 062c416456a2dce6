"""Pixels of images that are tensors: arithmetic on bytes by a table, and layouts in memory.

Nothing here imports PyTorch or torchvision: whoever holds a tensor has.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pecan_ray.known.steps import BytesStep
from pecan_ray.warps import opencv

VALUES = 256
LEAST_NUMBERS = 4096
"""Numbers of an image below which making a table takes as long as computing."""
MOST_CHANNELS = 4
FLOATS = ("float32", "float64")
"""Dtypes of results that a table can have."""
VECTORS = ("AVX2", "AVX512")
"""Instructions with which PyTorch resizes bytes in whole numbers, the same ones in either layout."""


def can_be_looked_up(image: Any) -> bool:
    """Tell whether a value is an image of bytes that is worth a table: [channels, height, width]."""
    torch = sys.modules.get("torch")
    if torch is None or not _is_image(image) or image.dtype != torch.uint8:
        return False
    shape = image.shape
    return (
        len(shape) == 3
        and shape[0] <= MOST_CHANNELS
        and math.prod(shape) >= LEAST_NUMBERS
        and bool(image.device.type == "cpu")
    )


class TensorTables:
    """Makes tables of arithmetic on bytes, and keeps the last one: its steps depend on their parameters alone."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any, npt.NDArray[Any] | None] = (None, None, None)

    def looked_up(self, image: Any, steps: Sequence[BytesStep]) -> Any:
        """Return what steps in a row make of an image of bytes."""
        key = (type(image), image.shape[0], tuple(step.parameters() for step in steps))
        known, made, values = self._last
        if known != key:
            made, values = _table(image, steps)
            self._last = (key, made, values)
        if values is None:
            for step in steps:
                image = step.fn(image)
            return image
        channels, height, width = image.shape
        found = np.empty((channels, height, width), values.dtype)
        for channel, plane in enumerate(_planes(plain(image))):
            opencv().LUT(plane, values[channel], dst=found[channel])
        return like(sys.modules["torch"].from_numpy(found), made)


def _table(image: Any, steps: Sequence[BytesStep]) -> tuple[Any, npt.NDArray[Any] | None]:
    """Return what steps make of an image that has each byte once in each channel, and that as an array.

    None where it is nothing that can be looked up.  They do it themselves, so that the arithmetic is theirs.
    """
    torch, channels = sys.modules["torch"], image.shape[0]
    made = like(torch.arange(VALUES, dtype=torch.uint8).expand(channels, 1, VALUES).contiguous(), image)
    for step in steps:
        made = step.fn(made)
    table = plain(made)
    if str(table.dtype).rpartition(".")[2] not in FLOATS or table.shape != (channels, 1, VALUES):
        return made, None
    return made, np.ascontiguousarray(table.numpy())


def any_layout_is_equal(steps: Sequence[Any]) -> bool:
    """Tell whether steps give the same pixels, whatever the order of an image's bytes in memory.

    Moving pixels does, and so does a resize of PyTorch in whole numbers; in fractions the last bit may differ.
    """
    return all(getattr(step, "any_layout", False) for step in steps) and in_whole_numbers()


def in_whole_numbers() -> bool:
    """Tell whether PyTorch resizes bytes in whole numbers on this processor."""
    backends = getattr(sys.modules.get("torch"), "backends", None)
    ask = getattr(getattr(backends, "cpu", None), "get_cpu_capability", None)
    return ask is not None and ask() in VECTORS


def as_usual(value: Any) -> Any:
    """Return a tensor with its numbers in the usual order in memory; anything else as it is."""
    return value if not _is_image(value) or value.is_contiguous() else like(plain(value).contiguous(), value)


def like(tensor: Any, other: Any) -> Any:
    """Return a tensor of the same class as another one."""
    if type(other) is sys.modules["torch"].Tensor:
        return tensor
    return sys.modules["torchvision.tv_tensors"].wrap(tensor, like=other)


def plain(tensor: Any) -> Any:
    """Return a tensor without a class of its own."""
    return tensor.as_subclass(sys.modules["torch"].Tensor)


def _is_image(value: Any) -> bool:
    kinds = (
        getattr(sys.modules.get("torch"), "Tensor", None),
        getattr(sys.modules.get("torchvision.tv_tensors"), "Image", None),
    )
    return type(value) in kinds


def _planes(image: Any) -> Sequence[Any]:
    """Return the channels of a tensor, each in one piece."""
    behind = image.permute(1, 2, 0)
    if behind.is_contiguous() and image.shape[0] > 1:
        return list(opencv().split(behind.numpy()))
    return [np.ascontiguousarray(plane) for plane in image.numpy()]
