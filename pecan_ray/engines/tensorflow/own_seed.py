"""Operators of tf.data whose random numbers depend on the seed that they are given, and on nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.python.eager import context


@contextmanager
def without_global_seed() -> Iterator[None]:
    """Build operators of tf.data as in a process in which nobody has called `tf.random.set_seed`.

    TensorFlow joins an operator's seed with the global one.  That is another one in each process of each worker, and in
    the trainer the user's, so equal seeds would have other orders in each process.  `set_seed` would also begin the
    sequence of unseeded operations anew.
    """
    # No public name reads the global seed, or sets it alone (tensorflow/python/eager/context.py, `Context._seed`).
    process: Any = context.context()
    seed, process._seed = process._seed, None
    try:
        yield
    finally:
        process._seed = seed
