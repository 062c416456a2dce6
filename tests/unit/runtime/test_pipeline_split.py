"""Which workers leave operators to the trainer, and when they decide that anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import IterOptions
from pecan_ray.placement import Prices
from pecan_ray.plan.fingerprint import describe_plan
from pecan_ray.plan.operators import Map, Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.pipeline_split import PipelineSplit

ROW = np.full((224, 224, 3), 7, np.uint8)
SLOW, FAST = 1e6, 1e15
"""Links beside which a cast takes no time, and all the time."""


def to_float(image: Any) -> Any:
    return image.astype(np.float32)


def plan() -> Plan:
    return pecan.PecanPipeline(pecan.sources.Arrays(image=ROW[None])).map(to_float, on="image").batch(1).plan


def split(
    *,
    placement: Any = "remote",
    link: Any = lambda: SLOW,
    whole: bool = False,
    accelerator: bool = False,
    engine: Any = "python",
    **job: Any,
) -> PipelineSplit:
    """Return how a worker of a job is cut; `job`: fields of it."""
    given: dict[str, Any] = {"options": IterOptions(), "config": pecan.Config(), "parts": describe_plan(plan())} | job
    one = Job(JobSpec("job"), b"", b"", plan_shape(plan()), engine, 0, **given)
    return PipelineSplit.of_worker(
        StartWorker("pecan:job:w-0", placement, "", 1, whole_plan=whole, accelerator=accelerator), one, link
    )


def ran(plan: Plan) -> Any:
    """Run the map of a plan on the row, as the engine would."""
    (op, _) = plan.ops
    assert isinstance(op, Map)
    return op.fn(ROW)


PRICED = pecan.AutoWorkers(prices=Prices(1.0, 0.5, transfer_per_gb=100.0))


@pytest.mark.parametrize(
    ("other", "leaves"),
    [
        ({}, True),
        ({"placement": "local"}, False),
        ({"whole": True}, False),
        ({"accelerator": True}, False),  # there are no images
        ({"engine": "tensorflow"}, False),
        ({"config": pecan.Config(split_pipeline="off")}, False),
        ({"config": pecan.Config(reorder="pecan"), "check_order_later": True}, False),
        ({"parts": (("operator to_float", "another function"),)}, False),
        ({"link": lambda: FAST}, False),
        ({"link": lambda: FAST, "config": pecan.Config(split_pipeline="always")}, True),
        ({"link": lambda: FAST, "options": IterOptions(workers=PRICED)}, True),
    ],
)
def test_who_leaves_operators_to_the_trainer(other: dict[str, Any], leaves: bool) -> None:
    cut = split(**other)
    assert ran(cut.begin(plan())).dtype == (np.uint8 if leaves else np.float32)
    assert (cut.unfinished({"image": ROW[None]}) is not None) == leaves
    assert cut.refused(users_order=False) == "" and ("your order" in cut.refused(users_order=True)) == leaves


def test_images_are_left_by_local_workers_too_but_not_in_the_users_order() -> None:
    functions = (images.Decode(), images.Resize(8, 8), to_float)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=ROW[None]))
    for fn in functions:
        pipe = pipe.map(fn, on="image")
    photos = pipe.batch(1).plan
    cut = split(placement="local", accelerator=True, parts=describe_plan(photos))
    first, *_ = (op for op in cut.begin(photos).ops if isinstance(op, Map))
    assert not isinstance(first.fn, images.Decode) and cut.other_plan() is None
    left = cut.unfinished({"image": ROW[None]})
    assert left is not None and left.images == "image" and left.ops == ("to_float",)
    assert cut.refused(users_order=False) == "" and "your order" in cut.refused(users_order=True)


def test_between_two_assignments_a_worker_goes_by_what_its_link_has_shown() -> None:
    speed: list[float | None] = [None]
    cut = split(link=lambda: speed[0])
    assert cut.other_plan() is None
    ran(cut.begin(plan()))
    for speed[0], dtype in ((SLOW, np.uint8), (FAST, np.float32), (SLOW, np.uint8)):
        other = cut.other_plan()
        assert other is None or ran(other).dtype == dtype
        assert (cut.unfinished({"image": ROW[None]}) is not None) == (dtype == np.uint8)
        assert cut.other_plan() is None
