"""Children that `os.fork()` makes in a function of the user's, and that come back from it.

Such a child has one thread, which would go on as a second worker on shared memory and pipes.  It is ended where it
comes back, and tells this process in memory that both have, before anything was forked.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import sys
import threading
from typing import Any, NoReturn

from pecan_ray.errors import OpError, describe_error

PLACES = 64
"""Children that can have told something that nobody has looked at."""
# Bytes of a child's message; a longer one is cut to its operator, place and error.
PLACE_BYTES = 16 << 10
LONGEST_WHERE = 1000
"""Characters of a place that is cut."""


class ForkError(BaseException):
    """A child has come back from a function that runs in a process of its own; no `Exception`: it ends the job."""


class _Number(threading.local):
    """Which child the calling thread is about to make."""

    value = 0


class ForkTracker:
    """What this process knows of the children that it forks, and of the one that it is."""

    def __init__(self) -> None:
        self.generation = 0
        """Changes in a child: who sees another number behind a call than before it is in a child of the caller."""
        self._memory: mmap.mmap | None = None
        """Shared with the children of this process: a byte for each place that is used, and behind them the places."""
        self._parents: mmap.mmap | None = None
        self._numbers = itertools.count()
        self._number = _Number()

    def before(self) -> None:
        """Have memory to share with the child that the calling thread makes."""
        if self._memory is None:
            # Anonymous and shared: a child's writes are seen here, and nothing has to be opened or removed.
            self._memory = mmap.mmap(-1, PLACES * (1 + PLACE_BYTES))
        # Per thread: several threads may fork at once, and each child has to find its own place.
        self._number.value = next(self._numbers) % PLACES

    def in_child(self) -> None:
        """Be another process."""
        self.generation += 1
        # The child's own children get memory of their own, or they would report to their grandparent.
        self._parents, self._memory = self._memory, None

    def end_child(self, op: str, where: str, error: BaseException | None = None, **fields: Any) -> NoReturn:
        """End this process, a child that has come back from a function, and tell its parent.

        A child that calls sys.exit(), as programs do, has meant to end; what it wrote last is its own affair.
        """
        # By `os._exit`: what the parent has registered for its own end is not the child's to run.
        if isinstance(error, SystemExit):
            os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
        if isinstance(error, KeyboardInterrupt):
            os._exit(130)
        raised = "" if error is None else f", by raising {describe_error(error)}"
        try:
            self._tell({"op": op, "where": where, "raised": raised, **fields})
        finally:
            os._exit(1)

    def _tell(self, messages: dict[str, Any]) -> None:
        if sys.__stderr__ is not None:  # else the number may be another file's
            with contextlib.suppress(OSError):
                os.write(2, f"{_text(messages)}\n".encode(errors="replace"))
        memory, number = self._parents, self._number.value
        if memory is None:
            return
        written = json.dumps(messages).encode()
        if len(written) > PLACE_BYTES:
            short = {
                "where": messages["where"][:LONGEST_WHERE],
                "raised": messages["raised"][:LONGEST_WHERE],
                "file": "",
            }
            written = json.dumps({**messages, **short}).encode()[:PLACE_BYTES]
        begin = PLACES + number * PLACE_BYTES
        memory[begin : begin + PLACE_BYTES] = written.ljust(PLACE_BYTES)
        # The mark comes last, because the parent reads a place as soon as it is marked.
        memory[number] = 1

    def raise_reported(self) -> None:
        """Raise OpError if a child has come back from a function; each is told of once."""
        memory = self._memory
        if memory is None or (number := memory.find(b"\1", 0, PLACES)) < 0:
            return
        memory[number] = 0
        begin = PLACES + number * PLACE_BYTES
        messages: dict[str, Any] = json.loads(memory[begin : begin + PLACE_BYTES])
        fields = {name: value for name, value in messages.items() if name not in ("where", "raised")}
        raise OpError(_text(messages), **fields, ends_job=True)


def _text(messages: dict[str, Any]) -> str:
    return (
        f"{messages['op']}: a child process that os.fork() made while {messages['where']} was worked on came back from "
        "the "
        f"function{messages['raised']}. It was ended there: it would have gone on as a second worker. End children "
        "inside "
        "the function, by os._exit(), or start processes by subprocess or multiprocessing."
    )


forks = ForkTracker()
# For the whole process, because functions call os.fork() themselves and tell nobody before.
os.register_at_fork(before=forks.before, after_in_child=forks.in_child)
