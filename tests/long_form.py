"""What is left to the long form of the tests: `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

SHORT = "ci"
"""Hypothesis' profile for examples in short,"""
LONG = "long"
"""and for all of them."""
SHORT_EXAMPLES = 25
"""Of a property in short: a fault that shows in one example of eight is missed in one run of thirty."""


def some_later(values: Iterable[Any], *later: Any) -> list[Any]:
    """Return a test's parameters, some of which are marked as slow: another one shows the same in short."""
    return [pytest.param(value, marks=pytest.mark.slow) if value in later else value for value in values]


def examples(count: int) -> settings:
    """Return Hypothesis' settings for a property that is tried on so many examples in long, and on few in short."""
    return settings(max_examples=count if settings().max_examples > SHORT_EXAMPLES else min(count, SHORT_EXAMPLES))
