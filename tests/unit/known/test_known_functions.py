"""Functions of NumPy, OpenCV, SciPy and Pillow that are known: which they are, and that pixels are theirs."""

from __future__ import annotations

import functools
import io
import operator
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy import ndimage

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.autoorder.push_down import AS_KNOWN, EXACTLY, choices, push_down
from pecan_ray.known.recognise import steps_of
from pecan_ray.known.steps import GeometryStep
from pecan_ray.warps import warped
from tests.unit.known.known_functions import at_once, found, generators, photograph, usual

PICTURE = images.Decode()(photograph(120, 150))
MATRIX = np.array([[0.9, 0.1, 3.0], [-0.1, 1.05, -2.0]])
KNOWN: dict[str, Any] = {
    "fliplr": np.fliplr,
    "flipud": np.flipud,
    "numpy flip": functools.partial(np.flip, axis=(0, 1)),
    "opencv flip": functools.partial(cv2.flip, flipCode=1),
    "opencv flip, both": functools.partial(cv2.flip, flipCode=-1),
    "resize": functools.partial(cv2.resize, dsize=(60, 50)),
    "warpAffine": functools.partial(cv2.warpAffine, M=MATRIX, dsize=(140, 100)),
    "warpAffine, inverse": functools.partial(
        cv2.warpAffine, M=MATRIX, dsize=(140, 100), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    ),
    "rotate": functools.partial(ndimage.rotate, angle=12.0, reshape=False, order=1),
    "zoom": functools.partial(ndimage.zoom, zoom=(0.7, 1.2, 1), order=1),
    "images.Resize": images.Resize(64, 80),
}


@pytest.mark.parametrize("name", KNOWN)
def test_pixels_come_from_where_the_library_takes_them(name: str) -> None:
    steps = steps_of(KNOWN[name])
    assert steps is not None and len(steps) == 1
    (step,) = steps
    assert isinstance(step, GeometryStep)
    mine, theirs = warped(PICTURE, step.placed(PICTURE.shape[:2], None)), KNOWN[name](PICTURE)
    assert mine.shape == theirs.shape
    inside = np.abs(mine.astype(int) - theirs)[2:-2, 2:-2]
    assert inside.mean() < 1.0, inside.mean()
    if step.name.endswith(("flip", "fliplr", "flipud")):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(
    "fn",
    [
        functools.partial(np.flip, axis=2),
        functools.partial(np.flip),
        functools.partial(cv2.resize, dsize=(60, 50), interpolation=cv2.INTER_AREA),
        functools.partial(cv2.resize, dsize=None, fx=0.5, fy=0.5),
        functools.partial(cv2.warpAffine, M=MATRIX, dsize=(9, 9), borderMode=cv2.BORDER_REFLECT),
        functools.partial(cv2.warpAffine, M=np.zeros((2, 3)), dsize=(9, 9)),
        functools.partial(cv2.warpAffine, M=MATRIX, dsize=None),
        functools.partial(cv2.warpAffine, M=MATRIX, dsize=(0, 0)),
        functools.partial(ndimage.rotate, angle=12.0, reshape=False),
        functools.partial(ndimage.rotate, angle=12.0, order=1),
        functools.partial(ndimage.rotate, angle=12.0, order=1, reshape=False, mode="nearest"),
        functools.partial(ndimage.zoom, zoom=2.0, order=1),
        functools.partial(ndimage.zoom, zoom=(2, 2, 2), order=1),
        functools.partial(np.rot90, k=1),
        operator.methodcaller("resize", (5, 6), Image.Resampling.NEAREST),
        operator.methodcaller("resize", (5, 6), box=(0, 0, 2, 2)),
        operator.methodcaller("transpose", Image.Transpose.ROTATE_90),
        operator.methodcaller("transpose", [2, 0, 1]),
        lambda image: np.fliplr(image),
        type("fliplr", (), {"__call__": lambda self, image: image})(),
        len,
        None,
    ],
)
def test_what_is_another_is_not_known(fn: Any) -> None:
    assert steps_of(fn) is None


class Loud(images.Resize):
    """One that does something else."""

    def __call__(self, image: Any) -> Any:
        """Shout."""
        return super().__call__(image) // 2


def test_a_class_of_ones_own_is_not_known() -> None:
    assert steps_of(Loud(8, 8)) is None


RUNS: dict[str, list[Any]] = {
    "crop of the package": [images.RandomCrop((0.2, 0.6)), np.fliplr, functools.partial(cv2.resize, dsize=(96, 80))],
    "middle": [images.CenterCrop(200, 210), functools.partial(cv2.flip, flipCode=0)],
    "Pillow": [
        Image.fromarray,
        operator.methodcaller("crop", (10, 20, 310, 220)),
        operator.methodcaller("resize", (80, 60)),
        ImageOps.mirror,
    ],
    "Pillow resize": [Image.fromarray, operator.methodcaller("resize", (80, 60), Image.Resampling.BILINEAR)],
    "crop and turn": [
        images.RandomCrop((0.2, 0.6)),
        functools.partial(ndimage.rotate, angle=9, order=1, reshape=False),
        functools.partial(cv2.resize, dsize=(96, 80)),
    ],
}


WAYS = [
    (name, reduces)
    for name, fns in RUNS.items()
    for known in [found(fns)]
    for reduces in (False, True)
    if known is not None and (known.unequal if reduces else known.equal)
]


def test_what_is_done_at_once() -> None:
    assert set(WAYS) == {(name, False) for name in RUNS if name != "Pillow resize"} | {
        (name, True) for name in RUNS if name != "middle"
    }


@pytest.mark.parametrize(("name", "reduces"), WAYS)
def test_functions_at_once_do_what_they_do_one_by_one(name: str, reduces: bool) -> None:
    fns = RUNS[name]
    for seed in range(4):
        encoded = photograph(400, 500, seed)
        made, expected = at_once(fns, reduces=reduces)(encoded, generators(seed)), usual(fns, encoded, seed)
        assert type(made) is type(expected) and np.shape(made) == np.shape(expected)
        apart = np.abs(np.asarray(made).astype(int) - np.asarray(expected))
        bound = 0.3 * np.asarray(expected).std() if reduces else 0
        assert apart.mean() <= bound, (seed, apart.mean())


def test_a_crop_beyond_the_image_is_left_to_pillow() -> None:
    fns = [Image.fromarray, operator.methodcaller("crop", (-5, 0, 90, 100))]
    made = at_once(fns, reduces=False)(photograph(), generators(0))
    assert np.array_equal(np.asarray(made), np.asarray(usual(fns, photograph(), 0)))


@pytest.mark.parametrize("kind", ["png", "progressive"])
def test_other_files_give_the_same_pixels(kind: str) -> None:
    file = io.BytesIO()
    Image.fromarray(PICTURE).save(file, "PNG" if kind == "png" else "JPEG", progressive=kind == "progressive")
    fns = RUNS["crop of the package"]
    made = at_once(fns, reduces=False)(file.getvalue(), generators(3))
    assert np.array_equal(made, usual(fns, file.getvalue(), 3))


def test_what_a_step_cannot_work_on_is_not_known() -> None:
    assert found([ImageOps.mirror, operator.methodcaller("resize", (5, 5))]) is None, "an array is no image of Pillow"
    assert found([images.RandomCrop(), images.Resize(8, 8)]) is None, "those have rules of their own"
    assert found([np.fliplr, np.flipud]) is None, "nothing is gained"


def test_rules_of_a_plan() -> None:
    pipe = pecan.PecanPipeline(pecan.sources.Items([{"image": photograph()}])).map(images.Decode(), on="image")
    pipe = pipe.map(images.RandomCrop(), on="image", name="crop").map(np.fliplr, on="image", name="mirror")
    pipe = pipe.map(functools.partial(cv2.resize, dsize=(32, 32)), on="image", name="small")
    ways = [way for ways in choices(pipe.plan.ops, "python") for way in ways if way.rule == "known functions"]
    names = f"Decode+crop+mirror+small{AS_KNOWN}"
    assert [one.decoder for one in ways] == [names, f"{names}{EXACTLY}"]
    assert ways[1].told() == (
        "Decode, crop, mirror, small are one, since AutoOrder knows images.RandomCrop (rule known functions)"
    )
    plan, pushed = push_down(pipe.plan, "python", [f"{names}{EXACTLY}"])
    assert [op.name for op in plan.ops] == ["crop"] and len(pushed) == 1
    assert [one.decoder for ways in choices(pipe.plan.ops, "python") for one in ways][2] == "Decode", "it is as before"
    fixed = pipe.map(np.flipud, on="image", keep_position=True)
    assert all("flipud" not in way.decoder for ways in choices(fixed.plan.ops, "python") for way in ways)
    assert choices(pipe.plan.ops, "tensorflow") != [] and all(
        way.rule != "known functions" for ways in choices(pipe.plan.ops, "tensorflow") for way in ways
    )
