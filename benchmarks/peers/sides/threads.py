"""Physical bounds: the same functions on plain threads in the reader's own process, and parts of the work."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.peers.recipe import CPUS, BatchColumns, BatchIterator, Recipe

AHEAD = 3
"""Batches under way at a time."""
CHUNK = 16
"""Elements that a thread takes at a time, so that tiny ones stay cheap."""


def _quiet_opencv() -> None:
    import cv2

    cv2.setNumThreads(1)


def batches(recipe: Recipe, part: str = "") -> BatchIterator:
    """Each thread writes its elements straight into their rows of the batch; memory of old batches is used again.

    `part`: other work than that of the recipe's elements.
    """
    _quiet_opencv()
    work = (recipe.parts or {})[part] if part else recipe.element
    rng = np.random.default_rng(0)
    example = {name: np.asarray(value) for name, value in work(recipe.items[0], rng).items()}
    spare: deque[BatchColumns] = deque()
    chunk = max(1, min(CHUNK, recipe.batch // (2 * CPUS)))

    def fill(batch: BatchColumns, first: int, row: int, rng: np.random.Generator) -> None:
        for place in range(row, min(row + chunk, recipe.batch)):
            element = work(recipe.items[(first + place) % len(recipe.items)], rng)
            for name, value in element.items():
                batch[name][place] = value

    with ThreadPoolExecutor(CPUS) as pool:
        pending: deque[tuple[BatchColumns, list[Future[None]]]] = deque()
        for number in itertools.count():
            batch = (
                spare.popleft()
                if spare
                else {n: np.empty((recipe.batch, *v.shape), v.dtype) for n, v in example.items()}
            )
            jobs = [
                pool.submit(fill, batch, number * recipe.batch, row, np.random.default_rng((number, row)))
                for row in range(0, recipe.batch, chunk)
            ]
            pending.append((batch, jobs))
            if len(pending) >= AHEAD:
                ready, jobs = pending.popleft()
                for job in jobs:
                    job.result()
                yield ready
                spare.append(ready)


def compute_only(recipe: Recipe) -> BatchIterator:
    """The same functions on threads, their results thrown away, in whatever order they end."""
    return _thrown_away(recipe, recipe.element)


def part_only(recipe: Recipe, part: str) -> BatchIterator:
    """One part of the work on threads."""
    assert recipe.parts is not None
    return _thrown_away(recipe, recipe.parts[part])


def _thrown_away(recipe: Recipe, work: Callable[[Any, np.random.Generator], Any]) -> BatchIterator:
    _quiet_opencv()
    empty = {"nothing": np.empty((recipe.batch, 0), np.uint8)}
    chunk = max(1, min(CHUNK, recipe.batch // (2 * CPUS)))

    def some(first: int) -> None:
        rng = np.random.default_rng(first)
        for number in range(first, first + chunk):
            work(recipe.items[number % len(recipe.items)], rng)

    with ThreadPoolExecutor(CPUS) as pool:
        waiting: deque[Future[None]] = deque()
        done = 0
        for first in itertools.count(0, chunk):
            waiting.append(pool.submit(some, first))
            if len(waiting) > 8 * CPUS:
                _first_done(waiting).result()
                done += chunk
                while done >= recipe.batch:
                    done -= recipe.batch
                    yield empty


def _first_done(waiting: deque[Future[None]]) -> Future[None]:
    """Take out a future that is done, else the oldest one."""
    for place, future in enumerate(waiting):
        if future.done():
            del waiting[place]
            return future
    return waiting.popleft()


def memcpy(recipe: Recipe) -> Iterator[BatchColumns]:
    """Copy a batch from memory to memory that is used again: what one writing and one reading of it cost."""
    rng = np.random.default_rng(0)
    elements = [recipe.element(recipe.items[n], rng) for n in range(recipe.batch)]
    held = {name: np.stack([element[name] for element in elements]) for name in elements[0]}
    slots = [{name: np.empty_like(column) for name, column in held.items()} for _ in range(AHEAD)]
    for number in itertools.count():
        slot = slots[number % AHEAD]
        for name, column in held.items():
            np.copyto(slot[name], column)
        yield slot
