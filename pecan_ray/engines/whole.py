"""Plans that one worker runs as a whole: their epoch is over when the trainer has their last batch, not before."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from pecan_ray.engines.contract import Produced


def ending_with_the_last_batch(stream: Iterable[Produced]) -> Generator[Produced, None, None]:
    """Let the last batch carry the positions that follow it without data, so that they count when it is received."""
    held: Produced | None = None
    for produced in stream:
        if held is not None and not produced.rows:
            for key, intervals in produced.spans.items():
                held.spans.setdefault(key, []).extend(intervals)
            held.bad += produced.bad
            continue
        if held is not None:
            yield held
        held = produced
    if held is not None:
        yield held
