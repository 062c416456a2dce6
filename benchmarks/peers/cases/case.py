"""What a case is: a recipe, the sides that run it, and the ratios that are to be reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.peers.recipe import Recipe


@dataclass(frozen=True)
class Target:
    """Ours against a peer: the ratio to be reached, or None where it is only told."""

    ours: str
    peer: str
    ratio: float | None = None


@dataclass(frozen=True)
class PeerCase:
    """One comparison."""

    key: str
    title: str
    unit: str
    """Of an element, in the plural."""
    recipe: Callable[[str], Recipe]
    """Given the folder of photographs (empty: derived ones)."""
    sides: tuple[str, ...]
    targets: tuple[Target, ...]
    bounds: Mapping[str, str] = field(
        default_factory=lambda: {"pecan python": "threads", "pecan tensorflow": "tf.data, fused"}
    )
    """The sides that ours cannot be faster than: the same functions, without any way from one process to another."""
    first_batch: bool = False
    """Measure the time to the first batch, in a fresh process each round, instead of the rate."""
