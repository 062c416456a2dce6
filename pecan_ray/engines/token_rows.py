"""Token sequences that are packed into rows: what `PecanPipeline.pack` does to each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TokensAlone:
    """An element's tokens as one array, and no other column."""

    on: str

    def __call__(self, element: dict[str, Any]) -> dict[str, Any]:
        """Return the tokens; raises TypeError for what is no sequence of whole numbers."""
        if self.on not in element:
            raise KeyError(f"pack(on={self.on!r}): there is no such column; there are {sorted(element)}")
        value = element[self.on]
        if isinstance(value, (int, np.integer)):  # of a feature with one value
            value = [value]
        tokens = np.asarray(value if len(value) else np.zeros(0, np.int64))
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise TypeError(
                f"pack(on={self.on!r}) needs a list of whole numbers, but got {tokens.dtype}{list(tokens.shape)}"
            )
        return {self.on: tokens}
