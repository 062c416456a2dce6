"""What tests of AutoOrder share."""

from __future__ import annotations

import pytest

from tests.unit.autoorder.meter import count_calls


@pytest.fixture
def on_the_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no load on a machine decide what a look finds."""
    count_calls(monkeypatch)
