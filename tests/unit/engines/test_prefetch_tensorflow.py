"""`prefetch(n)` of the tensorflow engine: so many items are ready ahead of what takes them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import ListedLeases, whole_leases

ROWS = 10_000


class Counted:
    """A function in a graph that counts its calls."""

    def __init__(self) -> None:
        self.calls, self._lock = 0, threading.Lock()

    def __call__(self, i: Any) -> Any:
        given = tf.numpy_function(self._note, [i], i.dtype)
        given.set_shape(i.shape)
        return given

    def reaches(self, count: int) -> bool:
        return self.calls >= count

    def _note(self, i: Any) -> Any:
        with self._lock:
            self.calls += 1
        return i


@pytest.mark.parametrize(
    ("build", "taken_at_a_time", "ready"),
    [
        (lambda pipe: pipe.prefetch(300), 1, 300),
        (lambda pipe: pipe.batch(5).prefetch(60), 5, 300),
        (lambda pipe: pipe.prefetch(300).batch(5), 5, 300),
        (lambda pipe: pipe.shuffle(1).prefetch(300), 1, 300),
    ],
)
def test_so_many_items_are_ready(
    build: Callable[[pecan.PecanPipeline], pecan.PecanPipeline], taken_at_a_time: int, ready: int
) -> None:
    counted = Counted()
    source = pecan.sources.Arrays(i=np.arange(ROWS))
    pipe = build(pecan.PecanPipeline(source, engine="tensorflow").map(counted, on="i", name="count"))
    sources = tuple(pipe.plan.sources())
    engine = TensorFlowEngine(pipe.plan, sources, EngineOptions(order="strict"), HeapSlots())
    batches = engine.batches(ListedLeases(whole_leases(sources)))
    with contextlib.closing(engine), contextlib.closing(batches):
        for taken in range(1, 6):
            assert next(batches).rows == taken_at_a_time
            expected = taken * taken_at_a_time + ready
            until(partial(counted.reaches, expected), lambda: f"only {counted.calls} were made")
