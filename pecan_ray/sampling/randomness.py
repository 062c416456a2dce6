"""Random numbers that depend on the element and the operator alone, not on who computes them or when."""

from __future__ import annotations

import hashlib
import struct
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

_KEY = struct.Struct("<qqqqqqq")
_WORDS = struct.Struct("<QQ")
_ZEROS = (0, 0, 0, 0)
_OURS = 3
"""References to a thread's generator (or its source of bits) that are not a user's."""


def random_key(
    seed: int, epoch: int, repetition: int, branch: int, split: int, element: int, output: int, op: str
) -> tuple[int, int]:
    """Return two unsigned 64-bit numbers that stand for one use of randomness; equal arguments, equal numbers."""
    numbers = (seed, epoch, repetition, branch, split, element, output)
    try:
        words = _KEY.pack(*numbers)
    except struct.error:  # one of them has more than 63 bits
        words = _KEY.pack(*map(_signed, numbers))
    first, second = _WORDS.unpack(hashlib.blake2b(words + op.encode(), digest_size=16).digest())
    return first, second


class _Key(ISeedSequence):
    """Hands Philox its key; given one as an argument, it would first ask the system for entropy that it never uses."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[np.uint64]:
        return self._words


def generator(key: tuple[int, int]) -> np.random.Generator:
    """Return the generator that a function with a parameter `rng` is given: Philox with that key."""
    seed: Any = _Key(np.array(key, np.uint64))  # NumPy takes any ISeedSequence, its types only its own
    return np.random.Generator(np.random.Philox(seed))


class ThreadGenerator(threading.local):
    """A generator for each thread that is set anew for each use, which costs a fraction of making one."""

    def __init__(self) -> None:
        self._new()

    def _new(self) -> None:
        self._bits = np.random.Philox(0)
        self._rng = np.random.Generator(self._bits)

    def at(self, key: tuple[int, int]) -> np.random.Generator:
        """Return what `generator` returns; it is the calling thread's until it asks again.

        One that somebody has kept, or is still using further out, is left alone.
        """
        rng, bits = self._rng, self._bits
        if sys.getrefcount(rng) > _OURS or sys.getrefcount(bits) > _OURS + 1:
            self._new()
            rng, bits = self._rng, self._bits
        state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": _ZEROS, "key": key},
            "buffer": _ZEROS,
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        bits.state = state
        return rng


def _signed(number: int) -> int:
    return ((number + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
