"""Programs that were started without standard input, output or error (``2>&-``)."""

from __future__ import annotations

import os
import sys

# Descriptors of input, output and errors.
STREAMS = (0, 1, 2)


def ensure_standard_streams() -> None:
    """Open the null device in place of standard streams that are closed.

    Else the next file would have their number: what native libraries write to standard error would go into the file
    of bad elements, or into a pipe to a worker.  Python has no `sys.stdout` or `sys.stderr` then, which Ray needs.
    """
    for number in STREAMS:
        try:
            os.fstat(number)
        except OSError:
            # The lowest number is given: those below are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - it stays open
