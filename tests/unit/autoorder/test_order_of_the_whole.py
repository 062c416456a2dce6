"""The gain that is told, and judged, is that of the whole pipeline: on the tensorflow engine too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray.autoorder.adopted import StretchOrder
from pecan_ray.autoorder.stopwatch import LookClock
from pecan_ray.autoorder.whole import BUILT_S, NOT_RUN, whole_seconds
from tests.unit.autoorder.sampled_orders import order

COUNT, SIDE = 96, 96
TRIES = 4


def work(image: Any) -> Any:
    for _ in range(30):
        image = tf.sin(image)
    return image


def small(image: Any) -> Any:
    return tf.image.resize(image, [SIDE // 4, SIDE // 4], method="nearest")


def heavy(batch: Any) -> Any:
    """Take hundreds of times as long as the operators on elements do."""
    image = batch["image"]
    noise = tf.random.stateless_uniform([600, 600], [1, 2])
    for _ in range(40):
        noise = tf.matmul(noise, noise) / 600.0
    return {"image": image + noise[0, 0] * 1e-30}


def graph(*, behind: bool) -> pecan.PecanPipeline:
    images = np.random.default_rng(0).random((COUNT, SIDE, SIDE, 3), np.float32)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=images), engine="tensorflow")
    pipe = pipe.map(work, on="image").map(small, on="image").batch(4)
    return pipe.map(heavy) if behind else pipe


def found_as(pipe: pecan.PecanPipeline, *, changed: bool) -> StretchOrder:
    for _ in range(TRIES):
        found = order(pipe)
        if found.adopted.changed == changed and (changed or found.share < 1.0):  # an order was weighed, and left alone
            break
    return found


def test_what_lies_behind_a_stretch_of_a_graph_counts() -> None:
    alone = found_as(graph(behind=False), changed=True)
    assert alone.adopted.order == ("small", "work")
    assert alone.measured is not None and alone.whole_speedup is not None
    assert 1.05 <= alone.whole_speedup <= alone.measured.speedup * (1 + 1e-9)

    among = found_as(graph(behind=True), changed=False)
    assert not among.adopted.changed and among.share < 0.3 < alone.share
    said = " | ".join(one.reason for one in among.refused)
    assert "it would make the whole pipeline 1.0" in said and "which is not worth another order" in said


def test_the_whole_of_a_graph_takes_what_its_parts_take() -> None:
    brief, long = (
        whole_seconds(graph(behind=behind).plan, "tensorflow", 0, 60.0, LookClock()) for behind in (False, True)
    )
    assert brief is not None and long is not None and 0 < 3 * brief < long


def test_a_graph_for_which_there_is_no_time_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pecan_ray.autoorder.whole._graph_seconds", lambda *_: pytest.fail("it is built"))
    assert whole_seconds(graph(behind=False).plan, "tensorflow", 0, BUILT_S / 2, LookClock()) is None
    monkeypatch.undo()
    monkeypatch.setattr("pecan_ray.autoorder.order.whole_seconds", lambda *_: None)
    assert NOT_RUN in found_as(graph(behind=False), changed=True).notes, "explain() says of what a gain is"
