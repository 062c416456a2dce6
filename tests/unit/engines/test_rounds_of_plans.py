"""Rounds as the python engine makes them, and plans and options that have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pecan_ray import PecanPipeline, sources
from pecan_ray.engines.contract import Produced
from pecan_ray.errors import PlanError
from pecan_ray.job.saved_state import no_state_of
from pecan_ray.options import IterOptions
from tests.unit.engines.engine_leases import run_engine

SIZES = [4, 2, 1]


def of_lengths(*lengths: int, **options: Any) -> PecanPipeline:
    rows = [{"i": number, "x": np.ones(length)} for number, length in enumerate(lengths)]
    pipe = PecanPipeline(sources.Items(rows), name="rounds")
    return pipe.bucket_by_length([10, 20], sizes=SIZES, length="x", **options)


def rows(produced: Produced) -> list[int]:
    return sorted(int(number) for number in produced.columns["i"])


def test_a_round_is_a_batch_for_each_rank_of_one_bucket() -> None:
    lengths = [1 + 7 * number % 29 for number in range(200)]
    produced = run_engine(of_lengths(*lengths), ranks=3)
    full = [one for one in produced if not one.partial]
    assert [one.rank for one in full] == [0, 1, 2] * (len(full) // 3) and len(full) > 30
    for first in range(0, len(full), 3):
        numbers = [number for one in full[first : first + 3] for number in rows(one)]
        buckets = {np.searchsorted([10, 20], lengths[number], "right") for number in numbers}
        assert len(buckets) == 1 and len(numbers) == 3 * SIZES[buckets.pop()]
    mapped = of_lengths(*[5] * 8).map(lambda batch: {**batch, "n": np.full(4, batch["x"].shape[1])})
    assert [(one.rank, one.columns["n"][0]) for one in run_engine(mapped, ranks=2)] == [(0, 5), (1, 5)]


def test_what_fills_no_round_comes_last_as_smaller_batches_for_all_ranks_or_is_dropped() -> None:
    produced = run_engine(of_lengths(5, 6, 7, 12, 25), ranks=2)
    wanted = [(0, True, [0, 2]), (1, True, [1]), (0, True, [3]), (1, True, [4])]
    assert [(one.rank, one.partial, rows(one)) for one in produced] == wanted
    assert produced[2].columns["x"].shape == (1, 12) and produced[3].columns["x"].shape == (1, 25)
    (rest,) = run_engine(of_lengths(5, 25), ranks=3)
    assert (rest.rank, rest.partial, rest.rows) == (None, True, 2), "fewer than the ranks are in no round"
    dropped = run_engine(of_lengths(*[5] * 11, 12, drop_remainder=True), ranks=2)
    assert [(one.rank, one.rows) for one in dropped] == [(0, 4), (1, 4), (None, 3), (None, 1)]


def numbers(engine: Any = "python") -> PecanPipeline:
    return PecanPipeline(sources.Arrays(i=np.arange(10)), name="numbers", engine=engine)


def bucketed(pipe: PecanPipeline) -> PecanPipeline:
    return pipe.bucket_by_length([5], sizes=[2, 2], length=lambda row: int(row["i"]))


@pytest.mark.parametrize(
    ("pipe", "options", "said"),
    [
        (lambda: numbers().batch(2), {}, r"ends with batch: let it end with bucket_by_length"),
        (numbers, {}, r"makes no batches: let it end with bucket_by_length"),
        (lambda: bucketed(numbers().take(5)), {}, r"run by one worker as a whole \(take"),
        (lambda: bucketed(numbers()).filter(lambda batch: True, name="some"), {}, r"some: behind bucket_by_length"),
        (lambda: bucketed(numbers()).map(dict, name="moved"), {"on_error": "skip"}, r"moved: with on_error='skip'"),
        (lambda: bucketed(numbers("tensorflow")), {}, 'use engine="python"'),
        (lambda: bucketed(numbers()), {"order": "strict"}, r"does not go with order='strict'"),
        (lambda: bucketed(numbers()), {"sharding": "off"}, r"does not go with sharding='off'"),
        (lambda: bucketed(numbers()), {"visitation": "zero_or_more"}, r"does not go with visitation='zero_or_more'"),
        (lambda: bucketed(numbers()), {"share": True, "world_size": 1, "max_lag": 3}, r"does not go with share=True"),
        (lambda: bucketed(numbers()), {"coordinated": 1}, r"coordinated must be True or False"),
    ],
)
def test_what_has_no_rounds_is_refused_when_the_job_is_begun(
    pipe: Callable[[], PecanPipeline], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        pipe().iter_batches(**{"rank": 0, "world_size": 2, "coordinated": True, **options})


def test_a_coordinated_job_has_a_state_unless_data_may_be_lost() -> None:
    options = IterOptions(rank=1, world_size=2, coordinated=True)
    assert no_state_of(options) == ""
    assert "lets data be lost" in no_state_of(replace(options, visitation="at_most_once"))
