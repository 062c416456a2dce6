"""Pixels of images that are tensors: their layouts in memory.

Nothing here imports PyTorch or torchvision: whoever holds a tensor has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

VECTORS = ("AVX2", "AVX512")
"""Instructions with which PyTorch resizes bytes in whole numbers, the same ones in either layout."""


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
