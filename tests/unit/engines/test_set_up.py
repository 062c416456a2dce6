"""Functions with something that is made once in each process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import OpError, PlanError
from pecan_ray.plan.fingerprint import fingerprint
from tests.unit.engines.engine_leases import column, run_engine

PIPE = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(200)))


class RecordedInfo:
    """Makes a number, and notes the process in a folder."""

    def __init__(self, folder: Path, number: int = 7) -> None:
        self.folder, self.number = folder, number

    def __call__(self) -> int:
        """Make it."""
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write("made\n")
        return self.number


def added(value: Any, number: int) -> Any:
    """The value and what was made."""
    return value + number


def _no_model() -> Any:
    raise KeyError("no model")


def with_all(value: Any, number: int, rng: np.random.Generator, epoch: int) -> Any:
    """The value, what was made, and the epoch."""
    return value * 0 + number + 100 * epoch + int(rng.integers(1))


@pytest.mark.parametrize("processes", [False, True])
def test_it_is_made_once_in_each_process(tmp_path: Path, processes: bool) -> None:
    pipe = PIPE.map(added, on="i", setup=RecordedInfo(tmp_path), processes=processes).batch(20)
    assert sorted(column(run_engine(pipe, threads=4))) == [*range(7, 207)]
    made = [file.read_text() for file in tmp_path.iterdir()]
    assert made and set(made) == {"made\n"}


def test_random_numbers_and_the_epoch_come_beside_it(tmp_path: Path) -> None:
    pipe = PIPE.map(with_all, on="i", setup=RecordedInfo(tmp_path)).batch(200)
    assert [int(batch["i"][0]) for batch in pipe.iter_batches(debug=True, epochs=2, first_epoch=0)] == [7, 107]


def test_pipelines_are_told_apart_by_it_and_not_by_whether_it_was_made(tmp_path: Path) -> None:
    pipe = PIPE.map(added, on="i", setup=RecordedInfo(tmp_path))
    before = fingerprint(pipe.plan)
    pipe.peek()
    assert (
        fingerprint(pipe.plan) == before != fingerprint(PIPE.map(added, on="i", setup=RecordedInfo(tmp_path, 8)).plan)
    )


def test_what_cannot_be_set_up_is_refused_or_named() -> None:
    with pytest.raises(PlanError, match=r"map\(setup=\.\.\.\) needs a function"):
        PIPE.map(added, setup=3)  # type: ignore[arg-type]  # a wrong argument, which must be refused
    with pytest.raises(PlanError, match="the tensorflow engine"):
        pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(2)), engine="tensorflow").map(added, setup=dict)
    with pytest.raises(OpError, match=r"added.*no model") as raised:
        run_engine(PIPE.map(added, on="i", setup=_no_model).batch(5))
    assert raised.value.fields["op"] == "added"
