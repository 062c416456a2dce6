"""Token sequences that are packed into rows: what `PecanPipeline.pack` does to each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TokensAlone:
    """An element's tokens as one array, and no other column but those that have a value for each token."""

    on: str
    along: tuple[str, ...] = ()
    others: bool = False
    """All other columns stay too, so that they can be looked at."""

    def __call__(self, element: dict[str, Any]) -> dict[str, Any]:
        """Return the tokens; raises TypeError for what is no sequence of whole numbers."""
        if self.on not in element:
            raise KeyError(f"pack(on={self.on!r}): there is no such column; there are {sorted(element)}")
        value = element[self.on]
        if isinstance(value, (int, np.integer)):  # of a feature with one value
            value = [value]
        tokens = np.asarray(value)
        if tokens.ndim == 1 and not tokens.size:  # an empty list is one of floats to NumPy
            tokens = tokens if tokens.dtype.kind in "iu" else np.zeros(0, np.int64)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise TypeError(
                f"pack(on={self.on!r}) needs a list of whole numbers, but got {tokens.dtype}{list(tokens.shape)}"
            )
        others = element if self.others else {}
        # Other columns go by default: rows are cut out of several elements, and a label of one would stand
        # for all.
        return {**others, self.on: tokens, **{name: self._along(name, element, len(tokens)) for name in self.along}}

    def _along(self, name: str, element: dict[str, Any], count: int) -> Any:
        """Return the values of another column, one for each token; a single number stands for all tokens."""
        if name not in element:
            raise KeyError(f"pack(along=...): there is no column {name!r}; there are {sorted(element)}")
        values = np.asarray(element[name])
        if not values.size and not count:
            values = np.zeros(0, values.dtype if values.dtype.kind in "biuf" else np.int64)
        if values.dtype.kind not in "biuf" or values.ndim > 1 or (values.ndim and len(values) != count):
            raise ValueError(
                f"pack(along=...): column {name!r} is {values.dtype}{list(values.shape)}, but it needs a number for "
                f"each of the {count} tokens in {self.on!r}, or one for all"
            )
        return values if values.ndim else np.full(count, values)
