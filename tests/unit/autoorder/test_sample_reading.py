"""What reading takes, as a sample sees it: of disks without what others did meanwhile, of buckets with all waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.op_samples import reading_seconds
from pecan_ray.autoorder.python_runner import PythonRunner
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.splits import Element, Split

OFTEN, SELDOM = [0.001] * 99, [0.3]


@pytest.mark.parametrize(
    ("seconds", "fetched", "used", "found"),
    [
        ([], 0, 0, None),
        ([*OFTEN, *SELDOM], 0, 0, 0.001),
        ([*OFTEN, *SELDOM], 1000, 1000, 0.399 / 100),
        ([1.0, 0.0], 1000, 100, 0.05),
        ([1.0, 0.0], 1000, 9000, 0.5),  # what was there before took no time
    ],
)
def test_long_times_count_where_they_are_the_answers_of_a_store_by_their_share(
    seconds: list[float], fetched: int, used: int, found: float | None
) -> None:
    assert reading_seconds(seconds, fetched, used) == (None if found is None else pytest.approx(found))


def test_a_store_that_gives_few_bytes_a_second_is_seen_so_though_each_answer_has_many_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched = [0]
    monkeypatch.setattr(storage, "remote_bytes", lambda: fetched[0])

    class Answers(pecan.sources.Items):
        """A source of which one answer after a while has all elements."""

        def read(self, split: Split, start: int = 0) -> Iterator[Element]:
            if not fetched[0]:
                time.sleep(0.2)
                fetched[0] += 32 * 20_000
            yield from super().read(split, start)

    items = [{"bin": bytes(20_000)} for _ in range(32)]
    (stretch,) = op_sequences(pecan.PecanPipeline(Answers(items)).map(len, on="bin").batch(4).plan)
    runner = PythonRunner(stretch, "python", seed=0, limits=SampleLimits(32), clock=time.perf_counter)
    assert sum(1 for _ in runner.inputs()) == 32
    assert runner.reading_s is not None and runner.reading_s > 0.9 * 0.2 / 32
