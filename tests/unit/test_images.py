"""`images`: smaller photographs, encoded or not, those that say to be turned, and folders of decoded ones."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps, features
from skimage import data

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.downscale import area_average
from pecan_ray.errors import PlanError
from pecan_ray.options import EngineName
from pecan_ray.orientation import orientation
from pecan_ray.sources import ImageFolder
from tests.unit.autoorder.sampled_orders import push_down

DECODE = images.Decode()
ORIENTATION = 0x0112


def photograph(height: int, width: int, name: str = "coffee") -> Any:
    return cv2.resize(getattr(data, name)(), (width, height))


def encoded(height: int, width: int, suffix: str = ".jpg") -> bytes:
    done, file = cv2.imencode(suffix, cv2.cvtColor(photograph(height, width), cv2.COLOR_RGB2BGR))
    assert done
    return bytes(file)


def turned(pixels: Any, kind: str, number: int | None, **how: Any) -> bytes:
    """Return an encoded image that says to be turned."""
    exif, out = Image.Exif(), io.BytesIO()
    exif[0x010F] = "a maker"
    if number is not None:
        exif[ORIENTATION] = number
    Image.fromarray(pixels).save(out, kind, exif=exif, **how)
    return out.getvalue()


def apart(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one).astype(int) - other).mean())


# --- Reduce -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_an_encoded_photograph_becomes_a_jpeg_of_its_shape(suffix: str) -> None:
    copy = images.Reduce(200)(encoded(600, 900, suffix))
    assert images.jpeg_shape(copy) == (133, 200)
    assert apart(images.decoded(copy), area_average(photograph(600, 900), (133, 200))) < 4


@pytest.mark.parametrize(
    ("shape", "dtype"), [((400, 300, 3), np.uint8), ((300, 400, 1), np.float32), ((9, 600), np.int16)]
)
def test_pixels_become_the_means_of_their_areas(shape: tuple[int, ...], dtype: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    small = images.Reduce(100)(pixels)
    assert max(small.shape[:2]) == 100 and small.shape[2:] == pixels.shape[2:] and small.dtype == pixels.dtype
    assert abs(float(small.mean()) - float(pixels.mean())) < 2


def test_what_is_no_image_no_size_and_no_quality_is_refused() -> None:
    for fn in (images.Reduce(10), DECODE):
        for file in (b"", b"no image", encoded(90, 90)[:30]):
            with pytest.raises(ValueError, match="not an image"):
                fn(file)
    calls: list[tuple[Any, dict[str, Any], str]] = [
        (images.Reduce, {"at_most": 0}, r"at_most=\.\.\.\) must be a positive whole number, but got 0"),
        (images.Reduce, {"at_most": 1.5}, "at_most"),
        (
            images.Reduce,
            {"at_most": 9, "quality": 101},
            r"quality=\.\.\.\) must be a whole number from 1 to 100",
        ),
        (images.Decode, {"upright": "yes"}, "True or False"),
        (
            ImageFolder,
            {"root": "/x", "decode": "yes"},
            r"ImageFolder\(decode=...\) must be True or False",
        ),
    ]
    for make, given, said in calls:
        with pytest.raises(PlanError, match=said):
            make(**given)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_reduced_photograph_is_turned_as_before(kind: str) -> None:
    """No decoder here turns it; who shows it, or another library, does."""
    file = turned(photograph(300, 450), kind, 6)
    for same in (file, bytearray(file)):
        copy = images.Reduce(200)(same)
        shown = Image.open(io.BytesIO(copy))
        assert shown.size == (200, 133) and shown.getexif()[ORIENTATION] == 6
        assert images.jpeg_shape(copy) == (133, 200) and images.decoded(copy).shape == (133, 200, 3)
    assert not Image.open(io.BytesIO(images.Reduce(200)(encoded(300, 450)))).getexif()
    whole = turned(photograph(20, 30), kind, 8)
    assert orientation(whole) == 8
    assert {orientation(whole[:end]) for end in range(len(whole))} <= {1, 8}, "broken data say nothing"
    assert {orientation(turned(photograph(20, 30), "JPEG", number)) for number in (0, 9, 700)} == {1}


def test_encoded_photographs_may_be_in_any_memory() -> None:
    file = encoded(300, 450)
    for same in (bytearray(file), memoryview(file), np.frombuffer(file, np.uint8)):
        assert images.Reduce(200)(same) == images.Reduce(200)(file)
        assert images.Reduce(450)(same) is same and DECODE(same).shape == (300, 450, 3)


def test_arrays_that_cannot_be_resized_are_named() -> None:
    shapes = [(2, 300, 450, 3), (0, 450, 3), (300, 450, 600), ()]
    of_types = [((300, 450, 3), one) for one in ("int32", "int64", "uint32", "bool", "float16", ">u2")]
    for shape, dtype in [*of_types, *((one, "uint8") for one in shapes), ((300,), "float32")]:
        with pytest.raises(ValueError, match=re.escape(f"shape {shape} and dtype {np.dtype(dtype)}")):
            images.Reduce(200)(np.zeros(shape, dtype))


@pytest.mark.parametrize("of_pixels", [False, True])
def test_both_engines_make_copies_of_one_size(of_pixels: bool) -> None:
    files = [encoded(300, 450), encoded(90, 120), encoded(301, 77)]
    first, second = (DECODE, images.Reduce(150)) if of_pixels else (images.Reduce(150), DECODE)

    def made(engine: EngineName) -> list[Any]:
        source = pecan.sources.Items([{"image": file} for file in files], split_rows=4)
        pipe = pecan.PecanPipeline(source, engine=engine).map(first, on="image").map(second, on="image")
        return [element["image"] for element in pipe.iter_batches(debug=True)]

    for one, other in zip(made("python"), made("tensorflow"), strict=True):
        assert np.shape(one) == np.shape(other) and apart(one, np.asarray(other)) < 12


# --- Decode(upright=True) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_photographs_are_turned_as_pillow_turns_them(engine: EngineName) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    kinds: dict[str, dict[str, Any]] = {"JPEG": {}, "PNG": {}}
    decode: Any = images.Decode(upright=True)
    if engine == "tensorflow":
        tf = pytest.importorskip("tensorflow")
        decode = tf.function(decode, input_signature=[tf.TensorSpec([], tf.string)])
    else:
        kinds["WEBP"] = {"lossless": True}
        kinds |= {"AVIF": {"quality": 100, "subsampling": "4:4:4"}} if features.check("avif") else {}
    files = [turned(pixels, kind, number, **how) for kind, how in kinds.items() for number in (None, *range(10))]
    for file in files:
        wanted = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB"))
        got = np.asarray(decode(file))
        assert got.shape == wanted.shape and np.abs(got.astype(int) - wanted).max() <= 3
    assert images.Decode()(files[7]).shape == (32, 48, 3), "by default they come as they are stored"


def test_no_rewrite_leaves_a_turned_photograph_as_it_is_stored(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "6.jpg").write_bytes(turned(photograph(32, 48), "JPEG", 6))
    pipe = pecan.PecanPipeline(ImageFolder(tmp_path), config=pecan.Config(reorder="pecan", progress=False))
    upright = pipe.map(images.Decode(upright=True), on="image")
    for behind in (images.CenterCrop(40, 20), images.Resize(12, 8), images.Reduce(24), images.RandomCrop()):
        plan = upright.map(behind, on="image").plan
        assert push_down(plan, "python")[1] == () == push_down(plan, "tensorflow")[1]
    with upright.map(images.CenterCrop(40, 20), on="image").batch(1).iter_batches(debug=True) as batches:
        assert [batch["image"].shape for batch in batches] == [(1, 40, 20, 3)]


# --- ImageFolder(decode=True) -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_decoded_images_are_arrays_and_the_decoder_takes_over_what_follows(tmp_path: Path, engine: EngineName) -> None:
    for name in ("astronaut", "coffee"):
        (tmp_path / name).mkdir()
        assert cv2.imwrite(str(tmp_path / name / "one.jpg"), getattr(data, name)())
    decoded = pecan.PecanPipeline(ImageFolder(tmp_path, decode=True), engine=engine)
    by_hand = pecan.PecanPipeline(ImageFolder(tmp_path), engine=engine).map(DECODE, on="image")
    assert [np.asarray(one["image"]).shape for one in decoded.peek(2)] == [(512, 512, 3), (400, 600, 3)]
    for one, other in zip(decoded.peek(2), by_hand.peek(2), strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
    both = [
        pipe.map(images.RandomCrop(), on="image").map(images.Resize(32, 32), on="image") for pipe in (decoded, by_hand)
    ]
    assert [len(one.ops) for one in push_down(both[0].plan, engine)[1]] == [3]
    assert both[0].fingerprint() == both[1].fingerprint()
