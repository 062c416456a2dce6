"""Rows of tokens, made of the sequences of several elements; each row carries the positions of the tokens in it.

An element's positions are divided evenly among its tokens, as `flat_map` divides them among outputs.  So a row that was
delivered names exactly its tokens, whichever elements it was made of: the rest of a group can be packed with any other
elements, by any worker, and no token is lost or repeated.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pecan_ray.engines.fill_value import fill_value
from pecan_ray.engines.items import Item, ItemIterator
from pecan_ray.engines.positions import Part, SkippedPositions
from pecan_ray.engines.python.element_outputs import first_position, within
from pecan_ray.engines.python.operators import mapped
from pecan_ray.engines.python.threads import Threads
from pecan_ray.errors import OutputTypeError
from pecan_ray.plan.operators import Pack
from pecan_ray.plan.splits import Array
from pecan_ray.sampling.packing import PackedSegment, pack_rows
from pecan_ray.sampling.random_keys import element_key, generator


@dataclass(frozen=True)
class MissingTokens:
    """Consecutive tokens of an element that are to be delivered."""

    item: Item
    tokens: Array
    """All tokens of the element."""
    first: int
    """Number of the first token that is missing."""
    end: int
    """Number behind that of the last missing token."""
    parts: list[Part]
    """The positions that these tokens stand for."""

    def positions(self, piece: PackedSegment) -> list[Part]:
        """Return the positions of a piece; the first and the last one take what is left at the ends."""
        is_last = self.first + piece.stop == self.end
        if not self.item.width:
            return self.parts if is_last else []
        (_, start, stop), *_ = self.parts
        # A token's positions are rounded down; the first piece begins where the lease does, or positions
        # would be left over.
        begin = self.position(self.first + piece.start) if piece.start else start
        return within(self.parts, begin, stop if is_last else self.position(self.first + piece.stop))

    def position(self, token: int) -> int:
        """Return the first position of a token."""
        width = self.item.width or len(self.tokens)
        return first_position(self.item) + token * width // len(self.tokens)


def packed(
    items: ItemIterator, op: Pack, seed: int, skipped_positions: SkippedPositions, pool: Threads | None
) -> ItemIterator:
    """Pack the tokens of `among` elements at a time into rows, which come in a random order."""
    return mapped(_groups(items, op), functools.partial(_rows, op, seed, skipped_positions), pool)


def _groups(items: ItemIterator, op: Pack) -> ItemIterator:
    """Collect elements; a group is an item whose members keep their values."""
    members: list[Item] = []
    for item in items:
        if item is None:
            yield None
            continue
        members.append(item)
        if len(members) == op.among:
            yield _group(members, op)
            members = []
    if members:
        yield _group(members, op)


def _group(members: list[Item], op: Pack) -> Item:
    first = members[0]
    if op.checks_others and len(members) > 1:
        _check_others(members, op)
    value = {name: [member.value[name] for member in members] for name in (op.on, *op.along)}
    return Item(value, [], first.lease, first.element, first.output, members=members)


def _check_others(members: Sequence[Item], op: Pack) -> None:
    """Raise OutputTypeError for a column that has a number for each token in all elements, and that no row would have.

    One element alone says nothing: a list may be as long as its tokens by chance.
    """
    counts = [len(member.value[op.on]) for member in members]
    for name in members[0].value:
        if name == op.on or [_numbers_in(member.value.get(name)) for member in members] != counts:
            continue
        raise OutputTypeError(
            f"{op.name}: column {name!r} has a number for each token of {op.on!r} in all {len(members)} elements from "
            f"{members[0].where()} on, and no row would have it. Pack it along, with a value that stands for padding "
            f"(along={{{name!r}: 0}}), or leave such columns out (along={{}}).",
            op=op.name,
            column=name,
            ends_job=True,
        )


def _numbers_in(value: Any) -> int:
    """Return how many numbers a list holds; -1 for what is no list of numbers."""
    if isinstance(value, list) and value and not isinstance(value[0], (bool, int, float)):
        return -1
    numbers = isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")
    return len(value) if numbers and np.ndim(value) == 1 else -1


def _rows(op: Pack, seed: int, skipped_positions: SkippedPositions, group: Item) -> list[Item]:
    """Return the rows of a group; positions without tokens yield nothing.

    Packing begins rows with the longest sequences, so rows are mixed: else each group would run from long to short.
    """
    there = _with_tokens(op, skipped_positions, group)
    if not there:
        return []
    dtypes = {name: _common_dtype(name, there, op, group) for name in (op.on, *op.along)}
    packing = pack_rows([one.end - one.first for one in there], op.length)
    generator(element_key(seed, group.lease, group.element, group.output, op.name)).shuffle(packing)
    return [_row([(there[piece.sequence], piece) for piece in pieces], op, dtypes) for pieces in packing]


def _common_dtype(name: str, sequences: Sequence[MissingTokens], op: Pack, group: Item) -> np.dtype[Any]:
    """Return a dtype that holds a column of all; NumPy makes floats of int64 beside uint64."""
    dtypes = [one.item.value[name].dtype for one in sequences]
    dtype = np.result_type(*dtypes)
    # Floats that the user has are kept; floats that NumPy makes of integers would round large tokens.
    if dtype.kind in "iub" or any(one.kind == "f" for one in dtypes):
        return dtype
    kinds = ", ".join(sorted(set(map(str, dtypes))))
    raise OutputTypeError(
        f"{op.name}: no type of whole numbers holds tokens of {kinds}, which are among the {op.among} elements from "
        f"{group.where()} on. Cast column {name!r} to one type by a map before.",
        op=op.name,
        column=name,
        ends_job=True,
    )


def _with_tokens(op: Pack, skipped_positions: SkippedPositions, group: Item) -> list[MissingTokens]:
    """Return the sequences of a group that hold missing tokens; the other ones are noted as skipped."""
    missing = [one for member in group.members or () for one in _missing_tokens(member, op.on)]
    for one in missing:
        if one.first == one.end:
            skipped_positions.add(one.parts)
    return [one for one in missing if one.first < one.end]


def _missing_tokens(item: Item, on: str) -> Iterator[MissingTokens]:
    tokens: Array = item.value[on]
    count, width = len(tokens), item.width
    if not width:  # made of several elements: the plan runs as a whole, where positions tell nothing
        yield MissingTokens(item, tokens, 0, count, item.parts)
        return
    begin = first_position(item)
    for key, start, stop in item.parts:
        # The first tokens whose positions begin there or behind.
        first, end = (-(-(place - begin) * count // width) for place in (start, stop))
        yield MissingTokens(item, tokens, first, end, [(key, start, stop)])


def _row(pieces: list[tuple[MissingTokens, PackedSegment]], op: Pack, dtypes: Mapping[str, np.dtype[Any]]) -> Item:
    """Return a row of tokens, of the number that a sequence has within the row, and of places within its part of it."""
    tokens = np.full(op.length, fill_value(op.padding, dtypes[op.on], op.on, op.name), dtypes[op.on])
    along = {
        name: np.full(op.length, fill_value(padding, dtypes[name], name, op.name), dtypes[name])
        for name, padding in op.along.items()
    }
    segments, positions = np.zeros(op.length, np.int32), np.zeros(op.length, np.int32)
    parts: list[Part] = []
    at = 0
    for number, (sequence, piece) in enumerate(pieces, start=1):
        first, end = sequence.first + piece.start, sequence.first + piece.stop
        to = at + piece.tokens
        tokens[at:to] = sequence.tokens[first:end]
        for name, column in along.items():
            column[at:to] = sequence.item.value[name][first:end]
        segments[at:to] = number
        positions[at:to] = np.arange(piece.tokens)
        parts += sequence.positions(piece)
        at = to
    sequence, piece = pieces[0]
    item = sequence.item
    # Named by its first token, which is in no other row: so random numbers behind differ from row to row.
    output = item.output + sequence.position(sequence.first + piece.start) - first_position(item)
    value = {op.on: tokens, **along, "segment": segments, "position": positions}
    return Item(value, parts, item.lease, item.element, output)
