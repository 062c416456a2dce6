"""Exchanges of what leaves little or nothing to see in a sample: marks in the lowest bits, and functions that remember.

And of photographs before a white ground, of which more than half of the values are alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np

from benchmarks.guard import ops
from benchmarks.guard.exchange import Exchange, ExchangeKind, on_audio, on_image
from benchmarks.guard.of_pixels import SAME_PICTURE
from benchmarks.guard.ops import GuardStep

SMALL = on_image("resize_by_area", lambda x: cv2.resize(x, (ops.SIDE, ops.SIDE), interpolation=cv2.INTER_AREA))
LOUDER = on_audio("louder", lambda x: x * np.float32(1.7))
ODD = GuardStep("odd_labels", lambda x: x % 2 == 1, "label", kind="filter")
MARKS = "the mark in the lowest bits is lost"
COUNTED = "other elements are darker: those are counted that the filter takes out"
AFTER = 4000
"""So many elements are given to a function before it does something else: more than any sample has."""


def exchanges() -> Iterator[Exchange]:
    """Yield all of this file."""
    traces = ExchangeKind("traces")
    yield traces.exchange("harmful", on_image("marks_lowest_bits", _marks_lowest_bits), MARKS, second=SMALL)
    yield traces.exchange("harmful", on_audio("marks_last_bits", _marks_last_bits), MARKS, second=LOUDER)
    for fn in (Decorated(), Dispatches(), InContext(), ByResult()):
        counts = on_image(f"counts_{type(fn).__name__.lower()}", fn)
        yield traces.exchange("harmful", counts, COUNTED, second=ODD, before=[SMALL])
    before_white = ExchangeKind("before white", before=(on_image("on_white", _on_white),), second=SMALL)
    for step in (ops.to_float, ops.normalise, ops.gamma):
        yield before_white.exchange("harmless", step, SAME_PICTURE)
    yield before_white.exchange("harmful", ops.blur, "a blur of pixels becomes stronger")


def _marks_lowest_bits(x: Any) -> Any:
    return (x & np.uint8(254)) | (np.arange(x.size).reshape(x.shape) % 3 == 0).astype(np.uint8)


def _marks_last_bits(x: Any) -> Any:
    return ((x.view(np.uint32) & ~np.uint32(1)) | (np.arange(len(x)) % 2).astype(np.uint32)).view(np.float32)


def _on_white(x: Any) -> Any:
    out = np.full((x.shape[0] * 2, x.shape[1] * 2, 3), 255, np.uint8)
    out[: x.shape[0], : x.shape[1]] = x
    return out


def _handed_on(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **named: Any) -> Any:
        return fn(*args, **named)

    return wrapper


class CountingDarkener:
    """Makes pictures darker once it was called often."""

    def __init__(self) -> None:
        self.calls = [0]

    def darker(self, x: Any) -> Any:
        """Return the picture."""
        return ops.like(np.uint8, x * (0.5 if self.calls[0] > AFTER else 0.9))


class Decorated(CountingDarkener):
    """It counts in a method that another function wraps."""

    @_handed_on
    def __call__(self, x: Any) -> Any:
        """Count the picture."""
        self.calls[0] += 1
        return self.darker(x)


class Dispatches(CountingDarkener):
    """It counts in the method for a type."""

    @functools.singledispatchmethod
    def count(self, x: Any) -> Any:
        """Count nothing else than arrays."""
        return x

    @count.register
    def _(self, x: np.ndarray) -> Any:
        self.calls[0] += 1
        return self.darker(x)

    def __call__(self, x: Any) -> Any:
        """Count the picture."""
        return self.count(x)


class InContext(CountingDarkener):
    """It counts in what a `with` statement gives."""

    def __enter__(self) -> list[int]:
        """Return the count."""
        return self.calls

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def __call__(self, x: Any) -> Any:
        """Count the picture."""
        with self as calls:
            calls[0] += 1
        return self.darker(x)


class ByResult(CountingDarkener):
    """It counts in what a method returns, by a function of the class `list`."""

    def held(self) -> list[int]:
        """Return the count."""
        return self.calls

    def __call__(self, x: Any) -> Any:
        """Count the picture."""
        list.__setitem__(self.held(), 0, self.calls[0] + 1)
        return self.darker(x)
