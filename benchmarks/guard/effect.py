"""How far an exchange moves results (E) beside what its operators do to them (D).

With `u` the user's result, `x` the exchanged one and `w` that without one of the two operators, E = |x - u| and
D = |u - w|, as means over a block of an array.  The smaller D of the two operators counts.  It is

- at least the D of the whole element, a quarter of the D of the whole sample, and what rounding does: where an operator
  does next to nothing, rounding would be many times that;
- at most what the block tells apart, its values' mean distance from their mean (a quarter of the column's, if that is
  more): an operator that inverts a picture, or divides by 255, moves results by far, and what else it does, a blur or a
  text, would be nothing beside that.  The column's spread stands for the D of an operator without which results have
  another form.

This is written without the package's own comparison, which it judges.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.guard.exchange import Exchange
from benchmarks.guard.ops import GuardStep
from pecan_ray.engines.foreign import as_array
from pecan_ray.plan.splits import Element

BLOCKS = 8
"""An array of two large dimensions or more is compared in 8 x 8 blocks; one of one dimension in 8."""
LEAST_SIDE = 32
"""Dimensions below are not cut into blocks."""
FEW = 64
"""Arrays up to this size are one block: boxes, sizes, labels."""
SHARE_OF_SAMPLE = 0.25
"""D counts as at least this share of the sample's."""
IDENTITY_BYTES = 4
"""Whole numbers of at least so many bytes are labels, tokens and counts: one is not near another one."""


@dataclass(frozen=True)
class ExchangeEffect:
    """What an exchange does to results."""

    ratio: float
    """The largest E / D of all blocks, columns and elements; infinity where results have another form, or where
    something changes that has no size: texts, labels, which elements there are."""
    typical: float = 0.0
    """The median over elements."""
    mean: float = 0.0
    """The largest of whole elements, without blocks."""
    where: str = ""
    failed: str = ""
    """Why the exchanged order does not run."""
    proved: bool = True
    """Whether both operators change something, in the same element."""


def effect(exchange: Exchange, given: Sequence[Element], seed: int = 0) -> ExchangeEffect:
    """Run an exchange in both orders, and without either operator, and compare."""
    elements = [{name: one[name] for name in exchange.columns} for one in given]
    before, first, second, behind = exchange.before, exchange.first, exchange.second, exchange.behind
    user = run([*before, first, second, *behind], elements, seed)
    try:
        other = run([*before, second, first, *behind], elements, seed)
    except Exception as error:  # whatever an operator raises of what it is not made for: no guard needs to look at it
        return ExchangeEffect(
            math.inf, math.inf, math.inf, failed=f"{type(error).__name__}: {error}".partition("\n")[0][:90]
        )
    if [origin for origin, _ in user] != [origin for origin, _ in other]:
        return ExchangeEffect(math.inf, math.inf, math.inf, f"{len(user)} elements, {len(other)} exchanged")
    without = [dict(_attempt([*before, *rest, *behind], elements, seed)) for rest in ((second,), (first,))]
    changed = [[origin not in w or _differs(one, w[origin]) for origin, one in user] or [True] for w in without]
    proved = any(map(all, zip(*changed, strict=True))) or any(len(w) != len(user) for w in without)
    columns = _columns(user, other, without)
    if isinstance(columns, str):
        return ExchangeEffect(math.inf, math.inf, math.inf, columns, proved=proved)
    blocks = np.zeros((max(1, len(columns)), max(1, len(user))))
    whole = blocks.copy()
    for row, one in enumerate(columns.values()):
        blocks[row], whole[row] = one.ratios()
    at = np.unravel_index(int(np.argmax(blocks)), blocks.shape)
    where = f"{list(columns)[at[0]][1:]!r} of element {at[1]}" if blocks.max() > 0 else ""
    return ExchangeEffect(
        float(blocks.max()), float(np.median(blocks.max(0))), float(whole.max()), where, proved=proved
    )


def _differs(one: Element, other: Element) -> bool:
    mine, its = _leaves(one), _leaves(other)
    return mine.keys() != its.keys() or any(
        not isinstance(value, np.ndarray)
        or not isinstance(its[name], np.ndarray)
        or value.dtype != its[name].dtype
        or not np.array_equal(value, its[name], equal_nan=value.dtype.kind == "f")
        for name, value in mine.items()
        if isinstance(value, np.ndarray) or value != its[name]
    )


@dataclass
class _MovedColumn:
    """A column of all elements: the user's values, E by blocks, and the D of both operators where they have one."""

    values: list[np.ndarray]
    moved: list[np.ndarray]
    done: list[list[np.ndarray | None]]

    def ratios(self) -> tuple[Any, Any]:
        """Return E / D of each element: its worst block's, and that of the whole."""
        spread = self._spread()
        means = [self._mean_done(number) for number in range(len(self.done[0]))]
        worst, whole = [], []
        for value, moved, done in zip(self.values, self.moved, self.done, strict=True):
            unit = _unit(value)
            if float(moved.max(initial=0.0)) == 0.0:
                worst.append(0.0)
                whole.append(0.0)
                continue
            most = np.maximum(_block_spread(value), SHARE_OF_SAMPLE * spread) if spread else math.inf
            sizes = [self._size(one, mean, unit, most, spread) for one, mean in zip(done, means, strict=True)]
            worst.append(max(float((moved / np.maximum(size, 1e-30)).max()) for size in sizes))
            whole.append(max(float(moved.mean() / max(float(np.mean(size)), 1e-30)) for size in sizes))
        return worst, whole

    @staticmethod
    def _size(done: np.ndarray | None, sample: float, unit: float, most: Any, spread: float) -> np.ndarray:
        if done is None:
            return np.array([max(spread, unit)])
        least = max(float(done.mean()), SHARE_OF_SAMPLE * sample, unit)
        return np.asarray(np.maximum(np.minimum(np.maximum(done, least), most), unit))

    def _mean_done(self, number: int) -> float:
        found = [float(done.mean()) for one in self.done if (done := one[number]) is not None]
        return float(np.mean(found)) if found else 0.0

    def _spread(self) -> float:
        """Return the mean distance of all values from their mean."""
        finite = [one[np.isfinite(one)].astype(np.float64) for one in self.values]
        count = sum(one.size for one in finite)
        if not count:
            return 0.0
        mean = sum(float(one.sum()) for one in finite) / count
        return float(sum(float(np.abs(one - mean).sum()) for one in finite) / count)


def _columns(user: Any, other: Any, without: Sequence[dict[Any, Any]]) -> dict[str, _MovedColumn] | str:
    """Return E and D of each column; the first difference in form, as a text, where there is one."""
    found: dict[str, _MovedColumn] = {}
    for (origin, one), (_, its) in zip(user, other, strict=True):
        mine, exchanged = _leaves(one), _leaves(its)
        removed = [_leaves(w[origin]) if origin in w else {} for w in without]
        if mine.keys() != exchanged.keys():
            return "other columns"
        for name, value in mine.items():
            again = exchanged[name]
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
                if type(value) is not type(again) or not bool(np.all(value == again)):
                    return f"{name[1:]!r} is another text"
                continue
            if not _alike(value, again):
                return f"{name[1:]!r} has another form"
            if value.dtype.kind in "iu" and value.dtype.itemsize >= IDENTITY_BYTES and not np.array_equal(value, again):
                return f"{name[1:]!r} has other whole numbers"
            column = found.setdefault(name, _MovedColumn([], [], []))
            column.values.append(value)
            column.moved.append(_blocks(value, again))
            column.done.append([_blocks(value, one[name]) if _alike(value, one.get(name)) else None for one in removed])
    return found


ElementPath = tuple[int, ...]


def run(steps: Sequence[GuardStep], given: Sequence[Element], seed: int) -> list[tuple[ElementPath, Element]]:
    """Run operators on elements; each draws from a generator of its own, and libraries from the global ones."""
    steps = copy.deepcopy(list(steps))
    _seed_all(seed)
    current: list[tuple[ElementPath, Element]] = [((number,), one) for number, one in enumerate(given)]
    made: list[tuple[ElementPath, Element]] = []
    for origin, one in current:
        made.extend(_through(steps, (origin, copy.deepcopy(one)), seed))
    return made


def _through(
    steps: Sequence[GuardStep], item: tuple[ElementPath, Element], seed: int
) -> list[tuple[ElementPath, Element]]:
    items = [item]
    for step in steps:
        items = [found for origin, one in items for found in _apply(step, origin, one, seed)]
    return items


def _apply(step: GuardStep, origin: ElementPath, one: Element, seed: int) -> Iterator[tuple[ElementPath, Element]]:
    rng = np.random.default_rng((seed, zlib.crc32(step.name.encode()), *origin))
    value = one if step.column is None else one[step.column]
    made = step.fn(value, rng) if step.random else step.fn(value)
    if step.kind == "filter":
        if made:
            yield origin, one
        return
    several = [made] if step.kind == "map" else list(made)
    for number, part in enumerate(several):
        place = origin if step.kind == "map" else (*origin, number)
        yield place, (part if step.column is None else {**one, step.column: part})


def _seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # for functions that draw from it
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def _attempt(steps: Sequence[GuardStep], given: Sequence[Element], seed: int) -> list[tuple[ElementPath, Element]]:
    """Run what may fail: what stands behind needs the operator that is left out."""
    try:
        return run(steps, given, seed)
    except Exception:  # without it there is nothing to compare with
        return []


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return arrays, numbers and texts by where they lie in nested values."""
    if isinstance(value, dict):
        return {key: leaf for name, one in value.items() for key, leaf in _leaves(one, f"{path}.{name}").items()}
    array = as_array(value)
    if array is not None:
        return {path: array}
    if isinstance(value, (list, tuple)):
        return {key: leaf for n, one in enumerate(value) for key, leaf in _leaves(one, f"{path}[{n}]").items()}
    return {path: np.asarray(value) if isinstance(value, (bool, int, float, np.generic)) else value}


def _alike(user: np.ndarray, one: Any) -> bool:
    return isinstance(one, np.ndarray) and one.dtype == user.dtype and one.shape == user.shape


def _unit(user: np.ndarray) -> float:
    """Return what rounding alone does: a unit of whole numbers in pictures, a part in 100,000 of a float."""
    if user.dtype.kind in "iub":
        return 1.0 if user.size > FEW else 1e-9
    finite = np.abs(user[np.isfinite(user)])
    eps = 1e-3 if user.dtype == np.float16 else 1e-5
    return max(eps * float(finite.max(initial=0.0)), 1e-9)


def _block_spread(user: np.ndarray) -> np.ndarray:
    """Return how far values are from the mean of their block and channel."""
    values = np.nan_to_num(user.astype(np.float64), posinf=0.0, neginf=0.0)
    means = values if user.size > FEW else np.full_like(values, values.mean() if values.size else 0.0)
    for axis in _large_axes(user):
        bounds = np.linspace(0, user.shape[axis], BLOCKS, endpoint=False).astype(int)
        sizes = np.diff([*bounds, user.shape[axis]])
        sums = np.add.reduceat(means, bounds, axis=axis)
        shape = [1] * user.ndim
        shape[axis] = BLOCKS
        means = np.repeat(sums / sizes.reshape(shape), sizes, axis=axis)
    return _blocks(values, means)


def _large_axes(array: np.ndarray) -> list[int]:
    """Return the two longest axes, if they are long enough to be cut into blocks."""
    return sorted(int(axis) for axis in np.argsort(array.shape)[::-1][:2] if array.shape[axis] >= LEAST_SIDE)


def _blocks(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the mean absolute difference of each block; what is no number in one of them alone is far apart."""
    first, second = a.astype(np.float64), b.astype(np.float64)
    apart = np.abs(first - second)
    apart = np.where(np.isnan(first) & np.isnan(second), 0.0, np.where(np.isnan(apart), 1e9, apart))
    if a.size <= FEW:
        return apart.reshape(-1).mean(keepdims=True) if a.size else np.zeros(1)
    large = _large_axes(a)
    for axis in large:
        bounds = np.linspace(0, apart.shape[axis], BLOCKS, endpoint=False).astype(int)
        sizes = np.diff([*bounds, apart.shape[axis]])
        shape = [1] * apart.ndim
        shape[axis] = BLOCKS
        apart = np.add.reduceat(apart, bounds, axis=axis) / sizes.reshape(shape)
    others = tuple(axis for axis in range(apart.ndim) if axis not in large)
    return apart.mean(axis=others) if others else apart
