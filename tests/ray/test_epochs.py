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
from pecan_ray.engines.inprocess import run_inprocess
from tests.ray.pipelines import ONE, ids, numbers

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 101
ALL = list(range(ROWS))


def shuffled(name: str) -> pecan.PecanPipeline:
    return numbers(ROWS, name).shuffle(20).batch(8)


def test_each_epoch_ends_by_itself_and_a_state_at_its_end_holds_nothing_of_the_next_one() -> None:
    pipe, workers = shuffled("epochs"), pecan.Workers(local=2)
    with pipe.iter_batches(epochs=3, workers=workers) as batches:
        assert sorted(ids(batches.one_epoch())) == ALL
        state = batches.state_dict()
        broken_off = ids([next(iter(batches.one_epoch()))])
        assert sorted(broken_off + ids(batches.one_epoch())) == ALL, "what was left is gone on with"
        assert sorted(ids(batches.one_epoch())) == ALL and ids(batches.one_epoch()) == []
        assert batches.report().epochs == 3
    with pipe.iter_batches(epochs=3, workers=workers, state=state) as batches:
        epochs = [sorted(ids(batches.one_epoch())) for _ in range(4)]
    assert [epoch for epoch in epochs if epoch] == [ALL, ALL]


def test_passes_by_hand_go_on_with_the_next_epoch_also_behind_a_state() -> None:
    def draw(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"i": element["i"], "x": rng.random()}

    def draws(batches: Iterable[dict[str, Any]]) -> dict[int, float]:
        return {int(i): float(x) for batch in batches for i, x in zip(batch["i"], batch["x"], strict=True)}

    pipe, workers = numbers(ROWS, "by-hand").map(draw).batch(8), ONE
    wanted = [draws(run_inprocess(pipe.plan, epoch=epoch)) for epoch in range(3)]
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


def test_a_new_iterator_is_a_new_pass_and_the_rest_of_the_one_before_is_not_made() -> None:
    pytest.importorskip("torch")
    rows = 600
    pipe = numbers(rows, "looks", config=pecan.Config(ring_bytes=1 << 20))
    pipe = pipe.map(lambda i: np.full(1 << 11, i), on="i").batch(10)  # of which a worker's memory holds six
    loader = pipe.to_torch(workers=pecan.Workers(local=2), order="strict", prefetch_bytes=1)
    looks = [ids(batch for _, batch in zip(range(3), loader, strict=False)) for _ in range(3)]
    assert looks == [list(range(30))] * 3
    state = json.loads(json.dumps(loader.state_dict()))
    assert ids(loader) == list(range(rows))
    report = loader._batches.report()
    assert (report.left_epochs, report.batches) == (3, 9 + rows // 10) and report.workers_lost == 0
    made = sum(worker.elements for worker in report.workers.values())
    assert made < 3 * rows, "of four passes three were left"
    loader.load_state_dict(state)
    assert ids(loader) == list(range(30, rows)), "a state goes on in the middle of the pass that was left"
    loader.close()


def test_epochs_of_a_fixed_length_and_ranks_that_leave_when_they_have_all_their_steps() -> None:
    pipe, closed, got = numbers(ROWS, "steps").batch(5), threading.Event(), dict[int, list[Any]]()
    options: dict[str, Any] = {"epochs": None, "epoch_batches": 3, "steps": 7, "workers": ONE, "job": "steps"}

    def train(rank: int) -> None:
        with pipe.iter_batches(rank=rank, world_size=2, **options) as batches:
            got[rank] = [next(batches) for _ in range(6)]
            if rank:
                assert closed.wait(60)
            got[rank].append(next(batches))
            with pytest.raises(StopIteration):
                next(batches)
        closed.set()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, range(2)))
    for epoch in (0, 1):
        seen = ids(batch for rank in (0, 1) for batch in got[rank][3 * epoch : 3 * epoch + 3])
        assert len(seen) == len(set(seen)) == 30
    assert len(got[0]) == len(got[1]) == 7


def test_a_state_within_an_epoch_of_a_fixed_length_goes_on_to_its_end() -> None:
    pipe = shuffled("cut")
    with pipe.iter_batches(epochs=2, epoch_batches=4, workers=ONE) as batches:
        first = [next(batches) for _ in range(3)]
        state = json.loads(json.dumps(batches.state_dict()))
    with pipe.iter_batches(epochs=2, epoch_batches=4, workers=ONE, state=state) as batches:
        assert len(batches) == 5
        rest = list(batches)
    assert len(rest) == 5
    assert all(len(set(ids(some))) == 32 for some in ([*first, *rest[:1]], rest[1:]))


@pytest.mark.parametrize("used", [4, 6])
def test_a_state_behind_an_epoch_of_a_fixed_length_leaves_none_of_the_next_ones_out(used: int) -> None:
    pipe = numbers(ROWS, "behind").batch(5)
    options: dict[str, Any] = {"epochs": 3, "first_epoch": 0, "epoch_batches": 4, "steps": 11}
    whole = [ids([batch]) for batch in pipe.iter_batches(debug=True, **options)]
    with pipe.iter_batches(workers=ONE, **options) as batches:
        first = [ids([next(batches)]) for _ in range(used)]
        state = json.loads(json.dumps(batches.state_dict()))
    with pipe.iter_batches(workers=ONE, state=state, **options) as batches:
        assert len(batches) == 11 - used
        assert [*first, *(ids([batch]) for batch in batches)] == whole
