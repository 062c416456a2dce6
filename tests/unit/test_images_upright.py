"""`Decode(upright=True)` turns photographs as Pillow does, in both engines and behind every rewrite."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, features

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.autoorder.push_down import push_down
from pecan_ray.errors import PlanError
from pecan_ray.options import EngineName


def photograph(number: int | None, kind: str) -> bytes:
    """Return an image of 48 x 32 pixels that says to be turned."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    exif, out = Image.Exif(), io.BytesIO()
    if number is not None:
        exif[0x0112] = number
    exact: dict[str, dict[str, Any]] = {"WEBP": {"lossless": True}, "AVIF": {"quality": 100, "subsampling": "4:4:4"}}
    Image.fromarray(pixels).save(out, kind, exif=exif, **exact.get(kind, {}))
    return out.getvalue()


def as_pillow(encoded: bytes) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).convert("RGB"))


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_photographs_are_turned_as_pillow_turns_them(engine: EngineName) -> None:
    kinds = ["JPEG", "PNG"]
    if engine == "python":
        kinds += ["WEBP", "AVIF"] if features.check("avif") else ["WEBP"]
    files = [photograph(number, kind) for kind in kinds for number in (None, *range(10))]
    if engine == "tensorflow":
        tf = pytest.importorskip("tensorflow")
        decode = tf.function(images.Decode(upright=True), input_signature=[tf.TensorSpec([], tf.string)])
        turned = [decode(file).numpy() for file in files]
    else:
        turned = list(map(images.Decode(upright=True), files))
    for one, file in zip(turned, files, strict=True):
        wanted = as_pillow(file)
        assert one.shape == wanted.shape and np.abs(one.astype(int) - wanted).max() <= 3
    assert images.Decode()(files[7]).shape == (32, 48, 3), "by default they come as they are stored"


def test_no_rewrite_leaves_a_turned_photograph_as_it_is_stored(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "6.jpg").write_bytes(photograph(6, "JPEG"))
    config = pecan.Config(reorder="pecan", progress=False)
    for behind in (images.CenterCrop(40, 20), images.Resize(12, 8), images.Reduce(24), images.RandomCrop()):
        pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(tmp_path), config=config)
        pipe = pipe.map(images.Decode(upright=True), on="image").map(behind, on="image")
        assert push_down(pipe.plan, "python")[1] == () == push_down(pipe.plan, "tensorflow")[1]
    upright = pecan.PecanPipeline(pecan.sources.ImageFolder(tmp_path), config=config)
    upright = upright.map(images.Decode(upright=True), on="image").map(images.CenterCrop(40, 20), on="image").batch(1)
    with upright.iter_batches(debug=True) as batches:
        assert [batch["image"].shape for batch in batches] == [(1, 40, 20, 3)]


def test_whether_to_turn_is_a_bool() -> None:
    with pytest.raises(PlanError, match="True or False"):
        images.Decode(upright="yes")  # type: ignore[arg-type]
