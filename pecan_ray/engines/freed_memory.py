"""Freed memory stays with the process: what one element's arrays leave, the next element's take.

By its own rule the C library gives large pieces back to the system, and takes them again page by page, each of which
the system has to clear: a fifth of the CPU time where an element's arrays hold megabytes
(docs/decisions/python-engine.md#15-freed-memory-stays-keras-waits).
"""

from __future__ import annotations

import ctypes
import os

# Numbers of the settings in GNU's ``malloc.h``.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
LARGEST_KEPT = 32 << 20
"""Bytes of a piece that is taken from kept memory; the C library takes no larger number."""
MOST_KEPT = 512 << 20
"""Bytes that may lie free at the end of each of the C library's areas; beyond that they go back."""
AHEAD = 64 << 20
"""Addresses, not memory, by which an area grows at once; areas of threads are of this size and kept if it is free."""
USERS_OWN = {"MALLOC_TRIM_THRESHOLD_": "", "MALLOC_MMAP_THRESHOLD_": "", "GLIBC_TUNABLES": "glibc.malloc."}
"""Variables of the environment by which users decide for themselves, and what then is in them."""


def keep_freed_memory() -> bool:
    """Keep memory that is freed for what is allocated next; return whether it will be.

    False under another C library than GNU's, and where the environment holds settings of its own.
    """
    if any(name in os.environ and text in os.environ[name] for name, text in USERS_OWN.items()):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    settings = {MMAP_THRESHOLD: LARGEST_KEPT, TRIM_THRESHOLD: MOST_KEPT, TOP_PAD: AHEAD}
    return all(mallopt(name, size) == 1 for name, size in settings.items())
