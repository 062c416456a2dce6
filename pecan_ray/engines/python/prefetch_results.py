"""Reading ahead: iterators that run in threads of their own, a bounded number of results before they are taken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def prefetch_results(streams: Sequence[Iterator[T]], most: int) -> Generator[T, None, None]:
    """Yield what iterators yield that run in threads, `most` results ahead; raise the error that ends one."""
    changed = threading.Condition()  # guards the four below
    ready: deque[T] = deque()
    failed: list[BaseException] = []
    running, stopped = len(streams), False

    def run(stream: Iterator[T]) -> None:
        nonlocal running
        error: BaseException | None = None
        try:
            for result in stream:
                with changed:
                    ready.append(result)
                    del result  # its memory is not held while the next one waits for some
                    changed.notify_all()
                    changed.wait_for(lambda: len(ready) < most or stopped)
                if stopped:
                    break
        except BaseException as caught:
            error = caught
        with changed:
            running -= 1
            if error is not None:
                failed.append(error)
            changed.notify_all()

    for stream in streams:
        # Daemons: a reader may hang in a file system, and the process has to be able to end.
        threading.Thread(target=run, args=(stream,), name="pecan-read", daemon=True).start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: ready or failed or not running)
                # An error comes behind all results that were ready before it.
                if not ready:
                    break
                result = ready.popleft()
                changed.notify_all()
            yield result
        if failed:
            raise failed[0]
    finally:
        with changed:
            stopped = True
            ready.clear()  # a thread may wait for the memory that these are in
            changed.notify_all()
