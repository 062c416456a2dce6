"""How long reading from a store takes, from measurements: the g(b) of Cachew §4.4, for entries of many elements.

    seconds of a read = latency + per_element * elements + per_byte * bytes        (every coefficient >= 0)

Cachew's released code has a table of milliseconds by bytes of one row, which prices rows below 100 KB at nearly
nothing; entries here hold many elements, and small ones cost too: that is the second term.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pecan_ray.cache.checked import checked_amount, checked_count, checked_share
from pecan_ray.errors import PlanError

Numbers: TypeAlias = NDArray[np.float64]

TERMS = ((2,), (0, 2), (1, 2), (0, 1, 2), (1,), (0,), (0, 1))
"""Sets of coefficients (0 latency, 1 per element, 2 per byte) that may be positive; of equal fits the first one is
taken, so that a single measurement means a time in proportion to the bytes."""
MOST_STARTS = 120
"""Fits through as few measurements as there are coefficients that are tried for each such set."""
WORST_MISS = 0.4
"""In comparing these a larger miss (of the logarithm) is no worse: a read that was disturbed says nothing."""
MOST_ROUNDS = 40
"""Rounds of reweighting: fits settle in a few, and one that swings between two must end."""
OUTLIER = 4.685
"""Spreads from the fit at which a measurement counts no more (Tukey's biweight: 95 % as good as least squares where
there are no outliers)."""
LEAST_SPREAD = 1e-3
"""Of few measurements the fit goes through half or more, and their median miss is nothing: that makes no other one an
outlier."""


class StoreRead(NamedTuple):
    """One measured read of an entry."""

    nbytes: float
    elements: float
    seconds: float


@dataclass(frozen=True)
class StoreModel:
    """Seconds of a read as a function of its bytes and elements, by one reader."""

    latency_s: float = 0.0
    """Of each read, whatever its size."""
    per_element_s: float = 0.0
    per_byte_s: float = 0.0
    waiting: float = 0.0
    """Share of a read in which its thread needs no CPU, so that others compute: 0 for memory, near 1 for a network."""
    most_bytes_per_s: float = math.inf
    """What all readers together are given."""
    error: float | None = None
    """Two thirds of the measurements miss the model by no more than this share; None: there were too few to tell."""
    measurements: int = 0

    def __post_init__(self) -> None:
        for name in ("latency_s", "per_element_s", "per_byte_s"):
            checked_amount(f"StoreModel({name}=...)", getattr(self, name))
        checked_share("StoreModel(waiting=...)", self.waiting)
        checked_amount("StoreModel(most_bytes_per_s=...)", self.most_bytes_per_s, positive=True, endless=True)

    @classmethod
    def fit(
        cls,
        measurements: Iterable[tuple[float, float, float]],
        *,
        waiting: float = 0.0,
        most_bytes_per_s: float = math.inf,
    ) -> StoreModel:
        """Return the model of reads that were measured: (bytes, elements, seconds) each, all of them positive.

        Relative misses count, and outliers do not: of some thirty reads a fifth may have been disturbed.  What the
        measurements do not tell apart is taken for a time per byte, then for latency: vary both sizes to know more.
        """
        reads = [_checked(number, read) for number, read in enumerate(measurements)]
        if not reads:
            raise PlanError("StoreModel.fit(measurements) needs at least one (bytes, elements, seconds).")
        table = np.array(reads, dtype=np.float64)
        sizes = np.column_stack([np.ones(len(table)), table[:, 1], table[:, 0]])
        # Bytes are in millions and latencies in one: scaled, the solver's tolerances mean the same for all.
        units = sizes.max(axis=0)
        coefficients = _robust(sizes / units, table[:, 2]) / units
        misses = np.abs(table[:, 2] / (sizes @ coefficients) - 1)
        # A fit through as many measurements as it has coefficients misses nothing, which says nothing.
        known = len(np.unique(table[:, :2], axis=0)) >= np.count_nonzero(coefficients) < len(table)
        latency, per_element, per_byte = map(float, coefficients)
        return cls(
            latency_s=latency,
            per_element_s=per_element,
            per_byte_s=per_byte,
            waiting=waiting,
            most_bytes_per_s=most_bytes_per_s,
            error=float(np.quantile(misses, 2 / 3)) if known else None,
            measurements=len(table),
        )

    def read_seconds(self, nbytes: float, elements: float, reads: int = 1) -> float:
        """Return the seconds that one reader takes for so many bytes and elements, in so many reads one by one."""
        size = checked_amount("read_seconds(nbytes=...)", nbytes)
        count = checked_amount("read_seconds(elements=...)", elements)
        times = checked_count("read_seconds(reads=...)", reads, least=0)
        return self.latency_s * times + self.per_element_s * count + self.per_byte_s * size


def _checked(number: int, read: tuple[float, float, float]) -> StoreRead:
    where = f"measurement {number} of the store"
    if len(read) != len(StoreRead._fields):
        raise PlanError(f"{where} must be (bytes, elements, seconds), but got {read!r}.")
    names = zip(StoreRead._fields, read, strict=True)
    return StoreRead(*(checked_amount(f"{where}: {name}", value, positive=True) for name, value in names))


def _robust(sizes: Numbers, seconds: Numbers) -> Numbers:
    """Return the coefficients >= 0 from which few measurements differ much, relatively: reweighted least squares."""
    coefficients = _start(sizes, seconds)
    for _ in range(MOST_ROUNDS):
        scale = sizes @ coefficients
        # Logarithms: twice too long and half as long are equally wrong.
        misses = np.abs(np.log(seconds / scale))
        # By the median, which a fifth of disturbed reads hardly moves; 1.4826 makes a standard deviation of it.
        spread = max(1.4826 * float(np.median(misses)), LEAST_SPREAD)
        root = np.maximum(1 - (misses / (OUTLIER * spread)) ** 2, 0) / scale
        before, coefficients = coefficients, _non_negative(sizes * root[:, None], seconds * root)
        if np.allclose(coefficients, before, rtol=1e-9, atol=0):
            break
    return coefficients


def _start(sizes: Numbers, seconds: Numbers) -> Numbers:
    """Return the fit, of those that go exactly through a few measurements, that the others miss least."""
    # A fixed seed: equal measurements have to give equal models.
    dice = np.random.default_rng(0)
    best, least = np.zeros(sizes.shape[1]), math.inf
    for terms in TERMS:
        for rows in _few(len(seconds), len(terms), dice):
            chosen = sizes[np.ix_(rows, terms)] / seconds[list(rows), None]
            # Reads of nearly equal sizes do not tell these coefficients apart.
            if np.linalg.cond(chosen) > 1e12:
                continue
            found = np.linalg.solve(chosen, np.ones(len(rows)))
            if np.all(found >= 0):
                misses = np.abs(np.log(seconds / (sizes[:, terms] @ found)))
                miss = float(np.minimum(misses, WORST_MISS).sum())
                if miss < least - 1e-9:
                    best, least = np.zeros(sizes.shape[1]), miss
                    best[list(terms)] = found
    return best


def _few(count: int, size: int, dice: np.random.Generator) -> Iterable[tuple[int, ...]]:
    """Return sets of so many measurements: all of them, or as many by chance as are enough."""
    if math.comb(count, size) <= MOST_STARTS:
        return combinations(range(count), size)
    return [tuple(dice.choice(count, size, replace=False)) for _ in range(MOST_STARTS)]


def _non_negative(rows: Numbers, goal: Numbers) -> Numbers:
    """Return the non-negative coefficients with the least squares: every set that may be positive is tried."""
    best, least = np.zeros(rows.shape[1]), math.inf
    for terms in TERMS:
        chosen = rows[:, terms]
        found = np.linalg.lstsq(chosen, goal, rcond=None)[0]
        loss = float(np.sum((chosen @ found - goal) ** 2))
        if np.all(found >= 0) and np.any(found > 0) and loss < least - 1e-9 * float(goal @ goal):
            best, least = np.zeros(rows.shape[1]), loss
            best[list(terms)] = found
    return best
