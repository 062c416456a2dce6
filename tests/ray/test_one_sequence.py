"""order="strict" on real workers: the same batches in the same order, whoever makes them and whatever happens."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import StateError
from tests.ray.workers import lose

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS, SIZE, KILLED_AT, CUT_AT, GATE = 400, 8, 6, 15, 250


def numbers(rows: int = ROWS, first: int = 0) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(first, first + rows)), name="sequence", seed=5)


def uneven(i: Any) -> Any:
    if i % 8 == 0:
        time.sleep(0.005)
    return i


def noisy(i: Any, rng: np.random.Generator) -> Any:
    return i + rng.random()


def gated(gate: Path) -> Callable[[Any], Any]:
    """A function that comes no further than an element in the middle before a file is there."""

    def pass_on(i: Any) -> Any:
        while i == GATE and not gate.exists():
            time.sleep(0.02)
        return i

    return pass_on


def values(batches: Any) -> list[list[float]]:
    return [batch["i"].tolist() for batch in batches]


def test_the_sequence_is_the_same_for_any_workers_whatever_dies_and_across_a_cut(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    changing = pecan.WeightSchedule([(0, [3, 1]), (60, [1, 3])], by="elements")
    mixed = numbers().map(gated(gate), on="i").mix(numbers(200, 10_000), weights=changing)
    pipe = mixed.map(noisy, on="i").batch(SIZE)
    options: dict[str, Any] = {"order": "strict", "epochs": 2}
    with pipe.iter_batches(workers=pecan.Workers(local=1, remote=1), **options) as it:
        got = values(islice(it, KILLED_AT))
        assert it.provenance is not None
        lose(it, it.provenance.worker)
        gate.touch()
        got += values(islice(it, CUT_AT - KILLED_AT))
        state = json.loads(json.dumps(it.state_dict()))
    with pytest.raises(StateError, match=r"order \(strict\) where this one has order \(relaxed\)"):
        pipe.iter_batches(workers=pecan.Workers(local=1), state=state, epochs=2)
    got += values(pipe.iter_batches(workers=pecan.Workers(remote=1, local=0), state=state, **options))
    assert got == values(pipe.iter_batches(debug=True, first_epoch=0, epochs=2)), "debug mode is one worker"


def test_one_fixed_worker_keeps_the_order_of_the_source_by_default() -> None:
    source = pecan.sources.Arrays(i=np.arange(ROWS))
    pipe = pecan.PecanPipeline(source, config=pecan.Config(threads_per_worker=4)).map(uneven, on="i").batch(SIZE)
    with pipe.iter_batches(workers=pecan.Workers(local=1), epochs=2) as batches:
        assert np.ravel(values(batches)).tolist() == [*range(ROWS)] * 2
        assert "order: rows come in the order of the source" in batches.explain()
