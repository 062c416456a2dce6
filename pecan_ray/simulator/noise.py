"""Seeded randomness, drawn in blocks: what varies from batch to batch, and what drifts.

Every stream has a generator of its own, derived from (seed, names), so that what one job draws does not depend on
what another one does.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
from numpy.typing import NDArray

# Factors that are drawn at a time: NumPy's calls take as long for one as for some hundred.
BLOCK = 2048


def generator(seed: int, *names: object) -> np.random.Generator:
    """Return the generator of a stream."""
    return np.random.default_rng([seed, *(zlib.crc32(str(name).encode()) for name in names)])


def factors(rng: np.random.Generator, cv: float, count: int) -> NDArray[np.float64]:
    """Draw log-normal factors with mean 1 and a coefficient of variation."""
    if cv <= 0:
        return np.ones(count)
    sigma = math.sqrt(math.log1p(cv * cv))
    # The mean of exp(N(m, sigma)) is exp(m + sigma^2 / 2).
    return np.exp(rng.normal(-sigma * sigma / 2, sigma, count))


class StepTimes:
    """Factors of the trainer's steps, one after another."""

    def __init__(self, rng: np.random.Generator, cv: float) -> None:
        self._rng, self._cv = rng, cv

    def block(self) -> list[float]:
        """Return the next factors."""
        drawn: list[float] = factors(self._rng, self._cv, BLOCK).tolist()
        return drawn


class Services:
    """Factors of the workers' times: noise of each batch times the drift that all workers share."""

    def __init__(self, rng: np.random.Generator, cv: float, drift_sd: float, drift_batches: int) -> None:
        self._rng, self._cv = rng, cv
        self._sd = drift_sd
        self._keep = math.exp(-1 / drift_batches)
        self._level = rng.normal(0.0, drift_sd) if drift_sd > 0 else 0.0
        self._next: list[float] = []
        """Factors that are drawn and not used, the last one first."""

    def factor(self) -> float:
        """Return the next factor."""
        if not self._next:
            self._next = self._block()
        return self._next.pop()

    def _block(self) -> list[float]:
        """Return the next factors, the last one first."""
        drawn = factors(self._rng, self._cv, BLOCK)
        if self._sd > 0:
            drawn *= np.exp(self._drift(BLOCK) - self._sd**2 / 2)
        values: list[float] = drawn[::-1].tolist()
        return values

    def _drift(self, count: int) -> NDArray[np.float64]:
        """Return the logarithm of the next factors of the drift: an Ornstein-Uhlenbeck path, in steps of 16 batches."""
        coarse = -(-count // 16)
        keep = self._keep**16
        shocks = self._rng.normal(0.0, self._sd * math.sqrt(1 - keep * keep), coarse)
        path = np.empty(coarse)
        for place in range(coarse):
            self._level = keep * self._level + shocks[place]
            path[place] = self._level
        return np.repeat(path, 16)[:count]
