"""`images.Reduce`: smaller photographs of large ones, encoded or not."""

from __future__ import annotations

import io
import re
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from skimage import data

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.downscale import averaged
from pecan_ray.errors import PlanError
from pecan_ray.options import EngineName
from pecan_ray.orientation import orientation

DECODE = images.Decode()


def photograph(height: int, width: int, name: str = "coffee") -> Any:
    return cv2.resize(getattr(data, name)(), (width, height))


def encoded(height: int, width: int, suffix: str = ".jpg", name: str = "coffee") -> bytes:
    done, file = cv2.imencode(suffix, cv2.cvtColor(photograph(height, width, name), cv2.COLOR_RGB2BGR))
    assert done
    return bytes(file)


def pipeline(files: list[bytes], *ops: Any, engine: EngineName = "python") -> pecan.PecanPipeline:
    """Functions on photographs."""
    items = [{"image": file, "number": number} for number, file in enumerate(files)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items, split_rows=4), name="album", engine=engine)
    for op in ops:
        pipe = pipe.map(op, on="image")
    return pipe


def apart(one: Any, other: Any) -> float:
    return float(np.abs(one.astype(int) - other).mean())


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_an_encoded_photograph_becomes_a_jpeg_of_its_shape(suffix: str) -> None:
    copy = images.Reduce(200)(encoded(600, 900, suffix))
    assert images.jpeg_shape(copy) == (133, 200)
    assert apart(images.decoded(copy), averaged(photograph(600, 900), (133, 200))) < 4


@pytest.mark.parametrize(("shape", "dtype"), [((400, 300, 3), np.uint8), ((300, 400, 1), np.float32), ((9, 600), int)])
def test_pixels_become_the_means_of_their_areas(shape: tuple[int, ...], dtype: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.int16 if dtype is int else dtype)
    small = images.Reduce(100)(pixels)
    assert max(small.shape[:2]) == 100 and small.shape[2:] == pixels.shape[2:] and small.dtype == pixels.dtype
    assert abs(float(small.mean()) - float(pixels.mean())) < 2


def test_what_is_no_image_is_an_error_as_with_the_decoder() -> None:
    for fn in (images.Reduce(10), DECODE):
        for file in (b"", b"no image", encoded(90, 90)[:30]):
            with pytest.raises(ValueError, match="not an image"):
                fn(file)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"at_most": 0}, "at_most=...) must be a positive whole number, but got 0"),
        ({"at_most": 1.5}, "at_most"),
        ({"at_most": 9, "quality": 101}, "quality=...) must be a whole number from 1 to 100, but got 101"),
    ],
)
def test_what_cannot_be_a_size_or_a_quality_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as error:
        images.Reduce(**wrong)
    assert said in error.value.message


@pytest.mark.parametrize("suffix", ["JPEG", "PNG", "WEBP"])
def test_an_encoded_photograph_is_turned_as_before(suffix: str) -> None:
    """No decoder here turns it; who shows it, or another library, does."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "a maker", 6
    file = io.BytesIO()
    Image.fromarray(photograph(300, 450)).save(file, suffix, exif=exif)
    for encoded_file in (file.getvalue(), bytearray(file.getvalue())):
        copy = images.Reduce(200)(encoded_file)
        turned = Image.open(io.BytesIO(copy))
        assert turned.size == (200, 133) and turned.getexif()[0x0112] == 6
        assert images.jpeg_shape(copy) == (133, 200) and images.decoded(copy).shape == (133, 200, 3)
    assert not Image.open(io.BytesIO(images.Reduce(200)(encoded(300, 450)))).getexif()


def test_exif_data_that_are_broken_say_nothing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    for suffix in ("JPEG", "PNG", "WEBP"):
        file = io.BytesIO()
        Image.fromarray(photograph(20, 30)).save(file, suffix, exif=exif)
        whole = file.getvalue()
        assert orientation(whole) == 8
        assert {orientation(whole[:end]) for end in range(len(whole))} <= {1, 8}
    for number in (0, 9, 700):
        exif[0x0112] = number
        Image.fromarray(photograph(20, 30)).save(file := io.BytesIO(), "JPEG", exif=exif)
        assert orientation(file.getvalue()) == 1


def test_encoded_photographs_may_be_in_any_memory() -> None:
    file = encoded(300, 450)
    for same in (bytearray(file), memoryview(file), np.frombuffer(file, np.uint8)):
        assert images.Reduce(200)(same) == images.Reduce(200)(file)
        assert images.Reduce(450)(same) is same and DECODE(same).shape == (300, 450, 3)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((300, 450, 3), one) for one in ("int32", "int64", "uint32", "bool", "float16", ">u2")]
    + [
        ((2, 300, 450, 3), "uint8"),
        ((0, 450, 3), "uint8"),
        ((300, 450, 600), "uint8"),
        ((300,), "float32"),
        ((), "u1"),
    ],
)
def test_arrays_that_cannot_be_resized_are_named(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"shape {shape} and dtype {np.dtype(dtype)}")):
        images.Reduce(200)(np.zeros(shape, dtype))


@pytest.mark.parametrize("of_pixels", [False, True])
def test_both_engines_make_copies_of_one_size(of_pixels: bool) -> None:
    files = [encoded(300, 450), encoded(90, 120), encoded(301, 77)]
    ops = (DECODE, images.Reduce(150)) if of_pixels else (images.Reduce(150), DECODE)
    sides = [
        [element["image"] for element in pipeline(files, *ops, engine=engine).iter_batches(debug=True)]
        for engine in ("python", "tensorflow")
    ]
    for one, other in zip(*sides, strict=True):
        assert np.shape(one) == np.shape(other) and apart(np.asarray(one), np.asarray(other)) < 12
