"""A job of several epochs that a training loop goes through epoch by epoch."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.in_process import run_in_process
from tests.ray.pipelines import ONE, ids, numbers
from tests.ray.waiting import ENDS_S

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 101


def test_passes_by_hand_go_on_with_the_next_epoch_also_behind_a_state() -> None:
    def draw(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"i": element["i"], "x": rng.random()}

    def draws(batches: Iterable[dict[str, Any]]) -> dict[int, float]:
        return {int(i): float(x) for batch in batches for i, x in zip(batch["i"], batch["x"], strict=True)}

    pipe, workers = numbers(ROWS, "by-hand").map(draw).batch(8), ONE
    wanted = [draws(run_in_process(pipe.plan, epoch=epoch)) for epoch in range(3)]
    with pipe.iter_batches(workers=workers) as batches:
        used = draws(next(batches) for _ in range(3))
        next(batches), next(batches)
        first = json.loads(json.dumps(batches.state_dict(ahead=2)))  # what was fetched ahead comes again
        with pytest.raises(pecan.errors.PlanError, match="ahead must be from 0 to 8, but got 9"):
            batches.state_dict(ahead=9)
    with pipe.iter_batches(workers=workers) as batches:
        assert draws(batches) == wanted[1], "a pass that was left is over"
        assert batches.provenance is not None and batches.provenance.epoch == 1 and batches.report().epochs == 1
    with pipe.iter_batches(workers=workers, state=first) as batches:
        assert used | draws(batches) == wanted[0] and batches.report().epochs == 1
    with pipe.iter_batches(workers=workers, epochs=2, order="strict") as batches:
        assert draws(batches.one_epoch()) == wanted[1], "what follows a state follows it again"
        assert draws(batches.one_epoch()) == wanted[2] and ids(batches.one_epoch()) == []
        assert batches.report().epochs == 2


def test_epochs_of_a_fixed_length_go_on_from_a_state_and_ranks_leave_when_they_have_all_their_steps() -> None:
    pipe, closed = numbers(ROWS, "steps").batch(5), threading.Event()
    options: dict[str, Any] = {"epochs": None, "epoch_batches": 3, "steps": 7}

    def train(rank: int) -> list[Any]:
        with pipe.iter_batches(rank=rank, world_size=2, job="steps", workers=ONE, **options) as batches:
            got = [next(batches) for _ in range(6)]
            if rank:
                assert closed.wait(ENDS_S)
            got.append(next(batches))
            with pytest.raises(StopIteration):
                next(batches)
        closed.set()
        return got

    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(train, range(2)))
    for epoch in (0, 1):
        seen = ids(batch for rank in ranks for batch in rank[3 * epoch : 3 * epoch + 3])
        assert len(seen) == len(set(seen)) == 30
    assert [len(rank) for rank in ranks] == [7, 7]
    options |= {"first_epoch": 0}
    whole = [ids([batch]) for batch in pipe.iter_batches(debug=True, **options)]
    used = 4  # one of the second epoch
    with pipe.iter_batches(workers=ONE, **options) as batches:
        first = [ids([next(batches)]) for _ in range(used)]
        state = json.loads(json.dumps(batches.state_dict()))
    with pipe.iter_batches(state=state, workers=ONE, **options) as batches:
        assert len(batches) == 7 - used
        assert [*first, *(ids([batch]) for batch in batches)] == whole
