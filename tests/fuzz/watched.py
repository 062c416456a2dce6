"""A process that reads damaged files and is watched: what does not end is ended, and told."""

from __future__ import annotations

import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from tests.fuzz.judge import Case, Failure

CPU_S = 10.0
"""A case that takes more CPU time than this hangs: the slowest well-formed file takes milliseconds."""
WALL_S = 120.0
"""A case that takes longer than this waits for something that does not come."""
MEMORY_BYTES = 8 << 30
"""More address space than this is refused: it becomes a bare MemoryError."""


def serve(pipe: Connection, folder: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    while (case := pipe.recv()) is not None:
        pipe.send(case.run(Path(folder)))


class Watched:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._process: multiprocessing.process.BaseProcess | None = None

    def run(self, case: Case) -> Failure | None:
        if self._process is None:
            self._pipe, theirs = multiprocessing.get_context("spawn").Pipe()
            self._process = multiprocessing.get_context("spawn").Process(
                target=serve, args=(theirs, self._folder), daemon=True
            )
            self._process.start()
            theirs.close()
            self._pipe.send(Case("tfrecord", 0))  # imports what the others need, unwatched
            self._pipe.recv()
        self._pipe.send(case)
        failure = self._awaited()
        if failure is not None and failure.kind in ("hang", "died"):
            self.close()
        return failure

    def _awaited(self) -> Failure | None:
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        began, before = time.monotonic(), sum(process.cpu_times()[:2])
        try:
            while not self._pipe.poll(1.0):
                used = sum(process.cpu_times()[:2]) - before
                if used > CPU_S or time.monotonic() - began > WALL_S:
                    return Failure("hang", f"{used:.0f} s of CPU time in {time.monotonic() - began:.0f} s")
            failure: Failure | None = self._pipe.recv()
        except (EOFError, psutil.NoSuchProcess):
            return Failure("died", "the process ended")
        return failure

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
