"""One batch again and again: how fast a training loop would be if input cost nothing."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.job.trainer_events import EndOfEpoch
from pecan_ray.options import IterOptions
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import num_batches
from pecan_ray.sampling.subsets import members

logger = logging.getLogger("pecan_ray")


def one_batch(
    batches: Iterator[Any], plan: Plan, options: IterOptions, is_left: Callable[[int], bool]
) -> Iterator[Any]:
    """Return what gives the first of some batches as often as a run has batches, or as `headspace` says.

    `is_left`: tells of an epoch whether nothing more of it is wanted.
    """
    of_all = num_batches(plan, members)
    if options.headspace is True and of_all is None:
        raise PlanError(
            "headspace=True: how many batches an epoch has is not known without reading the data: say how many are "
            "wanted, headspace=1000."
        )
    count = math.ceil((of_all or 0) / options.world_size) if options.headspace is True else options.headspace
    # Loudly: a loss that falls on one batch again and again looks like a training.
    logger.warning("headspace: one batch is given %d times an epoch, and nothing else is read: this is no run", count)
    epochs = itertools.count() if options.epochs is None else range(options.epochs)
    first = options.first_epoch
    return _repeated(batches, count, (first + epoch for epoch in epochs), is_left)


def _repeated(
    batches: Iterator[Any], count: int, epochs: Iterator[int], is_left: Callable[[int], bool]
) -> Iterator[Any]:
    first = next((batch for batch in batches if not isinstance(batch, EndOfEpoch)), None)
    if first is None:
        raise PlanError("headspace: the pipeline yields nothing.")
    for epoch in epochs:
        for _ in range(count):
            if is_left(epoch):
                break
            yield first
        # Not behind an epoch that was left, of which nobody waits for the end.
        else:
            yield EndOfEpoch()
