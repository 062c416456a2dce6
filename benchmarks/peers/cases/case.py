"""What a case is: a recipe, the sides that run it, and the ratios that are to be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.recipe import Recipe


@dataclass(frozen=True)
class Target:
    """Ours against a peer: the ratio to be reached, or None where it is only told."""

    ours: str
    peer: str
    ratio: float | None = None


@dataclass(frozen=True)
class Case:
    """One comparison."""

    key: str
    title: str
    unit: str
    """Of an element, in the plural."""
    recipe: Callable[[str], Recipe]
    """Given the folder of photographs (empty: derived ones)."""
    sides: tuple[str, ...]
    targets: tuple[Target, ...]
    first_batch: bool = False
    """Measure the time to the first batch, in a fresh process each round, instead of the rate."""
