"""Iterating over a dataset, without waiting for the end of what runs behind it."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf


class Elements:
    """The elements of a dataset, computed on CPUs; None has none.

    TensorFlow ends an iterator where the last reference to it is given up, and waits there for its AUTOTUNE thread,
    which may sleep until its next turn: half a second at first, up to a minute later.  `close` has another thread wait.
    """

    def __init__(self, data: Any) -> None:
        # A worker never computes on an accelerator: it belongs to the trainer.
        with tf.device("/CPU:0"):
            self._held = [iter(() if data is None else data)]

    def __iter__(self) -> Elements:
        return self

    def __next__(self) -> Any:
        return next(self._held[0])

    def close(self) -> None:
        """Give the iterator up; ask for nothing more."""
        held, self._held = self._held, [iter(())]
        threading.Thread(target=held.clear, name="pecan-end-of-graph", daemon=True).start()
