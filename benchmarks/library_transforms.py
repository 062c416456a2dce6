"""Pipelines for `benchmarks/rewrites.py` that are written with torchvision (v2)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

SIDE = 224
DEGREES = 5.0
SHEAR = 5.7
"""In degrees: what `pecan_ray.images.RandomShear` has at most."""
OPERATORS = 32
"""torchvision has fewer of its own in C++."""


def import_torchvision() -> Any:
    """Import torchvision.

    Its wheels on the registry are built for CUDA and do not load their C++ operators beside a PyTorch for CPUs.  The
    transforms need none of them: where it asks for one, it gets a name without a function.
    """
    import torch

    for _ in range(OPERATORS):
        try:
            import torchvision
        except RuntimeError as error:
            found = re.search(r"operator (torchvision::\w+) does not exist", str(error))
            if found is None:
                raise
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            torch.library.define(found[1], "(Tensor x) -> Tensor")
        else:
            return torchvision
    raise ImportError("torchvision asks for one operator after the other")


def of_torchvision(*, turned: bool) -> Any:
    """Return what trains a ResNet50 in torchvision's own examples, `turned`: with a rotation and a shear."""
    import_torchvision()
    import torch
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    bilinear = v2.InterpolationMode.BILINEAR
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(SIDE),
            v2.RandomHorizontalFlip(),
            *([v2.RandomAffine(DEGREES, shear=SHEAR, interpolation=bilinear)] if turned else []),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def seed(transform: Any, number: int) -> None:
    """Have a transform draw what belongs to a number."""
    sys.modules["torch"].manual_seed(number)


LIBRARIES: dict[str, Callable[[], Any]] = {
    "torchvision": lambda: of_torchvision(turned=False),
    "torchvision-turned": lambda: of_torchvision(turned=True),
}
"""Makes what follows a decoder."""


def difference(functions: list[Any], others: list[Any], transform: Any, files: list[bytes]) -> float:
    """Return the mean absolute difference of what two rows of functions make of images, drawing the same numbers."""
    found = []
    for number, file in enumerate(files):
        made = []
        for row in (functions, others):
            seed(transform, number)
            value: Any = file
            for function in row:
                by_name = getattr(function, "draws_by_name", False)
                value = function(value, rng=lambda name: np.random.default_rng(0)) if by_name else function(value)
            made.append(np.asarray(value, np.float64))
        found.append(float(np.abs(made[0] - made[1]).mean()))
    return float(np.mean(found))
