"""What a thread can find out about its own time: on a CPU, in line for one, and waiting for Python's lock."""

from __future__ import annotations

import threading
import time

LOCK_WAIT_S = 0.001
"""A thread that wakes up later than this, though a CPU was free, has waited for Python's lock.

A thread that computes in Python gives the lock away after 5 ms (``sys.getswitchinterval()``); timers of Linux are late
by 0.05 ms, and by 0.2 ms on a busy machine.
"""


def cpu_times(thread: str = "/proc/thread-self") -> tuple[float, float]:
    """Return the seconds that the calling thread, or another one of this process, was on a CPU, and in line for one.

    The second is 0 where the system does not tell (``schedstat`` of Linux's proc file system does), or it has ended.
    """
    try:
        # Opened each time: the file is that of the thread that opens it. In nanoseconds.
        with open(f"{thread}/schedstat", "rb", buffering=0) as file:
            running, waiting = file.read().split()[:2]
    except (OSError, ValueError):
        return time.thread_time(), 0.0
    return int(running) / 1e9, int(waiting) / 1e9


def wait_and_probe_lock(event: threading.Event, timeout_s: float) -> bool:
    """Wait until an event is set, or the timeout is over; return whether Python's lock was held by other threads then.

    A thread needs the lock to go on behind its wait.  How late it is shows how long it waited for that; the time in
    line for a CPU does not count, so that a machine with too few CPUs is not taken for a lock (where ``schedstat``
    tells that time).
    """
    started, queued_before = time.perf_counter(), cpu_times()[1]
    event.wait(timeout_s)
    # If the event was set, this is below zero: nobody can tell then how long the thread waited for the lock.
    late_s = time.perf_counter() - started - timeout_s
    return late_s - (cpu_times()[1] - queued_before) > LOCK_WAIT_S
