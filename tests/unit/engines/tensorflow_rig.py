"""Numbers through the tensorflow engine alone, and which positions its batches stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine
from pecan_ray.plan.splits import OUTPUT_BITS
from pecan_ray.sampling.spans import Spans
from tests.unit.engines.engine_leases import all_said

ROWS = 100


def numbers(rows: int = ROWS, **columns: Any) -> pecan.PecanPipeline:
    source = pecan.sources.Arrays(i=np.arange(rows), split_rows=7, **columns)
    return pecan.PecanPipeline(source, name="numbers", engine="tensorflow")


def run(pipe: pecan.PecanPipeline, leases: Any = None, **options: Any) -> list[Produced]:
    sources = list(pipe.plan.sources())
    engine = TensorFlowEngine(pipe.plan, sources, EngineOptions(**options), HeapSlots())
    try:
        return all_said(pipe.plan, leases or AllLeases(sources, 0, 1), engine.batches)
    finally:
        engine.close()


def values(batches: list[Produced], column: str = "i") -> list[Any]:
    return [value for batch in batches if batch.rows for value in batch.columns[column]]


def covered(batches: list[Produced]) -> dict[tuple[int, int, int], Spans]:
    """Return the positions that all batches stand for; fails if one is in two of them."""
    found: dict[tuple[int, int, int], Spans] = {}
    for batch in batches:
        for key, intervals in batch.spans.items():
            seen = found.setdefault(key, Spans())
            for start, stop in intervals:
                before = seen.size()
                seen.add(start, stop)
                assert seen.size() == before + stop - start, f"{key}: [{start}, {stop}) came twice"
    return found


def all_of(pipe: pecan.PecanPipeline) -> dict[tuple[int, int, int], Spans]:
    return {
        (branch, 0, split.index): Spans([(0, (split.elements or 0) << OUTPUT_BITS)])
        for branch, source in enumerate(pipe.plan.sources())
        for split in source.splits()
    }


def refuses_37(i: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_none_equal(i, tf.constant(37, i.dtype), message="not 37")]):
        return tf.identity(i)
