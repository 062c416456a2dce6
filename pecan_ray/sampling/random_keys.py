"""Keys: what each use of randomness depends on, and nothing else.  Every key of the package is made here.

A key holds a seed, the pass (epoch and repetition), the operator, and of an element its origin.  It does not depend on
workers, threads, batch sizes or the order of the work.  A seed that the user gives to an operator replaces the job's
seed, the operator's name and the source's number: equal seeds give equal draws.

Decisions: docs/decisions/randomness-and-passes.md.
"""

from __future__ import annotations

import hashlib
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from pecan_ray.plan.operators import Shuffle
from pecan_ray.plan.splits import Lease

Key: TypeAlias = tuple[int, int]
"""Two unsigned 64-bit numbers."""

_KEY = struct.Struct("<qqqqqqq")
_WORDS = struct.Struct("<QQ")
_ZEROS = (0, 0, 0, 0)
"""The four words of Philox's counter, and of its buffer, in a new generator."""
_OURS = 3
"""References to a thread's generator (or its source of bits) that are not a user's."""


def random_key(
    seed: int, epoch: int, pass_index: int, branch: int, split: int, element: int, output: int, op: str
) -> Key:
    """Return the key of one use of randomness; equal arguments, equal keys."""
    numbers = (seed, epoch, pass_index, branch, split, element, output)
    try:
        words = _KEY.pack(*numbers)
    except struct.error:  # one of them has more than 63 bits
        words = _KEY.pack(*map(_signed, numbers))
    # What a saved state stands for rests on this: another hash would give a resumed job other draws.
    first, second = _WORDS.unpack(hashlib.blake2b(words + op.encode(), digest_size=16).digest())
    return first, second


def element_key(seed: int, lease: Lease, element: int, output: int, op: str) -> Key:
    """Return the key of the draws that an operator makes for an element, or for an output of `flat_map`."""
    return random_key(seed, lease.epoch, lease.pass_index, lease.branch, lease.split.index, element, output, op)


def graph_element_key(seed: int, lease: Lease, element: int) -> Key:
    """Return the part of an element's key that travels with it through a TensorFlow graph."""
    return random_key(seed, lease.epoch, lease.pass_index, lease.branch, lease.split.index, element, 0, "")


def graph_operator_key(op: str) -> Key:
    """Return the part that an operator of a TensorFlow graph adds to an element's key."""
    return random_key(0, 0, 0, 0, 0, 0, 0, op)


def shuffle_key(op: Shuffle, seed: int, epoch: int, pass_index: int = 0) -> Key:
    """Return the key by which a shuffle draws from its buffer in one pass.

    Args:
        op: the shuffle; its own seed, if it has one, replaces the job's seed and the operator's name.
        seed: the job's.
        epoch: of the pass.
        pass_index: how often the shuffle has begun anew before in this epoch.
    """
    if not op.reshuffle:
        epoch = pass_index = 0
    if op.seed is None:
        return random_key(seed, epoch, pass_index, 0, 0, 0, 0, op.name)
    # Neither name nor number: `images.shuffle(n, seed=1).zip(labels.shuffle(n, seed=1))` must keep its pairs
    # (docs/decisions/randomness-and-passes.md#103-equal-seeds-equal-orders).
    return random_key(op.seed, epoch, pass_index, 0, 0, 0, 0, "shuffle")


@dataclass(frozen=True)
class SplitOrder:
    """How the splits of a source are shuffled."""

    seed: int
    of_operator: bool = False
    """Whether the seed is the shuffle's own, and not the job's: then sources with equal seeds have equal orders."""
    reshuffle: bool = True
    """Whether each pass has another order."""


def split_order_of(shuffles: Sequence[Shuffle | None], seed: int) -> tuple[SplitOrder | None, ...]:
    """Return how the splits of each source are shuffled by its operator, if there is one; `seed`: the job's."""
    return tuple(
        None if op is None else SplitOrder(seed if op.seed is None else op.seed, op.seed is not None, op.reshuffle)
        for op in shuffles
    )


def splits_key(order: SplitOrder, epoch: int, pass_index: int, branch: int) -> Key:
    """Return the key by which the splits of a source are ordered in one pass."""
    if not order.reshuffle:
        epoch = pass_index = 0
    return random_key(order.seed, epoch, pass_index, 0 if order.of_operator else branch, 0, 0, 0, "order")


def mix_key(seed: int, epoch: int, pass_index: int = 0) -> Key:
    """Return the key by which a mix draws from its inputs in one pass."""
    return random_key(seed, epoch, pass_index, 0, 0, 0, 0, "mix")


def subset_key(seed: int, level: int, split: int) -> Key:
    """Return the key by which the elements of a source's split are divided into parts, the same in each pass.

    `level`: how many divisions stand before this one; with equal seeds, too, each of them divides on its own.
    """
    # No epoch: parts that differ from pass to pass had trained on 199 of 200 validation elements
    # (docs/decisions/randomness-and-passes.md#104-parts-by-places-of-elements).
    return random_key(seed, 0, level, 0, split, 0, 0, "subset")


def sampler_key(seed: int, epoch: int, pass_index: int = 0) -> Key:
    """Return the key by which a sampler draws the indices of one pass."""
    return random_key(seed, epoch, pass_index, 0, 0, 0, 0, "sampler")


def dataset_key(seed: int, lease_pass: tuple[int, int], branch: int, shard: int, number: int, use: str) -> Key:
    """Return the key of one use of randomness in a dataset of tf.data that is made for one pass over a shard.

    Args:
        seed: the job's.
        lease_pass: epoch and repetition.
        branch: number of the source.
        shard: number of the shard.
        number: of the request for a seed.
        use: what the numbers are for.
    """
    epoch, pass_index = lease_pass
    return random_key(seed, epoch, pass_index, branch, shard, number, 0, f"from_tf_data {use}")


def graph_seed(key: Key) -> int:
    """Return the seed of an operator of tf.data, which takes 63 bits."""
    return key[0] >> 1


class _Key(ISeedSequence):
    """Hands Philox its key; given one as an argument, it would first ask the system for entropy that it never uses."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._state = words

    def generate_state(self, n_words: int, dtype: npt.DTypeLike = np.uint32) -> npt.NDArray[np.uint64]:
        return self._state


def generator(key: Key) -> np.random.Generator:
    """Return the generator that a function with a parameter `rng` is given: Philox with that key."""
    seed: Any = _Key(np.array(key, np.uint64))  # NumPy takes any ISeedSequence, its types only its own
    return np.random.Generator(np.random.Philox(seed))


class ThreadGenerator(threading.local):
    """A generator for each thread that is set anew for each use, which costs a fraction of making one."""

    def __init__(self) -> None:
        self._new()

    def _new(self) -> None:
        self._bit_generator = np.random.Philox(0)
        self._rng = np.random.Generator(self._bit_generator)

    def at(self, key: Key) -> np.random.Generator:
        """Return what `generator` returns; it is the calling thread's until it asks again.

        One that somebody has kept, or is still using further out, is left alone.
        """
        rng, bits = self._rng, self._bit_generator
        if sys.getrefcount(rng) > _OURS or sys.getrefcount(bits) > _OURS + 1:
            self._new()
            rng, bits = self._rng, self._bit_generator
        state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": _ZEROS, "key": key},
            "buffer": _ZEROS,
            # All four words of Philox's buffer are used up, as in a new generator.
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        bits.state = state
        return rng


def _signed(number: int) -> int:
    return ((number + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
