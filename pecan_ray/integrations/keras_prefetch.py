"""How many batches Keras' own thread fetches ahead of those that were trained on.

On TensorFlow a thread fetches as many as `tf.data` finds best, and a state can leave out only the last few.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pecan_ray.errors import PlanError
from pecan_ray.job.delivery_log import MOST_AHEAD

LOOK_S = 0.1
"""Seconds between two looks whether the program ends, which nothing tells a thread that waits."""


class PrefetchLimit:
    """Holds a thread back that fetches, as far as somebody tells which batches were used."""

    def __init__(self) -> None:
        """Hold nothing back."""
        self._changed = threading.Condition()
        """Guards all below, and wakes the thread that fetches."""
        self._trainer: int | None = None
        """The thread that trains, which must never wait for itself; None: nobody tells what was used."""
        self._used = 0
        """Batches of the present epoch that were trained on."""
        self._iterators = 0
        """Those that were made or closed."""

    def begin(self) -> None:
        """Hold other threads than this one back from now on."""
        with self._changed:
            self._trainer, self._used = threading.get_ident(), 0
            self._changed.notify_all()

    def used(self, batches: int) -> None:
        """Note how many batches of the present epoch were trained on."""
        with self._changed:
            self._used = batches
            self._changed.notify_all()

    def end(self) -> None:
        """Hold nothing back any more."""
        with self._changed:
            self._trainer = None
            self._changed.notify_all()

    def refresh_state(self) -> None:
        """Let the threads of iterators that were made before end."""
        with self._changed:
            self._iterators += 1
            self._changed.notify_all()

    def wait(self, fetched: Callable[[], int]) -> None:
        """Wait until one more batch may be fetched.

        Args:
            fetched: batches of the present epoch that were.

        Raises:
            PlanError: another iterator was made meanwhile, or the program ends.
        """
        with self._changed:
            mine = self._iterators
            while self._trainer not in (None, threading.get_ident()) and fetched() - self._used >= MOST_AHEAD:
                self._changed.wait(LOOK_S)
                if mine != self._iterators or not threading.main_thread().is_alive():
                    raise PlanError("to_keras: this iterator was made before another one, or the program ends.")
