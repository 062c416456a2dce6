"""Splits of numbers before a point at which a cache keeps them; reads and calls are counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.engines.contract import Produced
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.op_sequences import with_ops
from pecan_ray.plan.operators import Autocache, Plan
from pecan_ray.plan.splits import Split
from tests.unit.engines.engine_leases import column

READS: Counter[int] = Counter()
CALLS: Counter[str] = Counter()
CALLING = threading.Lock()
"""Guards the calls, which threads make side by side: adding to a number is no single step."""


class Numbers:
    def __init__(self, splits: int = 7, each: int = 5, version: str = "") -> None:
        self._splits, self._each, self._version = splits, each, version

    def splits(self) -> Iterator[Split]:
        for index in range(self._splits):
            yield Split(index, path=f"{index}.bin", version=self._version)

    def read(self, split: Split, start: int = 0) -> Iterator[dict[str, Any]]:
        READS[split.index] += 1
        for place in range(start, self._each):
            number = split.index * self._each + place
            yield {"i": number, "x": np.full(3, number, np.float32)}

    def num_elements(self) -> int:
        return self._splits * self._each

    def identity(self) -> str:
        return f"{self._splits} {self._each}"


def double(value: dict[str, Any]) -> dict[str, Any]:
    with CALLING:
        CALLS["double"] += 1
    return {**value, "x": value["x"] * 2}


def kept(pipe: PecanPipeline, key: str = "k", name: str | None = None) -> Plan:
    """Keep what comes to a point of a pipeline."""
    points = [op for op in pipe.plan.all_ops() if isinstance(op, Autocache) and name in (None, op.name)]
    return with_ops(pipe.plan, {points[0].name: replace(points[0], key=key)})


def sorted_numbers(produced: list[Produced]) -> list[int]:
    return sorted(int(i) for i in column(produced))
