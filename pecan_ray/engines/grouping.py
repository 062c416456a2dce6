"""Batches of elements of one group: of one key, or of similar lengths.

Decisions: docs/decisions/batches-and-groups.md.
"""

from __future__ import annotations

import cmath
import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NoReturn, cast

import numpy as np

from pecan_ray.engines.collate import collate
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.element_errors import apply_error_policy, end_child, op_error
from pecan_ray.engines.foreign import as_array
from pecan_ray.engines.fork_tracker import forks
from pecan_ray.engines.items import Item, ItemIterator, batch_of, deep_copy
from pecan_ray.engines.padding import collate_padded
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.errors import ColumnError, ElementError, OpError, OutputTypeError, is_interrupt, join_names, to_str
from pecan_ray.options import OnError
from pecan_ray.plan.grouping import BucketByLength, GroupBy, GroupingOp
from pecan_ray.plan.operators import ELEMENTS
from pecan_ray.sampling.group_tails import tail_batches
from pecan_ray.sampling.tail_rounds import of_rank, tail_rounds


@dataclass
class OpenGroup:
    size: int
    """Elements in a batch."""
    rows: list[Item] = field(default_factory=list)


class OpenGroups:
    """The elements of each group that are in no batch yet."""

    def __init__(self, op: GroupingOp, on_error: OnError, skipped_positions: SkippedPositions) -> None:
        self._op, self._on_error, self._skipped_positions = op, on_error, skipped_positions
        # Buckets are in the order of lengths, and groups of keys in the order in which they come.
        sizes = op.sizes if isinstance(op, BucketByLength) else ()
        self._groups: dict[Hashable, OpenGroup] = {bucket: OpenGroup(size) for bucket, size in enumerate(sizes)}

    def add(self, item: Item) -> OpenGroup | None:
        """Return the group that an element is added to; None: it is left out, as the error policy says."""
        try:
            group = self._of(item)
        except ElementError as error:
            kept = item.value if self._on_error == "quarantine" else None
            apply_error_policy(item, error, self._on_error, self._skipped_positions, kept)
            return None
        group.rows.append(item)
        return group

    def take(self) -> list[OpenGroup]:
        """Take all groups out."""
        groups, self._groups = list(self._groups.values()), {}
        return groups

    def _of(self, item: Item) -> OpenGroup:
        if isinstance(self._op, BucketByLength):
            # A length that equals a boundary belongs to the longer bucket, as in tf.data.
            return self._groups[bisect_right(self._op.boundaries, length_of(item, self._op))]
        assert isinstance(self._op, GroupBy)
        key = key_of(item, self._op)
        if key not in self._groups:
            self._groups[key] = OpenGroup(_size_of(key, item, self._op))
        return self._groups[key]


def grouped(
    items: ItemIterator, op: GroupingOp, options: EngineOptions, skipped_positions: SkippedPositions
) -> ItemIterator:
    """Collect items by groups, and yield batches of one group each; or a round of them where rounds are made."""
    groups = OpenGroups(op, options.on_error, skipped_positions)
    if options.ranks is not None and isinstance(op, BucketByLength):
        return _rounds(items, op, groups, options.ranks)
    return _batches(items, op, groups, options.tail_ranks)


def _batches(items: ItemIterator, op: GroupingOp, groups: OpenGroups, ranks: int) -> ItemIterator:
    """Yield a batch of a group whenever it has enough, and at the end what is left, as the operator says.

    `ranks`: at the end of an epoch so many get equally many batches, in turn.
    """
    full: deque[OpenGroup] = deque()
    made = 0
    for item in items:
        if item is None:
            yield None
            continue
        group = groups.add(item)
        if group is None or len(group.rows) < group.size:
            continue
        full.append(replace(group))
        group.rows = []
        # Decision 170: the end of an epoch keeps batches back, because it may have to divide them among the ranks.
        ends_epoch = item.lease.passed and ranks > 1
        while len(full) > (ranks - 1 if ends_epoch else 0):
            yield _batch(full.popleft().rows, op, rank=made % ranks if ends_epoch else None)
            made += 1
    yield from _tail([*full, *groups.take()], op, ranks, made)


def _tail(left: Sequence[OpenGroup], op: GroupingOp, ranks: int, made: int) -> ItemIterator:
    """Yield batches of what is left, for each rank in turn; what is used by none comes last."""
    rows = deque((row, group.size) for group in left for row in group.rows)
    counts, sizes = [len(group.rows) for group in left], [group.size for group in left]
    batches, used = tail_batches(counts, sizes, op.rest, ranks, made)
    for number, places in enumerate(batches):
        size = rows[0][1]
        members = [rows.popleft()[0] for _ in places]
        is_used = number < used
        rank = (made + number) % ranks if ranks > 1 and is_used else None
        repeats = size - len(members) if op.rest == "fill" and is_used else 0
        members += map(_repeat_row, itertools.islice(itertools.cycle(tuple(members)), repeats))
        batch = _batch(members, op, rank=rank, partial=op.rest != "drop" or not is_used)
        yield replace(batch, repeats=repeats)


def _repeat_row(row: Item) -> Item:
    """Return an element once more: it counts as delivered where it comes first."""
    # A copy, because functions on batches may write into rows, and two rows would change at once.
    return replace(row, value=deep_copy(row.value), parts=[])


def _rounds(items: ItemIterator, op: BucketByLength, groups: OpenGroups, ranks: int) -> ItemIterator:
    """Yield a batch for each of some ranks whenever a bucket has enough for all of them."""
    for item in items:
        if item is None:
            yield None
            continue
        group = groups.add(item)
        # Decision 47: in each step all ranks have batches of one bucket, made by one worker.
        if group is not None and len(group.rows) == group.size * ranks:
            rows, group.rows = group.rows, []
            yield from _round(rows, op, ranks, partial=False)
    left = groups.take()
    if op.drop_remainder:
        yield from (_batch(group.rows, op, partial=True) for group in left if group.rows)
    else:
        yield from _rounds_of_the_rest([group.rows for group in left], op, ranks)


def _round(items: Sequence[Item], op: BucketByLength, ranks: int, *, partial: bool) -> ItemIterator:
    """Yield a batch for each rank."""
    for rank in range(ranks):
        rows = [items[place] for place in of_rank(range(len(items)), rank, ranks)]
        yield _batch(rows, op, rank=rank, partial=partial)


def _rounds_of_the_rest(buckets: Sequence[list[Item]], op: BucketByLength, ranks: int) -> ItemIterator:
    """Yield smaller batches of what fills no round, and at last what is in no round at all, which is for no rank."""
    rest = [item for rows in buckets for item in rows]
    parts = tail_rounds(list(map(len, buckets)), op.sizes, ranks)
    for elements in parts:
        yield from _round(rest[elements.start : elements.stop], op, ranks, partial=True)
    if left := rest[sum(map(len, parts)) :]:
        yield _batch(left, op, partial=True)


def _batch(rows: Sequence[Item], op: GroupingOp, *, rank: int | None = None, partial: bool = False) -> Item:
    columns: dict[str, Any]
    if isinstance(op, BucketByLength):
        columns = collate_padded(rows, op)
    elif isinstance(op, GroupBy) and op.lists:
        columns = {ELEMENTS: [row.value for row in rows]}
    else:
        columns = collate(rows, op.name)
    return replace(batch_of(rows, columns, partial), rank=rank)


def key_of(item: Item, op: GroupBy) -> Hashable:
    """Return the key of an element; raises OpError if there is none, or it is not one value that can be compared."""
    given = op.key
    found = _result(lambda: given(item.value), item, op) if callable(given) else _column(given, item, op)
    array = as_array(found)
    key: Any = found if array is None else array
    # Arrays without dimensions cannot be keys; their numbers can.
    key = key.item() if isinstance(key, (np.ndarray, np.generic)) and key.ndim == 0 else key
    if not _is_comparable(key):
        _bad(
            f"the key of {item.where()} is {to_str(key)}, but it must be one number or text, or a tuple of them",
            item,
            op,
        )
    return cast(Hashable, key)


def _is_comparable(key: Hashable) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_comparable, key))
    try:
        hash(key)
    except TypeError:
        return False
    # What never equals another value, as not-a-number, would make a group of each element.
    return not isinstance(key, (float, complex, Decimal)) or not cmath.isnan(key)


def _size_of(key: Hashable, item: Item, op: GroupBy) -> int:
    given = op.size
    if not callable(given):
        return given
    size = _result(lambda: given(key), item, op)
    if not isinstance(size, (int, np.integer)) or size < 1:
        _bad(f"size returned {to_str(size)} for the key {to_str(key)}: it must return a whole number >= 1", item, op)
    return int(size)


def length_of(item: Item, op: BucketByLength) -> int:
    """Return an element's length for bucketing: a function of it, or the first dimension of a column.

    Raises OpError if the function does, or the column has no dimension.
    """
    given = op.length
    if callable(given):
        length = _result(lambda: _as_number(given(item.value)), item, op)
        if isinstance(length, int):
            return length
        _bad(f"length returned {type(length).__name__} for {item.where()}, but it must return one number", item, op)
    value = _column(given, item, op)
    try:
        return len(value)
    except TypeError as error:
        raise OpError(
            f"{op.name}: column {given!r} of {item.where()} is {type(value).__name__}, which has no length. "
            f"If it is the length, pass length=lambda element: element[{given!r}].",
            op=op.name,
            **item.place,
            column=given,
        ) from error


def _as_number(length: Any) -> Any:
    # `int` would read a length out of a text such as "12", which is a mistake of the function.
    return length if length is None or isinstance(length, (str, bytes, bytearray)) else int(length)


def _column(name: str, item: Item, op: GroupingOp) -> Any:
    if name not in item.value:
        raise ColumnError(
            f"{op.name}: there is no column {name!r} in {item.where()}; there are {join_names(item.value)}.",
            op=op.name,
            column=name,
        )
    return item.value[name]


def _result(call: Callable[[], Any], item: Item, op: GroupingOp) -> Any:
    """Return what a user's function returns for an element; raises OpError if it fails."""
    generation = forks.generation
    try:
        found = call()
    except BaseException as error:
        if forks.generation != generation:
            end_child(op.name, item, error)
        if is_interrupt(error):
            raise
        raise op_error(op.name, item, error) from error
    if forks.generation != generation:
        end_child(op.name, item)
    return found


def _bad(what: str, item: Item, op: GroupingOp) -> NoReturn:
    raise OutputTypeError(
        f"{op.name}: {what}.",
        op=op.name,
        **item.place,
    )
