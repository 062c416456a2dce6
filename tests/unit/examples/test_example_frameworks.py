"""The example of several libraries learns its line with each of them."""

from __future__ import annotations

import pytest

from examples.frameworks import LOOPS


@pytest.mark.parametrize("library", [name for name in LOOPS if name != "ray-train"])
def test_a_line_is_learned(library: str) -> None:
    if library != "asyncio":
        pytest.importorskip({"lightning": "pytorch_lightning"}.get(library, library))
    assert LOOPS[library](debug=True) < 0.01
