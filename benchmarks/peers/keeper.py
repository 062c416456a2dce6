"""A process that outlives the harness and ends the side that it has left: one that is stopped cannot end by itself.

It waits for its standard input to end.  If the harness has said before that the side has ended, that is all; else the
harness has gone, in whatever way, and the side ends with all that it has started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.peers import tree

ROOT = Path(__file__).resolve().parents[2]
ENDED = "ended"


class Keeper:
    """The harness's end of it."""

    def __init__(self, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.keeper", str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            text=True,
            start_new_session=True,  # Ctrl-C and the end of a terminal are for the harness
        )

    def let_go(self) -> None:
        """Say that the side has ended, and end the keeper."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(ENDED)


def end(pid: int) -> None:
    """End a process and all that it has started."""
    for each in tree.descendants(pid, tree.processes()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


if __name__ == "__main__":
    if sys.stdin.read() != ENDED:
        end(int(sys.argv[1]))
