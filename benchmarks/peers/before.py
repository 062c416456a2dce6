"""The same cases for two states of this repository: each side of ours beside itself in another checkout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.peers.cases import PeerCase, Target
from benchmarks.peers.sides import Side

AT_LEAST = 0.97
"""Of the rate before: what is slower than that is to be looked at."""
LAUNCHES_BEFORE = 5
"""Differences of a few percent are looked for, and two starts of the same code can differ by ten."""


def name_before(name: str) -> str:
    """Return the name of a side of the other checkout."""
    return f"{name}, before"


def sides_before(sides: Mapping[str, Side], checkout: Path) -> dict[str, Side]:
    """Return our sides once more, run from the code of another checkout, whose benchmarks know the same cases."""
    return {
        name_before(name): replace(side, checkout=str(checkout.resolve()))
        for name, side in sides.items()
        if side.kind == "ours" and not side.checkout
    }


def case_before(case: PeerCase, sides: Mapping[str, Side]) -> PeerCase:
    """Return a case in which each side of ours meets only itself in the other checkout."""
    ours = [name for name in case.sides if sides[name].kind == "ours"]
    both = tuple(each for name in ours for each in (name, name_before(name)))
    targets = tuple(Target(name, name_before(name), AT_LEAST) for name in ours)
    return replace(case, sides=both, targets=targets, bounds={})
