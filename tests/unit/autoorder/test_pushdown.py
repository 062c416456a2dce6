from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow as tf
from skimage import data

import pecan_ray as pecan
from pecan_ray import errors, images
from pecan_ray.autoorder.push_down import push_down
from pecan_ray.options import EngineName

PHOTOGRAPHS = ("astronaut", "coffee", "chelsea", "rocket")


def jpeg(name: str) -> bytes:
    done, encoded = cv2.imencode(".jpg", cv2.cvtColor(getattr(data, name)(), cv2.COLOR_RGB2BGR), [1, 90])
    assert done
    return bytes(encoded.tobytes())


@pytest.fixture(scope="module")
def photographs() -> list[bytes]:
    return [jpeg(name) for name in PHOTOGRAPHS]


def pipeline(photographs: list[bytes], engine: EngineName, *ops: Any) -> pecan.PecanPipeline:
    pipe = pecan.PecanPipeline(pecan.sources.Items([{"image": p} for p in photographs]), engine=engine)
    for op in ops:
        pipe = pipe.map(op, on="image")
    return pipe


def run(pipe: pecan.PecanPipeline, plan: Any) -> list[Any]:
    return [np.asarray(element["image"]) for element in pipe._with(plan).iter_batches(debug=True)]


def alike(before: Any, after: Any) -> bool:
    """Tell whether two images show the same, details finer than a few pixels aside."""
    blurred = [cv2.GaussianBlur(image, (0, 0), 3).astype(int) for image in (before, after)]
    return bool(np.abs(blurred[0] - blurred[1]).mean() < 4)


CROP, RESIZE = images.RandomCrop(area=(0.5, 1.0)), images.Resize(96, 96)


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_a_decoder_takes_over_cropping_and_resizing(photographs: list[bytes], engine: EngineName) -> None:
    pipe = pipeline(photographs, engine, images.Decode(), CROP, RESIZE)
    plan, done = push_down(pipe.plan, engine)
    assert [(one.rule, one.ops, plan.ops[0].name) for one in done] == [
        ("decode+random_crop+resize", ("Decode", "RandomCrop", "Resize"), "RandomCrop")
    ]
    assert len(plan.ops) == 1
    for before, after in zip(run(pipe, pipe.plan), run(pipe, plan), strict=True):
        assert before.shape == after.shape == (96, 96, 3) and before.dtype == after.dtype == np.uint8
        assert alike(before, after)


@pytest.mark.parametrize("crop", [CROP, images.CenterCrop(64, 80)])
def test_decoding_a_part_changes_no_more_than_its_border(photographs: list[bytes], crop: Any) -> None:
    pipe = pipeline(photographs, "tensorflow", images.Decode(), crop)
    plan, [done] = push_down(pipe.plan, "tensorflow")
    assert plan.ops[0].name == type(crop).__name__ and done.rule.startswith("decode")
    for before, after in zip(run(pipe, pipe.plan), run(pipe, plan), strict=True):
        assert before.shape == after.shape
        assert np.array_equal(before[8:-8, 8:-8], after[8:-8, 8:-8])


def test_only_neighbours_on_one_column_are_merged(photographs: list[bytes]) -> None:
    apart = pipeline(photographs, "python", images.Decode(), lambda image: image, RESIZE)
    assert push_down(apart.plan, "python")[1] == ()
    fixed = pecan.PecanPipeline(pecan.sources.Items([{"image": photographs[0]}]))
    fixed = fixed.map(images.Decode(), on="image").map(RESIZE, on="image", keep_position=True)
    assert push_down(fixed.plan, "python")[1] == ()


def test_other_formats_than_jpeg_are_decoded_whole() -> None:
    photograph: Any = data.astronaut
    done, png = cv2.imencode(".png", photograph())
    assert done
    pipe = pipeline([bytes(png.tobytes())], "python", images.Decode(), CROP, RESIZE)
    plan, _ = push_down(pipe.plan, "python")
    [before], [after] = run(pipe, pipe.plan), run(pipe, plan)
    assert np.array_equal(before, after)


@pytest.mark.parametrize(
    ("shape", "ratio"), [((512, 512), 4), ((100, 512), 1), ((192, 192), 2), ((1000, 1000), 8), (None, 1)]
)
def test_images_are_never_decoded_smaller_than_needed(shape: Any, ratio: int) -> None:
    assert images.reduction(shape, (96, 96)) == ratio


@pytest.mark.parametrize("shape", [(300, 500), (40, 400)])
def test_both_engines_draw_boxes_alike(shape: tuple[int, int]) -> None:
    crop, count = images.RandomCrop(), 600
    ours = np.array([crop.box(shape, np.random.default_rng(number)) for number in range(count)])
    box = tf.function(lambda seed: tf.stack(crop.box(tf.constant(shape), seed)))
    theirs = np.array([box(tf.constant([number, 7])).numpy() for number in range(count)])
    for boxes in (ours, theirs):
        top, left, height, width = boxes.T
        assert (boxes >= 0).all() and (top + height <= shape[0]).all() and (left + width <= shape[1]).all()
    for share in (0.1, 0.5, 0.9):
        assert np.abs(np.quantile(ours, share, axis=0) - np.quantile(theirs, share, axis=0)).max() < 0.1 * max(shape)
    areas = [(boxes[:, 2] * boxes[:, 3]).mean() for boxes in (ours, theirs)]
    assert areas[1] == pytest.approx(areas[0], rel=0.1)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="not an image"):
        images.Decode()(b"nonsense")
    with pytest.raises(ValueError, match="smaller than CenterCrop"):
        images.CenterCrop(64, 64)(np.zeros((32, 32, 3), np.uint8))
    with pytest.raises(errors.PlanError, match="RandomCrop"):
        images.RandomCrop(area=(0.5, 0.1))
