"""Outputs of an element, each with its share of the element's positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pecan_ray.engines.items import Item
from pecan_ray.engines.positions import Part, SkippedPositions
from pecan_ray.plan.splits import OUTPUT_BITS


class ElementOutput(NamedTuple):
    """An output on its way through a chain, and the positions of its element that it stands for."""

    value: Any
    output: int
    width: int


def split_into_parts(item: Item, pieces: Iterable[ElementOutput], skipped_positions: SkippedPositions) -> list[Item]:
    """Give each output the missing ones of its positions; drop outputs that were delivered before."""
    first = at = first_position(item)
    items, filtered = [], []
    for piece in pieces:
        begin = (item.element << OUTPUT_BITS) + piece.output
        filtered += within(item.parts, at, begin)
        at = begin + piece.width
        parts = within(item.parts, begin, at)
        if parts:
            items.append(output_of(item, piece, parts))
    # Positions between and behind outputs were filtered; if nobody reported them, the epoch would wait for
    # them.
    skipped_positions.add(filtered + within(item.parts, at, first + item.width))
    return items


def evenly(item: Item, values: list[Any]) -> list[ElementOutput]:
    """Divide the positions of an item evenly among values: the same however often it is computed."""
    bounds = [item.width * number // max(len(values), 1) for number in range(len(values) + 1)]
    return [
        ElementOutput(value, item.output + begin, end - begin)
        for value, begin, end in zip(values, bounds, bounds[1:], strict=False)
    ]


def output_of(item: Item, piece: ElementOutput, parts: list[Part]) -> Item:
    """Return an output of an item as an item of its own."""
    width = piece.width if item.width else 0
    return Item(piece.value, parts, item.lease, item.element, piece.output, width, partial=item.partial, rank=item.rank)


def first_position(item: Item) -> int:
    """Return the first position that an item stands for, missing or not."""
    return (item.element << OUTPUT_BITS) + item.output


def within(parts: list[Part], begin: int, end: int) -> list[Part]:
    """Return what of the parts lies in [begin, end)."""
    return [(key, max(a, begin), min(b, end)) for key, a, b in parts if a < end and b > begin]
