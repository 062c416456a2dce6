"""What is left to the long form of the tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some_later(values: Iterable[Any], *later: Any) -> list[Any]:
    """Return a test's parameters, some of which are marked as slow: another one shows the same in short."""
    return [pytest.param(value, marks=pytest.mark.slow) if value in later else value for value in values]
