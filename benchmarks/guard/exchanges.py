"""All exchanges of neighbouring operators, with what each does to what the user meant."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.guard import (
    of_compounds,
    of_elements,
    of_pillow,
    of_pixels,
    of_sounds,
    of_torchvision,
    of_traces,
    of_words,
)
from benchmarks.guard.exchange import Exchange, GuardHalf


def all_exchanges(half: GuardHalf | None = None) -> Iterator[Exchange]:
    """Yield all exchanges whose libraries are installed, or one half of them."""
    for module in (of_pixels, of_pillow, of_torchvision, of_elements, of_sounds, of_words, of_compounds, of_traces):
        for one in module.exchanges():
            if half in (None, one.half):
                yield one


def harmless() -> Iterator[Exchange]:
    """Yield what nobody would mind."""
    return (one for one in all_exchanges() if one.label == "harmless")


def harmful() -> Iterator[Exchange]:
    """Yield what loses or changes something that the user asked for."""
    return (one for one in all_exchanges() if one.harmful)
