"""Orders that are looked at again: kept ones in later jobs, and after the first epoch."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.accepted import ReorderResult
from pecan_ray.autoorder.call_in_subprocess import JobEnd
from pecan_ray.autoorder.order import LEAST_COUNTED, order_plan, order_rejection, reorder_after_epoch
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.engines.counting import OpCount

COUNT = 40


def dim(image: Any) -> Any:
    return (image // 2).astype(np.uint8)


def threshold(image: Any) -> Any:
    """Every value over 100 becomes white: before or behind `dim` is not the same, where there are any."""
    return np.where(image > 100, np.uint8(255), image)


def pipeline(folder: Path, largest: int) -> pecan.PecanPipeline:
    images = np.random.default_rng(0).integers(0, largest, (COUNT, 32, 32, 3), np.uint8)
    config = pecan.Config(order_folder=folder, sample_seconds=30.0)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=images), name="kept", config=config)
    return pipe.map(dim, on="image").map(threshold, on="image").batch(4)


@pytest.fixture
def keeping_another_order(tmp_path: Path) -> tuple[pecan.PecanPipeline, Path]:
    """A pipeline whose kept order gives other results by now, and the file that keeps it."""
    pipe = pipeline(tmp_path, 250)
    file = tmp_path / f"{pipe._order._key}.json"
    file.write_text(json.dumps({"format": 1, "orders": [["threshold", "dim"]], "mode": "safe"}))
    return pipe, file


def test_later_jobs_go_back_to_the_users_order_if_results_are_others_by_now(
    tmp_path: Path, keeping_another_order: tuple[pecan.PecanPipeline, Path]
) -> None:
    equal = OrderRequest(pipeline(tmp_path, 90).plan, elements=16)
    assert not order_rejection(equal, [("threshold", "dim")]), "no value is over 90"
    pipe, file = keeping_another_order
    kept = pipe._order._known()
    assert kept is not None and kept.changed
    found = pipe._order._compare_order(kept, JobEnd(), False)
    assert found is not None and found.dropped and found.plan is None
    assert "results of the order that was kept are others" in str(pipe.explain())
    written = json.loads(file.read_text())
    assert written["orders"] == [["dim", "threshold"]] and "results of the order that was kept" in written["why"]


def test_a_debug_job_tells_it_and_goes_back_to_the_users_order(
    keeping_another_order: tuple[pecan.PecanPipeline, Path],
) -> None:
    pipe, _ = keeping_another_order
    with pipe.iter_batches(debug=True, epochs=None) as batches:
        first = next(batches)["image"]
        for thread in [one for one in threading.enumerate() if one.name == "pecan-reorder"]:
            thread.join()
        later = [next(batches)["image"] for _ in range(2 * COUNT // 4)]
        told = [event.text for event in batches.report().events if event.kind == "reorder"]
    assert first.max() == 127 and {int(image.max()) for image in later[COUNT // 4 :]} == {255}
    assert "results of the order that was kept are others" in told[-1] and "goes back to your order" in told[-1]


LARGE, SMALL, TARGET = 48, 16, 32


def test_an_operator_moves_where_the_whole_pass_says_otherwise_than_the_sample() -> None:
    def fit(image: Any) -> Any:
        return np.resize(image, (TARGET, TARGET))

    items = [{"image": np.full((LARGE, LARGE), n, np.float32)} for n in range(24)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items)).map(np.sin, on="image").map(fit, on="image")
    request = OrderRequest(pipe.plan, "python", "pecan", elements=24, seconds=60.0)
    ordering = order_plan(request)
    assert ordering.sequences[0].accepted.order == ("fit", "sin")

    def after(elements: int, side: int) -> ReorderResult | None:
        """What becomes of it after an epoch of so many images with sides of so many pixels."""
        counts = {"fit": OpCount(elements, elements, elements * side**2 * 4, elements * TARGET**2 * 4)}
        return reorder_after_epoch(ordering, counts, request)

    assert after(1000, LARGE) is after(LEAST_COUNTED - 1, SMALL) is reorder_after_epoch(ordering, {}, request) is None
    inflating = after(1000, SMALL)
    assert inflating is not None and inflating.order == (("sin", "fit"),)
    assert "AutoOrder now runs sin -> fit, as the first epoch shows: 'fit' inflates" in inflating.reason
