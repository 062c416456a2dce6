"""The hidden row that travels beside each element through the graph: its positions and its random key."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pecan_ray.engines.positions import Part, join
from pecan_ray.plan.splits import OUTPUT_BITS, Lease
from pecan_ray.sampling.random_keys import graph_element_key, graph_operator_key

# Places in a row: the split and element; which of its outputs this is, [BEGIN, END); which of them are asked for,
# [LOW, HIGH); two numbers that seed its random functions; the size of the batch that it is meant for, or 0.
BRANCH, REPETITION, SPLIT, ELEMENT, BEGIN, END, LOW, HIGH, KEY, KEY_HIGH, SIZE = range(11)
WIDTH = SIZE + 1
OUTPUTS = 1 << OUTPUT_BITS

Rows = npt.NDArray[np.int64]


def rows_of(lease: Lease, element: int, parts: list[Part], seed: int | None) -> list[list[int]]:
    """Return one row for each interval of an element's outputs that is asked for; without a seed there is no key."""
    branch, pass_index, split = lease.key
    key = _element_key(lease, element, seed)
    base = element << OUTPUT_BITS
    return [
        [branch, pass_index, split, element, 0, OUTPUTS, start - base, stop - base, *key, 0] for _, start, stop in parts
    ]


def rows_of_run(lease: Lease, first: int, stop: int, seed: int | None) -> Rows:
    """Return the rows of consecutive elements of which everything is asked for."""
    rows = np.zeros((stop - first, WIDTH), np.int64)
    rows[:, BRANCH], rows[:, REPETITION], rows[:, SPLIT] = lease.key
    rows[:, ELEMENT] = np.arange(first, stop)
    # BEGIN and LOW are 0: `np.zeros` has set them.
    rows[:, END] = rows[:, HIGH] = OUTPUTS
    if seed is not None:
        rows[:, KEY : KEY_HIGH + 1] = [_element_key(lease, element, seed) for element in range(first, stop)]
    return rows


def _element_key(lease: Lease, element: int, seed: int | None) -> tuple[int, int]:
    if seed is None:
        return 0, 0
    first, second = graph_element_key(seed, lease, element)
    return _signed(first), _signed(second)


def row_parts_of(rows: Rows) -> list[Part]:
    """Return the positions that each row stands for."""
    found: list[Part] = []
    for row in rows.reshape(-1, WIDTH).tolist():
        base = row[ELEMENT] << OUTPUT_BITS
        key = (row[BRANCH], row[REPETITION], row[SPLIT])
        found.append((key, base + max(row[BEGIN], row[LOW]), base + min(row[END], row[HIGH])))
    return found


def parts_of(rows: Rows) -> list[Part]:
    """Return the positions that rows stand for; those of neighbours are one interval."""
    found: list[Part] = []
    join(found, row_parts_of(rows))
    return found


def op_key(name: str) -> tuple[int, int]:
    """Return what an operator's name adds to an element's key."""
    first, second = graph_operator_key(name)
    return _signed(first), _signed(second)


def _signed(word: int) -> int:
    # Graphs have signed integers, in which the same bits are another number.
    return word - (1 << 64) if word >= 1 << 63 else word


def as_rows(value: Any) -> Rows:
    """Return what came out of a graph as an array of rows."""
    rows: Rows = np.asarray(value, np.int64)
    return rows
