"""Pickling for other processes: what the program's main script defines goes by value, since they run another script."""

from __future__ import annotations

import copyreg
import sys
from typing import Any

import cloudpickle
import numpy as np

SPAWNED_MAIN = "__mp_main__"
"""The main script in a process that multiprocessing has spawned; cloudpickle knows `__main__` alone."""


def dumps(value: Any) -> bytes:
    """Pickle a value, with functions and classes that other processes cannot import."""
    main = sys.modules.get(SPAWNED_MAIN)
    if main is not None and main.__name__ == SPAWNED_MAIN:  # else it is `__main__` under another name
        cloudpickle.register_pickle_by_value(main)
    return bytes(cloudpickle.dumps(value))


def _as_bytes(value: np.bytes_) -> tuple[type[np.bytes_], tuple[bytes]]:
    return np.bytes_, (bytes(value),)


def _as_text(value: np.str_) -> tuple[type[np.str_], tuple[str]]:
    return np.str_, (str.__str__(value),)  # its own `str` leaves them out too


# NumPy itself leaves out the zeros at the end of these when they are pickled.
copyreg.pickle(np.bytes_, _as_bytes)
copyreg.pickle(np.str_, _as_text)
