"""Passes in a graph: a dataset that is iterated again reads the next pass, and one of which nothing comes ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from pecan_ray.engines.tensorflow.feed import GraphFeed
from pecan_ray.errors import PlanError
from pecan_ray.plan.empty_pass import MOST_EMPTY_PASSES, EmptyPasses
from pecan_ray.plan.operators import BatchingOp, Join, Plan, Repeat, Shuffle
from pecan_ray.plan.shape import last_batching, plan_shape


def repeat_for_each(numbers: Callable[[], Iterator[int]], data: Any) -> Any:
    """Return a tf.data.Dataset that is iterated anew for each of some numbers, which are asked for one by one."""
    steps = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.int64))
    # `flat_map` makes the iterator of `data` anew for each number; `repeat` cannot be told to stop between
    # passes.
    return steps.flat_map(tf.autograph.experimental.do_not_convert(lambda _: data))


class EndlessRepeat:
    """A repeat without end, in a plan that runs as a whole, which must not go on for ever and yield nothing.

    tf.data ends it at the first pass of which nothing comes.  It is begun again then, as the python engine goes on,
    unless too many passes were in vain.
    """

    def __init__(self, empty: EmptyPasses, failed: Callable[[PlanError], None]) -> None:
        """`failed` is told why it ends."""
        self._empty, self._failed = empty, failed
        self._passes = 0

    def dataset(self, data: Any) -> Any:
        """Return the passes over a dataset."""
        return repeat_for_each(self._attempts, repeat_for_each(self._count, data).repeat())

    def _count(self) -> Iterator[int]:
        self._passes += 1
        yield self._passes

    def _attempts(self) -> Iterator[int]:
        """Go on as long as there is hope: in each try, all passes but the last one have yielded something."""
        allowed, in_vain = self._empty.at_first, 0
        while True:
            before = self._passes
            yield before
            # The last pass of each try is the empty one at which tf.data has ended it.
            if self._passes - before > 1:
                allowed, in_vain = MOST_EMPTY_PASSES, 0
            in_vain += 1
            if in_vain >= allowed:
                self._failed(self._empty.error(in_vain))
                return


def drained(plan: Plan) -> bool:
    """Tell whether the job deals out splits again of which something must not be mixed with the pass before."""
    repeats = [place for place, op in enumerate(plan.ops) if isinstance(op, Repeat)]
    if not repeats or plan_shape(plan, order=False).serial:
        return False
    last = last_batching(plan)
    before = plan.ops[: repeats[-1]]
    keeps_back = any(isinstance(op, (BatchingOp, Shuffle)) and op is not last for op in before)
    return keeps_back or isinstance(plan.head, Join)


class AssignedPasses:
    """The passes that the job deals out to some feeds, one after the other: each iteration of their datasets reads one.

    What comes late of an earlier pass, since a worker was lost that had it, is read in the pass at hand.
    """

    def __init__(self, feeds: Sequence[GraphFeed]) -> None:
        self._feeds = feeds

    def dataset(self, data: Any, passes: int | None) -> Any:
        """Return what comes behind a repeat, of which one pass over the data before it is `data`.

        `passes`: so many over the sources end with the last pass of this repeat; None: it has no end.
        """
        return repeat_for_each(lambda: self._numbers(passes), data)

    def _numbers(self, passes: int | None) -> Iterator[int]:
        """Yield the number of each pass over the sources that there is, until those of a repeat behind begin anew."""
        group: int | None = None
        while (number := self._next()) is not None:
            mine = number // passes if passes else 0
            if group is None:
                group = mine
            # This pass belongs to the next iteration of a repeat behind, which begins the dataset anew.
            if mine > group:
                return
            for feed in self._feeds:
                feed.current_pass = number
            yield number

    def _next(self) -> int | None:
        """Return the earliest pass of which a feed has something; None where there is nothing more."""
        return min((number for feed in self._feeds if (number := feed.next_pass()) is not None), default=None)
