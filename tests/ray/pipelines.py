"""Pipelines over numbers, and what comes out of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

import pecan_ray as pecan

ONE = pecan.Workers(local=1)
TWO = pecan.Workers(local=1, remote=1)


def numbers(rows: int, name: str = "numbers", first: int = 0, **options: Any) -> pecan.PecanPipeline:
    """Return a pipeline over so many numbers, in column `i`."""
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(first, first + rows)), name=name, **options)


def ids(batches: Iterable[Any]) -> list[int]:
    """Return the numbers of batches, or of arrays that hold each theirs everywhere."""
    return [int(np.ravel(i)[0]) for batch in batches for i in batch["i"]]


def times(rows: int, count: int = 1) -> Counter[int]:
    """Return each of so many numbers, so often."""
    return Counter(dict.fromkeys(range(rows), count))


def numbered_lines(folder: str, files: int, lines: int, width: int) -> dict[str, bytes]:
    """Return files of lines for a bucket, by key: numbers that go on from file to file, each of so many bytes."""
    texts = [[b"%d" % (file * lines + line) for line in range(lines)] for file in range(files)]
    bodies = (b"".join(text.ljust(width - 1) + b"\n" for text in of_file) for of_file in texts)
    return {f"{folder}/{number:03}": body for number, body in enumerate(bodies)}
