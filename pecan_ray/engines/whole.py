"""Plans that one worker runs as a whole: their epoch is over when the trainer has their last batch, not before."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from pecan_ray.engines.contract import Produced
from pecan_ray.plan.splits import LeaseKey
from pecan_ray.sampling.spans import Spans


def ending_with_the_last_batch(stream: Iterable[Produced]) -> Generator[Produced, None, None]:
    """Let the last batch carry all positions without data, so that they count when it is received.

    Bad elements are told at once: their budget may be spent before there is a batch.
    """
    held: Produced | None = None
    empty: Produced | None = None
    carried: dict[LeaseKey, Spans] = {}
    try:
        for produced in stream:
            # A batch is held until the next one comes, because only then is it known not to be the last.
            if produced.rows:
                if held is not None:
                    yield held
                held = produced
                continue
            empty = Produced({}, {}, 0, produced.epoch)
            for key, intervals in produced.spans.items():
                _add(carried.setdefault(key, Spans()), intervals)
            if produced.bad:
                yield Produced({}, {}, 0, produced.epoch, bad=produced.bad)
    except Exception:
        # What stands before an error is made, and comes before it.
        if held is not None:
            yield held
        raise
    last = held or empty
    if last is not None:
        for key, spans in carried.items():
            _add(spans, last.spans.get(key, ()))
        last.spans = {**last.spans, **{key: list(spans) for key, spans in carried.items()}}
        yield last


def _add(spans: Spans, intervals: Iterable[tuple[int, int]]) -> None:
    for start, stop in intervals:
        spans.add(start, stop)
