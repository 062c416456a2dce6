"""A small pipeline, and the sample of its operators."""

from __future__ import annotations

from typing import Any

import numpy as np

import pecan_ray as pecan
from pecan_ray.autoorder import OpSample, SampleProfile
from pecan_ray.plan.splits import Element

COUNT = 40


def rows(count: int = COUNT, **options: Any) -> pecan.PecanPipeline:
    items = [{"i": np.int64(n), "x": np.full(8, n, np.float32), "path": f"file-{n}"} for n in range(count)]
    return pecan.PecanPipeline(pecan.sources.Items(items, split_rows=1000), name="rows", **options)


def profile(pipe: pecan.PecanPipeline, elements: int = 300, seconds: float = 600.0) -> SampleProfile:
    return pecan.sample_profile(pipe, elements, seconds)


def sampled(pipe: pecan.PecanPipeline, name: str) -> OpSample:
    return profile(pipe)[name]


def touched(op: OpSample) -> tuple[list[str], list[str], list[str], list[str]]:
    """Columns that an operator reads, writes, creates and drops."""
    one = op.profiled
    return sorted(one.reads), sorted(one.writes), sorted(one.creates), sorted(one.drops)


def double(x: Any) -> Any:
    return x * 2


def keep(element: Element) -> Element:
    return element
