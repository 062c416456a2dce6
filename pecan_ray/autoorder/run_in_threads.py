"""Elements through operators in several threads, for what needs no time to be measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from pecan_ray.autoorder.op_runner import CountedRun, Passed, Token

PendingPassed: TypeAlias = Callable[[], "Passed | None"]
"""Waits for an element's result and returns or raises it; None: the time was over before it was begun."""


def in_threads(
    passage: CountedRun, tokens: Sequence[Token], threads: int, in_time: Callable[[], bool]
) -> Generator[tuple[Token, PendingPassed], None, None]:
    """Yield each element, in order, and its result; not many more are under way than there are threads."""

    def run(token: Token) -> Passed | None:
        return passage(token) if in_time() else None

    under_way: deque[tuple[Token, Future[Passed | None]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="pecan-sample") as pool:
        try:
            for token in tokens:
                under_way.append((token, pool.submit(run, token)))
                if len(under_way) > 2 * threads:
                    first, future = under_way.popleft()
                    yield first, future.result
            for token, future in under_way:
                yield token, future.result
        finally:
            for _, future in under_way:
                future.cancel()
