"""`images`: encoded photographs, those that say to be turned, and folders of decoded ones."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps
from skimage import data

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.errors import PlanError
from pecan_ray.options import EngineName
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


def test_what_is_no_image_and_no_answer_is_refused() -> None:
    for file in (b"", b"no image", encoded(90, 90)[:30]):
        with pytest.raises(ValueError, match="not an image"):
            DECODE(file)
    calls: list[tuple[Any, dict[str, Any], str]] = [
        (images.Decode, {"upright": "yes"}, "True or False"),
        (ImageFolder, {"root": "/x", "decode": "yes"}, r"ImageFolder\(decode=...\) must be True or False"),
    ]
    for make, given, said in calls:
        with pytest.raises(PlanError, match=said):
            make(**given)


def test_encoded_photographs_may_be_in_any_memory() -> None:
    file = encoded(300, 450)
    for same in (bytearray(file), memoryview(file), np.frombuffer(file, np.uint8)):
        assert DECODE(same).shape == (300, 450, 3)


# --- Decode(upright=True) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_photographs_are_turned_as_pillow_turns_them(engine: EngineName) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    decode: Any = images.Decode(upright=True)
    if engine == "tensorflow":
        tf = pytest.importorskip("tensorflow")
        decode = tf.function(decode, input_signature=[tf.TensorSpec([], tf.string)])
    files = [turned(pixels, "JPEG", number) for number in (None, *range(10))]
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
    for behind in (images.CenterCrop(40, 20), images.Resize(12, 8), images.RandomCrop()):
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
    assert [len(one.ops) for one in push_down(both[0].plan, engine)[1]] == ([3] if engine == "python" else [])
    assert both[0].fingerprint() == both[1].fingerprint()
