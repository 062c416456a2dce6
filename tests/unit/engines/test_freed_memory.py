"""Freed memory stays with a process: counted in page faults, in processes of their own, for it cannot be undone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from pecan_ray.engines.freed_memory import keep_freed_memory

gnu_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")

FAULTS = """
import resource, sys, threading
import numpy as np
from pecan_ray.engines.freed_memory import keep_freed_memory

kept = sys.argv[1] == "keep" and keep_freed_memory()
found = []

def element():
    parts = [np.ones(3500 << 10, np.uint8) for _ in range(20)]
    return sum(int(part[-1]) for part in parts)

def work():
    for _ in range(5):
        element()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(20):
        element()
    found.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(kept, found[0] / 20)
"""


def faults(choice: str, **environment: str) -> tuple[bool, float]:
    """Return whether memory was kept, and the pages that a thread had cleared for each of its elements."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, choice],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    kept, count = done.stdout.split()
    return kept == "True", float(count)


@gnu_only
def test_the_next_elements_arrays_take_the_memory_of_the_last() -> None:
    """Elements of 70 MB, more than an area of a thread holds, are 17,500 pages of 4 KB."""
    assert faults("give back")[1] > 1000
    kept, pages = faults("keep", GLIBC_TUNABLES="glibc.pthread.rseq=1")  # which says nothing about memory
    assert kept
    assert pages < 5


def test_what_a_user_has_set_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has tuned the C library's memory himself knows better."""
    for variable in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        with monkeypatch.context() as environment:
            environment.setenv(variable, "glibc.malloc.trim_threshold=131072" if variable[0] == "G" else "131072")
            assert keep_freed_memory() is False
