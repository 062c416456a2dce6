"""A module that seeds a global generator when it is imported, as modules of augmentations do."""

from __future__ import annotations

import random
from typing import Any

random.seed(1234)


def draw(row: dict[str, Any]) -> dict[str, Any]:
    """Add a number of the global generator."""
    return {**row, "drawn": random.getrandbits(62)}
