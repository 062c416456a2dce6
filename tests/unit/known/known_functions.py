"""What the tests of known functions share: photographs, and a comparison of a run at once with the functions."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import pytest

from benchmarks import library_transforms
from pecan_ray import images
from pecan_ray.known.detect_steps import known_functions
from pecan_ray.known.steps import KnownRun
from pecan_ray.plan.operators import wants_rng


def import_torchvision() -> None:
    """Import torchvision, or skip what needs it."""
    pytest.importorskip("torch")
    try:
        library_transforms.import_torchvision()
    except ImportError:
        pytest.skip("torchvision is not installed", allow_module_level=True)


def photograph(height: int = 400, width: int = 500, seed: int = 0) -> bytes:
    """A smooth picture in colours as a JPEG."""
    rough = np.random.default_rng(seed).integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8)
    smooth = cv2.GaussianBlur(cv2.resize(rough, (width, height)), (0, 0), 2)
    return encode(smooth, cv2.IMWRITE_JPEG_QUALITY, 90)


def encode(image: Any, *settings: int, kind: str = ".jpg") -> bytes:
    return bytes(cv2.imencode(kind, image, list(settings))[1])


def generators(seed: int) -> Callable[[str], np.random.Generator]:
    """Random numbers by the name of an operator."""
    return lambda name: np.random.default_rng((seed, *name.encode()))


def one_by_one(fns: Sequence[Any], value: Any, seed: int) -> Any:
    """What functions make of a value, as in a pipeline."""
    draw = generators(seed)
    for number, fn in enumerate(fns):
        value = fn(value, rng=draw(f"op{number}")) if wants_rng(fn) else fn(value)
    return value


def found(fns: Sequence[Any], *, reduces: bool, decodes: bool = True) -> tuple[KnownRun, list[str]] | None:
    """Functions as one, and what is done at once; None if there is nothing to do at once."""
    named = [(f"op{number}", fn) for number, fn in enumerate(fns)]
    return known_functions(named, decodes=decodes, reduces=reduces)


def at_once(fns: Sequence[Any], *, reduces: bool, decodes: bool = True) -> KnownRun:
    """Known functions as one, as a worker gets it."""
    known = found(fns, reduces=reduces, decodes=decodes)
    assert known is not None
    run = pickle.loads(pickle.dumps(known[0]))
    assert isinstance(run, KnownRun)
    return run


def usual(fns: Sequence[Any], encoded: bytes, seed: int) -> Any:
    """What functions behind a decoder make of a photograph."""
    return one_by_one(fns, images.Decode()(encoded), seed)
