"""Derives an ImageNet-like set of photographs from those that scikit-image and scikit-learn carry.

The files are *derived*: seeded crops of 300 to 640 px of fourteen photographs, encoded again as JPEG with
varied quality, in one folder per parent photograph (split them by folder, never by file).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

PARENTS = {
    "skimage": (
        "data",
        (
            "astronaut.png",
            "brick.png",
            "camera.png",
            "chelsea.png",
            "coffee.png",
            "grass.png",
            "gravel.png",
            "hubble_deep_field.jpg",
            "ihc.png",
            "motorcycle_left.png",
            "retina.jpg",
            "rocket.jpg",
        ),
    ),
    "sklearn": ("datasets/images", ("china.jpg", "flower.jpg")),
}
SIDES = (300, 640)
"""Bounds of a crop's height and width in pixels."""
QUALITIES = (75, 95)
"""Bounds of the JPEG quality."""


def derived_photographs(count: int = 256, *, seed: int = 0, cache: Path | None = None) -> Path:
    """Return the folder of a derived set of `count` JPEG files, making it on the first call.

    The folder appears whole or not at all, whoever else makes it at the same time.  `cache` is where it is
    kept (by default ``~/.cache/pecan_ray``).  Raises `FileNotFoundError` if scikit-image or scikit-learn is
    missing.
    """
    if count < 1:
        raise ValueError(f"count must be positive, but got {count}.")
    cache = cache or Path.home() / ".cache" / "pecan_ray"
    folder = cache / f"derived-photographs-{count}-seed{seed}"
    if folder.is_dir():
        return folder
    parents = parent_photographs()
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=cache))
    try:
        os.chmod(unfinished, 0o755)
        _write(unfinished, parents, count, seed)
        os.rename(unfinished, folder)
    except OSError:
        # Another process may have put the same set there first: then it is as good as ours.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def parent_photographs() -> list[Path]:
    """Return the paths of the photographs inside the installed scikit-image and scikit-learn."""
    found = []
    for package, (folder, names) in PARENTS.items():
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(
                f"The package {package!r}, whose photographs the examples use, is not installed: "
                f"pip install scikit-image scikit-learn, or name your own photographs by --data."
            )
        found += [Path(spec.submodule_search_locations[0]) / folder / name for name in names]
    missing = [str(path) for path in found if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"Photographs missing from their packages: {', '.join(missing)}; name your own by --data."
        )
    return found


def random_crop_box(shape: Sequence[int], rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw a box (top, left, height, width) of 300 to 640 px a side, less where the image is smaller.

    `shape` begins with the height and width of the image.
    """
    height, width = shape[:2]
    crop_height, crop_width = (
        int(rng.integers(min(SIDES[0], side), min(SIDES[1], side) + 1)) for side in (height, width)
    )
    top = int(rng.integers(height - crop_height + 1))
    left = int(rng.integers(width - crop_width + 1))
    return top, left, crop_height, crop_width


def _write(folder: Path, parents: list[Path], count: int, seed: int) -> None:
    originals: dict[Path, npt.NDArray[Any]] = {}
    for number in range(count):
        parent = parents[number % len(parents)]
        if parent not in originals:
            originals[parent] = _read(parent)
        rng = np.random.default_rng((seed, number))
        original = originals[parent]
        top, left, height, width = random_crop_box(original.shape, rng)
        crop = original[top : top + height, left : left + width]
        quality = int(rng.integers(QUALITIES[0], QUALITIES[1] + 1))
        done, encoded = cv2.imencode(".jpg", crop, [cv2.IMWRITE_JPEG_QUALITY, quality])
        if not done:
            raise ValueError(f"OpenCV could not encode a crop of {parent} as JPEG.")
        target = folder / parent.stem / f"{number:05d}.jpg"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(encoded.tobytes())


def _read(path: Path) -> npt.NDArray[Any]:
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError(f"{path} is not a photograph that OpenCV can read.")
    return image
