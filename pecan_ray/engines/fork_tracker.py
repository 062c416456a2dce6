"""Children that `os.fork()` makes in a function of the user's, and that come back from it.

Such a child has one thread, which would go on as a second worker on shared memory and pipes.  It is ended where it
comes back, and tells this process through a pipe that both have since before the fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
from typing import Any, NoReturn

from pecan_ray.errors import OpError, describe_error

MOST_LETTERS = 160
"""Of a text in a report: a line of a few hundred letters, however they are written, goes into a pipe as a whole."""


class ForkError(BaseException):
    """A child has come back from a function that runs in a process of its own; no `Exception`: it ends the job."""


class ForkTracker:
    """What this process knows of the children that it forks, and of the one that it is."""

    def __init__(self) -> None:
        self.generation = 0
        """Changes in a child: who sees another number behind a call than before it is in a child of the caller."""
        self._lock = threading.Lock()
        """Guards the pipe from being made twice."""
        self._ends: tuple[int, int] | None = None
        """Where this process reads what its children tell, and where they write it; None: it has forked none."""
        self._parents: int | None = None
        """Where this process tells its parent."""
        self._unread = b""

    def before(self) -> None:
        """Have a pipe to share with the child that is about to be made."""
        with self._lock:
            if self._ends is None:
                self._ends = os.pipe()
                for end in self._ends:
                    # A child that ends waits for nobody, and neither does who looks whether one has.
                    os.set_blocking(end, False)

    def in_child(self) -> None:
        """Be another process, whose own children tell it and not its parent."""
        self.generation += 1
        self._lock = threading.Lock()
        """Another thread may have held the one before it."""
        self._parents, self._ends, self._unread = self._ends and self._ends[1], None, b""

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

    def _tell(self, told: dict[str, Any]) -> None:
        if sys.__stderr__ is not None:  # else the number may be another file's
            with contextlib.suppress(OSError):
                os.write(2, f"{_text(told)}\n".encode(errors="replace"))
        if self._parents is None:
            return
        written = _line(told)
        if len(written) > select.PIPE_BUF:
            written = _line({name: one[:MOST_LETTERS] if isinstance(one, str) else one for name, one in told.items()})
        with contextlib.suppress(OSError):  # the pipe is full of what nobody has read
            os.write(self._parents, written)

    def raise_reported(self) -> None:
        """Raise OpError if a child has come back from a function; each is told of once."""
        if self._ends is None:
            return
        # The usual case: no child has written.
        with contextlib.suppress(BlockingIOError):
            self._unread += os.read(self._ends[0], select.PIPE_BUF)
        line, end, rest = self._unread.partition(b"\n")
        if end:
            self._unread = rest
            told: dict[str, Any] = json.loads(line)
            fields = {name: value for name, value in told.items() if name not in ("where", "raised")}
            raise OpError(_text(told), **fields, ends_job=True)


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told).encode() + b"\n"


def _text(told: dict[str, Any]) -> str:
    return (
        f"{told['op']}: a child process that os.fork() made while {told['where']} was worked on came back from the "
        f"function{told['raised']}. It was ended there: it would have gone on as a second worker. End children inside "
        "the function, by os._exit(), or start processes by subprocess or multiprocessing."
    )


forks = ForkTracker()
# For the whole process, because functions call os.fork() themselves and tell nobody before.
os.register_at_fork(before=forks.before, after_in_child=forks.in_child)
