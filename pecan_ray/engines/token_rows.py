"""Token sequences that are packed into rows: the functions that `PecanPipeline.pack` maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pecan_ray.sampling.packing import pack_rows


@dataclass(frozen=True)
class TokensAlone:
    """An element's tokens, in a list of one array: a batch holds such lists whatever their lengths."""

    on: str

    def __call__(self, element: dict[str, Any]) -> dict[str, Any]:
        """Return the tokens; raises TypeError for what is no sequence of whole numbers."""
        if self.on not in element:
            raise KeyError(f"pack(on={self.on!r}): there is no such column; there are {sorted(element)}")
        value = element[self.on]
        tokens = np.asarray(value if len(value) else np.zeros(0, np.int64))
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise TypeError(
                f"pack(on={self.on!r}) needs a list of whole numbers, but got {tokens.dtype}{list(tokens.shape)}"
            )
        return {self.on: [tokens]}


@dataclass(frozen=True)
class PackedRows:
    """Rows of tokens made of the sequences of a batch."""

    length: int
    on: str
    padding: int

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return rows: of the tokens, of the number that a sequence has within its row, and of places within it."""
        sequences = [held[0] for held in batch[self.on]]
        rows = pack_rows([len(tokens) for tokens in sequences], self.length)
        dtype = np.result_type(*sequences)
        if dtype.kind not in "iu":  # NumPy makes floats of int64 beside uint64
            kinds = sorted({str(tokens.dtype) for tokens in sequences})
            raise TypeError(f"pack(on={self.on!r}): no type of whole numbers holds tokens of {', '.join(kinds)}")
        shape = (len(rows), self.length)
        tokens = np.full(shape, self.padding, dtype)
        segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for row, pieces in enumerate(rows):
            at = 0
            for number, piece in enumerate(pieces, start=1):
                end = at + piece.tokens
                tokens[row, at:end] = sequences[piece.sequence][piece.start : piece.stop]
                segments[row, at:end] = number
                positions[row, at:end] = np.arange(piece.start, piece.stop)
                at = end
        return {self.on: tokens, "segment": segments, "position": positions}
