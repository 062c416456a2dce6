"""`ImageFolder(decode=True)` gives arrays, and the decoder still takes over what follows."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.autoorder.push_down import push_down
from pecan_ray.errors import PlanError
from pecan_ray.options import EngineName


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One photograph of each of two classes."""
    for name in ("astronaut", "coffee"):
        (tmp_path / name).mkdir()
        assert cv2.imwrite(str(tmp_path / name / "one.jpg"), getattr(data, name)())
    return tmp_path


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_images_are_arrays(folder: Path, engine: EngineName) -> None:
    pytest.importorskip("tensorflow" if engine == "tensorflow" else "cv2")
    decoded = pecan.PecanPipeline(pecan.sources.ImageFolder(folder, decode=True), engine=engine).peek(2)
    assert [np.asarray(one["image"]).shape for one in decoded] == [(512, 512, 3), (400, 600, 3)]
    plain = pecan.PecanPipeline(pecan.sources.ImageFolder(folder), engine=engine)
    by_hand = plain.map(images.Decode(), on="image").peek(2)
    for one, other in zip(decoded, by_hand, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])


def test_the_decoder_takes_over_what_follows(folder: Path) -> None:
    pipe = pecan.PecanPipeline(pecan.sources.ImageFolder(folder, decode=True))
    pipe = pipe.map(images.RandomCrop(), on="image").map(images.Resize(32, 32), on="image")
    by_hand = pecan.PecanPipeline(pecan.sources.ImageFolder(folder)).map(images.Decode(), on="image")
    by_hand = by_hand.map(images.RandomCrop(), on="image").map(images.Resize(32, 32), on="image")
    assert [one.rule for one in push_down(pipe.plan, "python")[1]] == ["decode+random_crop+resize"]
    assert pipe.fingerprint() == by_hand.fingerprint()


def test_nonsense_is_refused(folder: Path) -> None:
    with pytest.raises(PlanError, match=r"ImageFolder\(decode=...\) must be True or False, but got 'yes'"):
        pecan.sources.ImageFolder(folder, decode="yes")  # type: ignore[arg-type]  # what users may write
