"""A module that seeds a global generator when it is imported, as modules of augmentations do."""

from __future__ import annotations

import random
from typing import Any

random.seed(1234)


def draw(i: Any) -> int:
    """Return a number of the global generator."""
    return random.getrandbits(62)
