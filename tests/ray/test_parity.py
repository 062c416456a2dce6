"""The table of habits on workers: the rows in which the way to iterate matters; in the long form all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.parity.judged import cells, must_be_right
from tests.parity.test_ports import by_aspect, detection
from tests.parity.ways import WORKER, Way
from tests.ray.pipelines import ONE

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")


@pytest.mark.parametrize(("at", "way"), cells(on_workers=True))
def test_a_job_does_what_its_peers_do_or_what_the_row_says(at: int, way: Way) -> None:
    must_be_right(at, way, WORKER)


def test_detection_on_two_ranks_takes_equally_many_steps_and_makes_the_batches_of_its_sampler() -> None:
    def train(rank: int) -> list[list[int]]:
        with detection().iter_batches(rank=rank, world_size=2, job="detection", workers=ONE, epochs=2) as batches:
            return [list(batch["index"]) for batch in batches]

    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(train, range(2)))
    drawn = [batch for epoch in range(2) for batch in by_aspect(epoch)]
    assert [len(rank) for rank in ranks] == [len(drawn) // 2] * 2
    assert sorted(ranks[0] + ranks[1]) == sorted(drawn)
