"""With a seed, jobs of one pipeline make the same pixels, whatever is measured: ResNet50 of the examples."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import pecan_ray as pecan
from examples import resnet50
from examples.photographs import derived_photographs

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

IMAGES = 64


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return derived_photographs(IMAGES, cache=tmp_path_factory.mktemp("photographs"))


def pixels(photographs: Path, seed: int) -> list[str]:
    """A digest of every image that a job of two workers delivers, sorted: which batch it is in is another matter."""
    pipe = resnet50.pipeline(photographs, batch=8, seed=seed)
    with pipe.iter_batches(workers=pecan.Workers(local=1, remote=1)) as batches:
        return sorted(hashlib.sha256(image.tobytes()).hexdigest() for batch in batches for image in batch["image"])


def test_jobs_with_one_seed_make_the_same_pixels_with_a_fresh_order_folder(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number in range(2):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(number)))
        found.append(pixels(photographs, seed=5))
    assert len(found[0]) == IMAGES and len(set(found[0])) == IMAGES
    assert found[0] == found[1]
