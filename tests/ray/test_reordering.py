"""AutoOrder in a real job: workers run the order that was adopted; trainers that share a job run one plan."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.accepted import Ordering
from pecan_ray.autoorder.job_order import STILL_LOOKING
from pecan_ray.autoorder.kept_order import KeptOrder, keep_order, load_kept
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import sample_op_sequence
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.run_of_job import JobRun
from tests.ray.pipelines import ONE, TWO
from tests.ray.waiting import ENDS_S, until
from tests.ray.workers import ONE_BY_ONE

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ELEMENTS = 64


@pytest.fixture(autouse=True)
def looks_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job begins with what its look for an order has found, however loaded the machine is."""
    monkeypatch.setattr("pecan_ray.autoorder.job_order.WAITED_S", ENDS_S)


def blur(image: Any) -> Any:
    return cv2.GaussianBlur(image, (15, 15), 3.0)


def half(image: Any) -> Any:
    return cv2.resize(image, (image.shape[1] // 2, image.shape[0] // 2))


def shape_before(element: dict[str, Any]) -> dict[str, Any]:
    """Note the side of the image that the blurring is given."""
    return {**element, "image": blur(element["image"]), "side": np.int64(len(element["image"]))}


def images(reorder: Any = "pecan") -> pecan.PecanPipeline:
    """Make a pipeline that shows its order by a column of the results: in mode "safe" that would speak against it."""
    noise = np.random.default_rng(0).integers(0, 255, (ELEMENTS, 128, 128, 3), np.uint8)
    config = pecan.Config(sample_elements=32, reorder=reorder)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=noise), name="images", config=config)
    return pipe.map(shape_before).map(half, on="image").batch(8)


def reorderings(batches: pecan.Batches) -> list[str]:
    return [event.text for event in batches.report().events if event.kind == "reorder"]


def test_one_rank_looks_for_all_and_workers_run_the_order_that_was_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[OrderRequest] = []

    def look(request: OrderRequest, job: Any) -> Ordering:
        looks.append(request)
        return order_plan(request, job=job)

    def sides(batches: pecan.Batches) -> list[int]:
        return [side for batch in batches for side in batch["side"].tolist()]

    monkeypatch.setattr("pecan_ray.autoorder.job_order.order_plan", look)
    options: dict[str, Any] = {"world_size": 2, "job": "ranks", "workers": TWO}
    later, first = (images().iter_batches(rank=rank, **options) for rank in (1, 0))
    with ThreadPoolExecutor(2) as threads, later, first:
        assert [*chain.from_iterable(threads.map(sides, (later, first)))] == [64] * ELEMENTS
        told = reorderings(first)
    assert len(looks) == 1 and "AutoOrder moved half before shape_before" in told[0]


SAMPLED = 32


def sides_of_images() -> list[int]:
    """Return the sides of images in 16 splits: those that a first look samples are larger than all others."""
    items = pecan.sources.Items([{"n": number} for number in range(1024)])
    (stretch,) = op_sequences(pecan.PecanPipeline(items).map(dict).plan)
    sampled = sample_op_sequence(stretch, "python", 0, SampleLimits(SAMPLED)).held
    large = {item.value["n"] for item in sampled}
    return [128 if number in large else 32 for number in range(1024)]


def fit(image: Any) -> Any:
    return cv2.resize(image, (64, 64))


def of_many_sizes(**options: Any) -> pecan.PecanPipeline:
    """Make a pipeline whose elements that the sample sees are larger than all others."""
    rng = np.random.default_rng(0)
    items = [{"image": rng.integers(0, 255, (side, side, 3), np.uint8)} for side in sides_of_images()]
    config = pecan.Config(sample_elements=SAMPLED, **options)
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), name="sizes", config=config)
    return pipe.map(shape_before).map(fit, on="image").batch(32)


def test_the_order_is_looked_at_again_after_the_first_epoch() -> None:
    sides: dict[int, set[int]] = {}
    with of_many_sizes(reorder="pecan").iter_batches(epochs=None, workers=TWO, **ONE_BY_ONE) as batches:
        for batch in batches:
            assert batches.provenance is not None
            epoch = batches.provenance.epoch
            if epoch > 0 and 0 in sides:
                until(
                    lambda: len(reorderings(batches)) == 2, "nobody looks at the order again"
                )  # no other work meanwhile
            sides.setdefault(epoch, set()).update(batch["side"].tolist())
            if epoch > 1 and 64 not in sides[epoch - 1]:
                break
        events = reorderings(batches)
    assert sides[0] == {64}, "the sample saw large images, which fit makes smaller"
    assert sides[epoch - 1] == {128, 32}, "most images grow by it"
    assert len(events) == 2
    assert "AutoOrder now runs shape_before -> fit, as the first epoch shows" in events[1]
    assert "'fit' inflates (factor 2" in events[1]


def test_what_a_look_beside_its_job_finds_is_run_from_a_later_epoch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pecan_ray.autoorder.job_order.WAITED_S", 0.0)
    sides: dict[int, set[int]] = {}
    with of_many_sizes(reorder="pecan").iter_batches(epochs=None, workers=ONE, **ONE_BY_ONE) as batches:
        for batch in batches:
            assert batches.provenance is not None
            epoch = batches.provenance.epoch
            sides.setdefault(epoch, set()).update(batch["side"].tolist())
            if sides.get(epoch - 1) == {64}:
                break
        begun, found = reorderings(batches)[:2]
        session = cast(JobRun, batches._run).session
        assert json.loads(session._ask(session.controller.view).order_text)["changed"], (
            "what a page about the job shows"
        )
    assert all(seen == {64} or not seen & {64} for seen in sides.values()), "an epoch has one order"
    assert begun == STILL_LOOKING
    assert found.startswith("AutoOrder moved fit before shape_before")
    first = min(epoch for epoch, seen in sides.items() if seen == {64})
    assert f"it is run from epoch {first} on" in found


# --- elements that only the user's order takes ----------------------------------------------------------------

GRAY = 700
IMAGES = 1024


def to_rgb(image: Any) -> Any:
    """Do what costs much, and make three channels of a gray image."""
    image = cv2.GaussianBlur(image, (15, 15), 3.0)
    return np.stack([image] * 3, axis=-1) if image.ndim == 2 else image


def half_of_colors(image: Any) -> Any:
    """Halve an image of three channels, and no other."""
    height, width, _ = image.shape
    return cv2.resize(image, (width // 2, height // 2))


def test_a_job_goes_back_to_the_users_order_and_loses_nothing(tmp_path: Path) -> None:
    """An earlier job has kept an order that fails on one image that lies behind the sample."""
    rng = np.random.default_rng(0)
    shapes = [(32, 32) if number == GRAY else (32, 32, 3) for number in range(IMAGES)]
    items = [{"image": rng.integers(0, 255, shape, np.uint8), "n": n} for n, shape in enumerate(shapes)]
    config = pecan.Config(order_folder=tmp_path)
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), name="gray", config=config)
    pipe = pipe.map(to_rgb, on="image").map(half_of_colors, on="image").batch(16)
    keep_order(tmp_path / f"{pipe._order._key}.json", KeptOrder((("half_of_colors", "to_rgb"),)), instead=True)
    numbers: dict[int, list[int]] = {}
    with pipe.iter_batches(epochs=2, workers=TWO, on_error="skip") as batches:
        for batch in batches:
            assert batches.provenance is not None and batch["image"].shape[1:] == (16, 16, 3)
            numbers.setdefault(batches.provenance.epoch, []).extend(batch["n"].tolist())
        report, told = batches.report(), reorderings(batches)
    assert all(sorted(numbers[epoch]) == list(range(IMAGES)) for epoch in (0, 1))
    assert len(told) == 2 and "AutoOrder runs half_of_colors -> to_rgb -> batch" in told[0]
    assert "fails in AutoOrder's order half_of_colors -> to_rgb" in told[1] and "yours, to_rgb -> half_of" in told[1]
    assert report.bad_elements == 0 and report.workers_lost == 0
    kept = load_kept(tmp_path / f"{pipe._order._key}.json")
    assert kept is not None and kept.orders == (("to_rgb", "half_of_colors"),)
