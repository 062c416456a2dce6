"""Debug mode makes the batches of a job with order="strict": here of its queues and its engine, without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.job.queues import Queues
from pecan_ray.options import Config, IterOptions
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Lease
from pecan_ray.runtime.session import job_spec
from tests.unit.engines.engine_leases import run_engine

SEED = 5


def numbers(rows: int = 300, first: int = 0, split_rows: int = 37, key: str = "i") -> pecan.PecanPipeline:
    return pecan.PecanPipeline(
        pecan.sources.Arrays(**{key: np.arange(first, first + rows)}, split_rows=split_rows), seed=SEED
    )


def noisy(i: Any, rng: np.random.Generator) -> Any:
    return i + rng.random()


def spread(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in range(int(row["i"]) % 3):
        yield {"i": row["i"] + part / 10}


def by_queues(pipe: pecan.PecanPipeline, epoch: int) -> list[dict[str, Any]]:
    """Make an epoch of the leases that a job gives to the only worker that it has."""
    sources, shape = list(pipe.plan.sources()), plan_shape(pipe.plan)
    options = IterOptions(order="strict", epochs=3)
    queues = Queues(job_spec("job", shape, len(sources), SEED, Config(), options).shape)
    for branch, source in enumerate(sources):
        queues.add(branch, list(source.splits()))
        queues.end_listing(branch)
    queues.begin_epoch(epoch)
    leases: list[Lease] = []
    for branch in range(len(sources)):
        while isinstance(lease := queues.take("worker", branch), Lease):
            leases.append(lease)
    produced = run_engine(pipe, leases, order="strict", threads=3, seed=SEED)
    return [one.columns for one in produced if one.rows and not (one.partial and shape.drop_remainder)]


PLANS: dict[str, Callable[[], pecan.PecanPipeline]] = {
    "plain": lambda: numbers().map(noisy, on="i").batch(8),
    "shuffled": lambda: numbers().map(noisy, on="i").shuffle(60).batch(8),
    "shuffled with a seed": lambda: numbers().shuffle(60, seed=3).map(noisy, on="i").batch(8),
    "in a fixed order": lambda: numbers().shuffle(60, reshuffle=False).batch(8, drop_remainder=True),
    "repeated": lambda: numbers().repeat(2).shuffle(60).map(noisy, on="i").batch(8, drop_remainder=True),
    "mixed": lambda: numbers().mix(numbers(200, 1000, 11), weights=[1, 2]).shuffle(10).batch(8),
    "concatenated": lambda: numbers().shuffle(20, seed=1).concat(numbers(200, 1000, 11)).shuffle(10).batch(8),
    "zipped": lambda: numbers().shuffle(50).zip(numbers(300, 0, 11, "j").shuffle(50, seed=1)).batch(8),
    "taken": lambda: numbers().shuffle(50).take(70).map(noisy, on="i").batch(8),
    "spread": lambda: numbers().shuffle(30).flat_map(spread).filter(lambda row: row["i"] % 5 > 0).batch(8),
    "a part": lambda: pecan.split(numbers(), [0.7, 0.3], seed=1)[0].shuffle(30).map(noisy, on="i").batch(8),
    "batched twice": lambda: numbers().shuffle(30).batch(4).unbatch().shuffle(9).batch(8),
}


@pytest.mark.parametrize("plan", PLANS)
def test_debug_mode_makes_the_batches_of_a_job_in_one_sequence(plan: str) -> None:
    pipe = PLANS[plan]()
    for epoch in (0, 2):
        debug, job = list(run_in_process(pipe.plan, seed=SEED, epoch=epoch)), by_queues(pipe, epoch)
        assert [batch.keys() for batch in debug] == [batch.keys() for batch in job]
        for one, other in zip(debug, job, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)
