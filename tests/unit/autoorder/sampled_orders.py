"""Pictures in pipelines of a few operators, and what AutoOrder makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from examples.photographs import parent_photographs
from pecan_ray.autoorder.accepted import OpSequenceOrder, Ordering
from pecan_ray.autoorder.op_runner import Stage, run_through
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.rewrites import Pushed, apply_rewrites, choices
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.options import EngineName
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.operators import Plan
from pecan_ray.reorder import Mode
from tests.unit.autoorder.test_autoorder_decided import COUNT, PICTURES

ELEMENTS = COUNT
FEW = 12
"""They suffice where nothing depends on times, as in mode "pecan"."""


def order(pipe: pecan.PecanPipeline, mode: Mode = "safe", elements: int = ELEMENTS, **options: Any) -> OpSequenceOrder:
    """What became of the only stretch of a pipeline."""
    (found,) = ordering(pipe, mode, elements, **options).sequences
    return found


def ordering(pipe: pecan.PecanPipeline, mode: Mode = "safe", elements: int = ELEMENTS, **options: Any) -> Ordering:
    return order_plan(OrderRequest(pipe.plan, pipe.engine, mode, pipe.seed, elements, 60.0, **options))


def gain(monkeypatch: pytest.MonkeyPatch, speedup: float) -> None:
    """Let everything that is compared gain so much: no load on the machine decides a test."""

    def compared(sampled: Sampled, stages: Sequence[Sequence[Stage]], times: float) -> SpeedComparison:
        for one in stages:  # what fails there fails here
            run_through(one, sampled.runner.fresh(sampled.held[0]))
        return SpeedComparison(speedup, 0.0, len(sampled.held))

    monkeypatch.setattr("pecan_ray.autoorder.trial.compare_speed", compared)
    monkeypatch.setattr("pecan_ray.autoorder.op_samples.trimmed_mean", min)


def images(**options: Any) -> pecan.PecanPipeline:
    """Pictures, and a number beside each."""
    return pecan.PecanPipeline(pecan.sources.Items(PICTURES), name="images", **options)


def tone(image: Any) -> Any:
    return np.rint(image * np.float32(0.7)).astype(image.dtype)


def push_down(plan: Plan, engine: EngineName) -> tuple[Plan, tuple[Pushed, ...]]:
    """The plan with what gains most done in each place, unmeasured."""
    names = [some[0].decoder for one in op_sequences(plan) for some in choices(one.ops, engine)]
    return apply_rewrites(plan, engine, names)


def rejects(found: OpSequenceOrder) -> str:
    """Why orders were refused, in one line."""
    return " | ".join(one.reason for one in found.rejected)


def large_photographs(folder: Path) -> Path:
    """Write large photographs, several times each, into a class folder of a folder, and return that folder."""
    (folder / "photographs").mkdir()
    for number in range(ELEMENTS):
        parents = parent_photographs()
        image = cv2.imread(str(parents[number % len(parents)]))
        assert image is not None
        image = cv2.resize(image, (720, 640))
        assert cv2.imwrite(str(folder / "photographs" / f"{number:03}.jpg"), image)
    return folder
