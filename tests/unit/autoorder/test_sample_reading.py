"""What reading takes, as a sample sees it: of disks without what others did meanwhile, of buckets with all waiting."""

from __future__ import annotations

import io
import tarfile
import time

import pytest

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.op_samples import reading_seconds
from pecan_ray.autoorder.python_runner import PythonRunner
from pecan_ray.plan.op_sequences import op_sequences
from tests.object_stores import reaching_s3, s3_bucket, serving_s3

EACH, ELEMENT = 32, 20_000


def test_long_times_count_where_they_are_the_answers_of_a_store_by_their_share() -> None:
    often, seldom = [0.001] * 99, [0.3]
    assert reading_seconds([], 0, 0) is None
    assert reading_seconds([*often, *seldom], 0, 0) == pytest.approx(0.001)
    assert reading_seconds([*often, *seldom], 1000, 1000) == pytest.approx(0.399 / 100)
    assert reading_seconds([1.0, 0.0], 1000, 100) == pytest.approx(0.05)
    assert reading_seconds([1.0, 0.0], 1000, 9000) == pytest.approx(0.5), "what was there before took no time"


def tar_of(first: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(first, first + EACH):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = ELEMENT
            tar.addfile(member, io.BytesIO(bytes(ELEMENT)))
    return out.getvalue()


def test_a_store_that_gives_few_bytes_a_second_is_seen_so_though_each_answer_has_many_elements() -> None:
    rate = 2e6
    with serving_s3() as endpoint, s3_bucket(endpoint) as bucket, reaching_s3(endpoint):
        for shard in range(2):
            storage.write_file(f"{bucket}/{shard}.tar", tar_of(shard * EACH))
        pipe = pecan.PecanPipeline(pecan.sources.WebDataset(f"{bucket}/*.tar")).map(len, on="bin").batch(4)
        (stretch,) = op_sequences(pipe.plan)
        limits = SampleLimits(2 * EACH, time.perf_counter() + 600, spread=True)
        storage.limit_remote_io(rate)
        try:
            runner = PythonRunner(stretch, "python", seed=0, limits=limits, clock=time.perf_counter)
            assert sum(1 for _ in runner.inputs()) == 2 * EACH
            runner.close()
        finally:
            storage.limit_remote_io(None)
        assert runner.reading_s is not None and runner.reading_s > 0.5 * ELEMENT / rate
