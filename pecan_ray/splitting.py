"""`split`: disjoint parts of a pipeline's elements, for training and validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from pecan_ray.errors import PlanError, to_str
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.arguments import natural
from pecan_ray.plan.operators import Subset
from pecan_ray.plan.option_types import of_kind
from pecan_ray.plan.renaming import free_name
from pecan_ray.plan.shape import first_op_across_splits
from pecan_ray.sources.by_index import ByIndex
from pecan_ray.sources.resampled import Resampled


def split(pipeline: PecanPipeline, shares: Sequence[float], *, seed: int | None = None) -> tuple[PecanPipeline, ...]:
    """Return disjoint pipelines that together have all elements, each a share of them.

    An element belongs to the same part in each pass and in each run, with any engine, workers, batch size or order, and
    all that `flat_map` makes of it stays with it.  Of ten consecutive elements of a file each part has its share,
    rounded; which ones they are is random.  Many workers can run each part, and `shuffle`, `batch` and the like follow
    behind it:

        train, validation = pecan.split(pipe, [0.9, 0.1], seed=42)
        train = train.shuffle(1000).batch(64)
        validation = validation.batch(64)

    Elements are known by the number of their file (or other split) in the listing and their number in it, so other
    files, or a file that is added in front of others, may have other parts.

    Args:
        pipeline: sources, `map`, `filter`, `flat_map` and `autocache`. Elements of other parts are left out before
            any of these run.
        shares: positive, with the sum 1.
        seed: another one gives other parts. None: that of the pipeline.

    Returns:
        One pipeline for each share.

    Raises:
        PlanError: behind `shuffle`, `batch`, `take`, `zip` and the like, whose elements are not those of one split of a
            source, or for shares that are not positive or do not add up to 1.
    """
    if not isinstance(pipeline, PecanPipeline):
        raise PlanError(f"split needs a PecanPipeline, but got {type(pipeline).__name__}.")
    plan = pipeline.plan
    # Places are numbers of elements in their split:
    # docs/decisions/randomness-and-passes.md#104-parts-by-places-of-elements.
    if (where := first_op_across_splits(plan)) is not None:
        raise PlanError(
            f"split: it stands behind {where}, but only the elements of one source, in its order, can be told "
            "apart in each pass: split before it, and write the rest of the pipeline for each part."
        )
    if isinstance(plan.head, (ByIndex, Resampled)):
        raise PlanError(
            "split: a sampler gives each place another element in each pass, so parts would not stay apart: give each "
            "part a sampler over its own indices."
        )
    chosen = pipeline.seed if seed is None else natural("split(seed=...)", seed)
    level = sum(isinstance(op, Subset) for op in plan.ops)
    name = free_name("subset", {op.name for op in plan.all_ops()})
    parts = [Subset(name=name, low=low, high=high, seed=chosen, level=level) for low, high in _intervals(shares)]
    return tuple(
        # `lengths`: what the user has said of the whole holds for no part.
        pipeline._with(replace(plan, ops=(*plan.ops[:level], part, *plan.ops[level:]), lengths=()))
        for part in parts
    )


def _intervals(shares: Sequence[float]) -> list[tuple[float, float]]:
    """Return the interval of places of each share; raises PlanError where they do not make a whole."""
    found: tuple[float, ...] = of_kind("split(shares=...)", shares, Sequence[float])
    if not found or not all(share > 0 for share in found) or not math.isclose(math.fsum(found), 1, rel_tol=1e-6):
        raise PlanError(
            f"split: shares must be positive and add up to 1, but got {to_str(list(found))}, which add up to "
            f"{math.fsum(found):g}. Leave no share out: the rest needs one of its own."
        )
    bounds = [0.0, *accumulate(found)]
    # A sum that is a little less would leave the last places to nobody.
    bounds[-1] = 1.0
    return list(pairwise(bounds))
