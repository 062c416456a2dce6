"""Pickling for other processes: what the program's main script defines goes by value, since they run another script."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle

SPAWNED_MAIN = "__mp_main__"
"""The main script in a process that multiprocessing has spawned; cloudpickle knows `__main__` alone."""


def dumps(value: Any) -> bytes:
    """Pickle a value, with functions and classes that other processes cannot import."""
    main = sys.modules.get(SPAWNED_MAIN)
    if main is not None and main.__name__ == SPAWNED_MAIN:  # else it is `__main__` under another name
        cloudpickle.register_pickle_by_value(main)
    return bytes(cloudpickle.dumps(value))
