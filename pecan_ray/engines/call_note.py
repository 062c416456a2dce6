"""What a process is about to call, told to the one that has started it: whatever ends this one, it is known there."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from pecan_ray.errors import PecanError

SIZE = 512
"""Bytes of a note: when the work began, in nanoseconds of the system's monotonic clock, and what is called."""
# Hexadecimal digits of 64 bits, so that the text has one place whatever the time is.
TIME = 16
LATE = b"it has not answered in time"
LOOK_S = 1.0
"""Seconds between looks whether a process has begun to work: starting takes another while each time."""

_kept: list[mmap.mmap] = []


def new_note() -> IO[bytes]:
    """Return a note without a name, which another process may be given, and which ends with those that have it."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  # who asks for it closes it
    file.truncate(SIZE)
    return file


def keep_in(descriptor: int) -> None:
    """Note from now on what is called, and that the work begins."""
    note = mmap.mmap(descriptor, SIZE)
    note[:TIME] = f"{time.monotonic_ns():0{TIME}x}".encode()
    _kept[:] = [note]


def noting(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function, which is noted under a name while it runs where anybody reads that."""
    if not _kept:
        return function
    (note,) = _kept
    text = name.encode(errors="replace")[: SIZE - TIME].ljust(SIZE - TIME, b"\0")

    def noted(value: Any) -> Any:
        note[TIME:] = text
        try:
            made = function(value)
        except KeyboardInterrupt as error:  # of the function itself: nobody at a terminal interrupts this process
            where = getattr(value, "where", None)
            on = f" on {where()}" if callable(where) else ""
            raise PecanError(f"{name} raised KeyboardInterrupt{on}") from error
        except Exception:
            note[TIME] = 0
            raise
        note[TIME] = 0
        return made

    return noted


def read_note(note: IO[bytes]) -> tuple[float | None, str]:
    """Return since how many seconds a process has worked, None before that, and what it calls, or has ended in."""
    content = os.pread(note.fileno(), SIZE, 0)
    began = int(content[:TIME].strip(b"\0") or b"0", 16)
    name = content[TIME:].partition(b"\0")[0].decode(errors="replace")
    return (time.monotonic_ns() - began) / 1e9 if began else None, name


def answer(
    process: subprocess.Popen[bytes], given: bytes, start_s: float, seconds: float, note: IO[bytes]
) -> tuple[bytes, bytes]:
    """Return what a process answers, and its errors; no answer where it works for longer than `seconds`.

    It may hang, or be stopped, so that it cannot end itself.  `start_s`: what it may take to begin, beside that.
    """
    answered, late = threading.Event(), threading.Event()

    def watch() -> None:
        while not answered.wait(LOOK_S):
            worked, _ = read_note(note)
            if worked is not None and worked > seconds:
                late.set()
                # It may have answered, and ended, since the look.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                return

    threading.Thread(target=watch, name="pecan-look-late", daemon=True).start()
    try:
        # In one call: another one would not go on with writing what was given.
        written, errors = process.communicate(given, timeout=start_s + seconds)
    except subprocess.TimeoutExpired:
        return b"", LATE
    finally:
        answered.set()
    return (b"", LATE) if late.is_set() else (written, errors)


def how_it_ended(status: int | None, errors: bytes, called: str) -> str:
    """Say in a sentence how a process has ended without an answer, and in which operator."""
    how = f"with status {status}"
    if status is None or status < 0:
        how = "by " + signal.Signals(-(status or -signal.SIGKILL)).name
    words = errors.decode(errors="replace").strip().partition("\n")[0]
    where = f"in {called!r}" if called else "nobody knows where"
    return (
        f"the process that ran the operators on a sample ended {how}, {where}"
        f"{f' ({words})' if words else ''}: `iter_batches(debug=True)` runs them in this process, and "
        'Config(reorder="off") does without a sample'
    )
