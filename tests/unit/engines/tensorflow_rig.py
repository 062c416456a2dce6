"""Numbers through the tensorflow engine alone, and which positions its batches stand for."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

import pecan_ray as pecan
from pecan_ray.plan.splits import OUTPUT_BITS
from pecan_ray.sampling.spans import Spans
from tests.unit.engines import engine_leases

ROWS = 100
run = functools.partial(engine_leases.run_engine, engine="tensorflow")


def numbers(rows: int = ROWS, **columns: Any) -> pecan.PecanPipeline:
    return engine_leases.numbers(rows, 7, engine="tensorflow", **columns)


def all_of(pipe: pecan.PecanPipeline) -> dict[tuple[int, int, int], Spans]:
    return {
        (branch, 0, split.index): Spans([(0, (split.elements or 0) << OUTPUT_BITS)])
        for branch, source in enumerate(pipe.plan.sources())
        for split in source.splits()
    }


def refuses(number: int) -> Any:
    """A function that fails in the graph for one number."""

    def check(i: Any) -> Any:
        said = f"not {number}"
        with tf.control_dependencies([tf.debugging.assert_none_equal(i, tf.constant(number, i.dtype), message=said)]):
            return tf.identity(i)

    return check
