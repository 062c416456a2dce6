"""Rewrites of operators on images: decoders that take over, and geometric operators in a row as one warp."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors, images
from pecan_ray.autoorder.rewrites import choices, only_casts
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Map, Plan
from tests.unit.autoorder.sampled_orders import push_down
from tests.unit.known.known_functions import encode


def test_functions_are_merged_in_each_input_of_a_join() -> None:
    def branch(name: str) -> pecan.PecanPipeline:
        return pipeline([(f"{name}1", images.Decode()), (f"{name}2", images.Resize(96, 96))], [b""])

    plan, done = push_down(branch("a").unbatch().concat(branch("b").unbatch()).plan, "python")
    assert [(one.rule, one.ops) for one in done] == [
        ("known functions", ("a1", "a2")),
        ("known functions", ("b1", "b2")),
    ]
    assert [op.name for op in plan.all_ops() if op.name[0] in "ab" and len(op.name) == 2] == ["a2", "b2"]


def test_other_formats_than_jpeg_are_decoded_whole_and_bad_input_is_named() -> None:
    pipe = pipeline(ROWS["decoder, crop and resize"], [encode(smooth(), kind=".png")])
    assert np.array_equal(pictures(pipe.plan), pictures(fused(pipe)))
    with pytest.raises(ValueError, match="smaller than CenterCrop"):
        images.CenterCrop(64, 64)(np.zeros((32, 32, 3), np.uint8))
    with pytest.raises(errors.PlanError, match="RandomCrop"):
        images.RandomCrop(area=(0.5, 0.1))


@pytest.mark.parametrize(("shape", "ratio"), [((512, 512), 4), ((100, 512), 1), ((192, 192), 2), ((1000, 1000), 8)])
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


Fn = Any
FIGURE_3: tuple[tuple[str, Fn], ...] = (
    ("decode", images.Decode()),
    ("crop", images.RandomCrop()),
    ("flip", images.RandomFlip()),
    ("rotate", images.RandomRotate()),
    ("shear", images.RandomShear()),
    ("resize", images.Resize(96, 80)),
)


def pipeline(steps: Sequence[tuple[str, Fn]], given: Sequence[Any]) -> pecan.PecanPipeline:
    pipe = pecan.PecanPipeline(pecan.sources.Items([{"image": one} for one in given]), name="warps")
    for name, fn in steps:
        pipe = pipe.map(fn, on="image", name=name)
    return pipe.batch(4)


def pictures(plan: Plan, seed: int = 0) -> Any:
    return np.concatenate([batch["image"] for batch in run_in_process(plan, seed=seed)])


def fused(pipe: pecan.PecanPipeline) -> Plan:
    plan, pushed = push_down(pipe.plan, "python")
    assert len(pushed) == 1 and pushed[0].reduces
    return plan


def smooth(height: int = 480, width: int = 640) -> Any:
    """A picture without edges, of which every interpolation has about the same values."""
    y, x = np.mgrid[0:height, 0:width] / 100.0
    waves = [np.sin(x * (1 + c / 3)) * np.cos(y * (1 + c / 5)) for c in range(3)]
    return np.clip(128 + 100 * np.stack(waves, -1), 0, 255).astype(np.uint8)


ROWS: dict[str, Sequence[tuple[str, Fn]]] = {
    "Figure 3": FIGURE_3,
    "resize first": (*FIGURE_3[:2], FIGURE_3[5], *FIGURE_3[2:5]),
    "decoder, crop and resize": (FIGURE_3[0], ("crop", images.RandomCrop(area=(0.5, 1.0))), FIGURE_3[5]),
    "crop last": (FIGURE_3[0], FIGURE_3[2], FIGURE_3[5], ("middle", images.CenterCrop(64, 64))),
    "two crops": (*FIGURE_3[:3], ("again", images.RandomCrop(area=(0.3, 0.9))), FIGURE_3[5]),
    "without a decoder": FIGURE_3[1:],
}


@pytest.mark.parametrize("steps", ROWS.values(), ids=ROWS)
def test_one_warp_shows_what_one_after_the_other_shows(steps: Sequence[tuple[str, Fn]]) -> None:
    given = [smooth(), smooth(333, 517), smooth(1600, 1200)]
    pipe = pipeline(steps, [encode(one) if steps[0][0] == "decode" else one for one in given])
    for seed in range(8):
        before, after = pictures(pipe.plan, seed), pictures(fused(pipe), seed)
        assert before.shape == after.shape and before.dtype == after.dtype
        apart = np.abs(before.astype(float) - after)
        # A pixel beside the black border may be on the other side of it; all others are as before.
        assert np.median(apart) <= 2 and apart.mean() < 4


@pytest.mark.parametrize("decodes", [True, False])
def test_a_small_image_between_that_is_enlarged_again_is_made(decodes: bool) -> None:
    """One warp would show what it has hidden."""
    steps = [("mosaic", images.Resize(16, 16)), ("flip", images.RandomFlip()), ("resize", images.Resize(224, 224))]
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    given = cv2.resize(noise, (800, 600), interpolation=cv2.INTER_NEAREST)
    pipe = pipeline(
        [*([("decode", images.Decode())] if decodes else []), *steps], [encode(given) if decodes else given] * 4
    )
    before, after = pictures(pipe.plan), pictures(fused(pipe))
    for one, other in zip(before, after, strict=True):
        assert (
            np.abs(np.diff(other.astype(float), axis=0)).mean()
            < 1.5 * np.abs(np.diff(one.astype(float), axis=0)).mean()
        )


def test_only_what_gains_by_it_becomes_one() -> None:
    def ways(*fns: Fn, engine: EngineName = "python", **keywords: Any) -> list[str]:
        ops = [Map(name=f"{place}", fn=fn, on="image", **keywords) for place, fn in enumerate(fns)]
        return [one.decoder for found in choices(ops, engine) for one in found]

    decode, crop, flip, resize = images.Decode(), images.RandomCrop(), images.RandomFlip(), images.Resize(8, 8)
    assert ways(decode, crop, flip, resize) == ["0+1+2+3", "0+1+2+3 exactly"]
    assert ways(crop, flip, resize) == ["0+1+2"]
    assert ways(decode, crop, resize) == ["0+1+2", "0+1+2 exactly"]
    assert ways(decode, flip) == [] and ways(flip) == [] and ways(crop, resize) == []
    assert ways(decode, crop, np.copy, flip, resize) == ["0+1 exactly", "3+4"]
    assert ways(crop, flip, resize, keep_position=True) == []
    assert ways(*(fn for _, fn in FIGURE_3), engine="tensorflow") == []


def cast(image: Any) -> Any:
    return image.astype(np.float32)


@pytest.mark.parametrize(
    "steps",
    [
        (*FIGURE_3[:2], ("cast", cast), *FIGURE_3[2:]),
        (FIGURE_3[0], ("cast", cast), *FIGURE_3[1:]),
        (*FIGURE_3[:2], ("cast", cast), FIGURE_3[5]),
        (*FIGURE_3, ("cast", cast)),
        (FIGURE_3[0], ("crop", images.CenterCrop(64, 64)), ("cast", cast)),
    ],
)
def test_a_cast_of_bytes_to_floats_between_is_done_to_the_result(steps: Sequence[tuple[str, Fn]]) -> None:
    pipe = pipeline(steps, [encode(smooth(480, 640)) for _ in range(4)])
    plan, [_] = push_down(pipe.plan, "python")
    assert [op.name for op in plan.ops] == ["crop", "cast", "batch"]
    before, after = pictures(pipe.plan), pictures(plan)
    assert before.shape == after.shape and before.dtype == after.dtype == np.float32
    assert np.median(np.abs(before - after)) <= 2


CALLS: list[int] = []


def counting(image: Any) -> Any:
    CALLS.append(1)
    return image.astype(np.float32)


@pytest.mark.parametrize(
    "fn",
    [
        lambda image: image / 255,
        lambda image: image.astype(np.float32) - 1,
        lambda image: image.astype(np.int32),
        lambda image: image.astype(np.uint8),
        lambda image: image.astype(np.float32)[..., ::-1],
        operator.methodcaller("astype", np.int16),
        operator.methodcaller("max"),
        counting,
        np.float32,
    ],
)
def test_what_does_anything_else_is_no_cast_and_is_not_even_asked_if_that_could_be_seen(fn: Fn) -> None:
    assert not only_casts(Map(name="fn", fn=fn, on="image")) and not CALLS
