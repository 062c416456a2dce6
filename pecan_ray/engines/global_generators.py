"""Global random generators of a worker's processes: `random`, NumPy's, torch's and TensorFlow's.

A module that seeds one of them when it is imported (`random.seed(0)`) is imported by each process of each worker, and
all would draw the same numbers.  So each process seeds them again, with a seed of its own, once the functions are
loaded, and behind the first element of each run of functions, since modules that are imported in a function seed then.
Processes that are the user's (a debug run, the trainer) are left alone.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import threading
from typing import TypeAlias

import numpy as np

SeedKey: TypeAlias = tuple[int | str, ...]
"""What tells a process from all others of its job."""


class GlobalGenerators:
    """The generators of one process; nothing is done to them before `begin`."""

    def __init__(self) -> None:
        self._key: SeedKey | None = None
        self._times = 0
        """How often they were seeded: each time otherwise, since nothing that was drawn shall be drawn again."""
        self._lock = threading.Lock()
        """Guards both."""
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def key(self) -> SeedKey | None:
        """The key of this process; None: its generators are the user's."""
        return self._key

    @property
    def number(self) -> int:
        """A number that no other process of the job has, the same whenever it is asked for; 0 in the user's."""
        if self._key is None:
            return 0
        words = hashlib.blake2b(repr(self._key).encode(), digest_size=4).digest()
        # One more, because 0 says that the process is the user's.
        return int.from_bytes(words, "little") + 1

    def begin(self, key: SeedKey | None) -> None:
        """Seed the generators from a key, and again whenever `reset_seeds` is called; None: leave them alone."""
        with self._lock:
            self._key, self._times = key, 0
        self.reset_seeds()

    def reset_seeds(self) -> None:
        """Seed the generators of the modules that are imported by now."""
        with self._lock:
            if self._key is None:
                return
            self._times += 1
            words = hashlib.blake2b(repr((*self._key, self._times)).encode(), digest_size=8).digest()
        # Outside of the lock: seeding torch and TensorFlow takes their own locks.
        _seed(int.from_bytes(words, "little"))

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it


def _seed(seed: int) -> None:
    """Seed what there is; nothing is imported for it."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # NumPy's global generator takes 32 bits
    # The attribute may be missing while another thread is in the middle of importing torch.
    torch_generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if torch_generator is not None:
        torch_generator.manual_seed(seed % (1 << 63))  # that of CPUs: torch.manual_seed imports a compiler as well
    tensorflow_random = getattr(sys.modules.get("tensorflow"), "random", None)
    if tensorflow_random is not None:
        tensorflow_random.set_seed(seed % (1 << 31))


global_generators = GlobalGenerators()
