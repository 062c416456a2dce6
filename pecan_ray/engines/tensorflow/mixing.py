"""By which weights tf.data draws from several pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pecan_ray.plan.operators import Join


def shares(join: Join, epoch: int, present: Sequence[bool]) -> Any:
    """Return what `sample_from_datasets` takes: shares of those that have elements, or a data set of one for each draw.

    tf.data counts draws from what has run out, too: with ``stop="all"`` weights change earlier from there on.
    """
    if join.schedule is None or not join.counts_draws:
        return _normal(join.weights_at(epoch), present)
    steps = [
        tf.data.Dataset.from_tensors(tf.constant(_normal(weights, present), tf.float64)).repeat(count)
        for count, weights in join.schedule.lengths()
    ]
    drawn = steps[0]
    for step in steps[1:]:
        drawn = drawn.concatenate(step)
    return drawn


def _normal(weights: Sequence[float], present: Sequence[bool]) -> list[float]:
    found = [weight for weight, there in zip(weights, present, strict=True) if there]
    # "or 1": without weights nothing is drawn, and nothing is divided by zero.
    return [weight / (sum(found) or 1) for weight in found]
