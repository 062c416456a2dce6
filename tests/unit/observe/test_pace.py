"""How fast a run is by now, and how long it has to go."""

from __future__ import annotations

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.observe.pace import LATELY_S, RecentPace, TrainerPace, batches_ahead, spelled
from pecan_ray.options import IterOptions


def at(seconds: float, batches: int, waited_s: float = 0.0) -> TrainerProgress:
    return TrainerProgress(batches, 10 * batches, waited_s, seconds)


def test_a_pace_is_that_of_the_last_seconds_and_not_of_the_start() -> None:
    pace = RecentPace(end_epoch=1, total=1000)
    pace.look(at(60, 10, waited_s=59))
    pace.look(at(60 + LATELY_S, 110, waited_s=60))
    assert pace.look(at(60 + 2 * LATELY_S, 310, waited_s=65)) == TrainerPace(310, 1000, 20, 200, 0.5)


def test_the_first_look_is_from_the_beginning() -> None:
    assert RecentPace(None, None).look(at(4, 8, waited_s=1)) == TrainerPace(8, None, 2, 20, 0.25)


def test_as_many_come_in_each_epoch_as_in_the_first_where_nothing_is_known_before() -> None:
    pace = RecentPace(end_epoch=3, total=None)
    pace.epoch(0, 0)
    assert pace.look(at(1, 5)).total is None
    pace.epoch(1, 7)
    assert pace.look(at(2, 8)).total == 21
    pace.epoch(2, 15)
    assert pace.look(at(3, 16)).total == 21
    assert pace.look(at(4, 22)).total is None, "there are more than were expected: nothing is known"


def test_a_run_without_end_has_no_time_left() -> None:
    pace = RecentPace(end_epoch=None, total=None)
    pace.epoch(0, 0)
    pace.epoch(1, 7)
    assert pace.look(at(2, 8)).left_s is None


@pytest.mark.parametrize(
    ("pace", "dollars", "words"),
    [
        (TrainerPace(5, None, 2.5, 25, 0.25), None, "5 batches, 2.5/s, 25 elements/s, waiting 25%, 2 workers"),
        (TrainerPace(5, 100, 1, 9, 0), None, "5 of 100 batches, 1.0/s, 9 elements/s, waiting 0%, 2 workers, 1:35 left"),
        (
            TrainerPace(0, 8000, 1, 1, 1),
            None,
            "0 of 8000 batches, 1.0/s, 1 elements/s, waiting 100%, 2 workers, 2:13:20 left",
        ),
        (TrainerPace(5, None, 1, 10, 0), 0.01234, "5 batches, 1.0/s, 10 elements/s, waiting 0%, 2 workers, $0.0123"),
        (TrainerPace(5, 100, 0, 0, 1), None, "5 of 100 batches, 0.0/s, 0 elements/s, waiting 100%, 2 workers"),
    ],
)
def test_a_pace_is_spelled_in_one_line(pace: TrainerPace, dollars: float | None, words: str) -> None:
    assert spelled(pace, "2 workers", dollars) == words


def test_the_length_is_known_beforehand_where_rows_lie_in_memory(tmp_path: object) -> None:
    plan = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(50))).batch(10).plan
    assert batches_ahead(plan, IterOptions(epochs=3), None) == 15
    assert batches_ahead(plan, IterOptions(epochs=3, rank=0, world_size=2), None) == 9
    assert batches_ahead(plan, IterOptions(epochs=None), None) is None
    assert batches_ahead(plan, IterOptions(epochs=3, sharding="off"), None) is None
    files = pecan.PecanPipeline(pecan.sources.TextLines(f"{tmp_path}/*.txt")).batch(10).plan
    assert batches_ahead(files, IterOptions(epochs=3), None) is None, "nothing is listed for it"
