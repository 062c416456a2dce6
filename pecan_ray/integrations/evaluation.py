"""What trainers of other libraries validate on, and how many batches they are told of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pecan_ray.integrations.framework_methods import one_ranks_length


class EvaluationBatches:
    """Batches of a pipeline from the first to the last one, each time that it is iterated over."""

    def __init__(self, begin: Callable[[], Any], length: int | None) -> None:
        self._begin, self._length = begin, length

    def __iter__(self) -> Iterator[Any]:
        with self._begin() as batches:
            for number, batch in enumerate(batches, 1):
                if number == self._length:
                    # Who knows the length does not ask for more.  A job that has come to its end leaves its processes
                    # to the next evaluation (decision 172).
                    next(batches, None)
                    batches.close()
                yield batch

    def __len__(self) -> int:
        return known(self._length)


def length_of(pipe: Any, options: dict[str, Any]) -> int | None:
    """Return the batches of an epoch; None where they are not known before it ends."""
    if options.get("on_error", "raise") != "raise":
        return None  # with what is left out whole batches may be missing
    try:
        return one_ranks_length(pipe, dict(options))
    except TypeError:
        return None


def known(length: int | None) -> int:
    """Return a length; raises TypeError for None, as libraries expect it of what has none."""
    if length is None:
        raise TypeError("how many batches there are is not known before an epoch ends")
    return length
