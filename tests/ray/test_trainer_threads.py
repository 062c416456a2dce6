"""Threads and forks of the trainer: an iterator serves each batch once, and belongs to one process."""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PecanError, PlanError

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")


def pipeline(elements: int = 400) -> pecan.PecanPipeline:
    """Return a pipeline over numbers."""
    return pecan.PecanPipeline(pecan.sources.Arrays({"x": np.arange(elements)}, split_rows=20)).batch(10)


@pytest.mark.parametrize("debug", [False, True])
def test_several_threads_share_the_batches_and_an_error_reaches_each_of_them(debug: bool) -> None:
    def fail_late(x: int) -> int:
        if x == 390:
            raise ValueError("too large")
        return x

    taken: list[list[int]] = [[] for _ in range(4)]
    errors: list[Exception] = []
    batches = pipeline().unbatch().map(fail_late, on="x").batch(10).iter_batches(order="strict", debug=debug)

    def take(mine: list[int]) -> None:
        try:
            for batch in batches:
                mine.extend(batch["x"].tolist())
        except (PecanError, ValueError) as error:  # debug mode raises the function's own
            errors.append(error)

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    came = sorted(x for mine in taken for x in mine)
    assert came == list(range(len(came))) and len(came) <= 390, "what lies before the error, as far as it has come"
    assert len(errors) == 4 and all("too large" in str(error) for error in errors)


def test_forked_children_leave_the_job_alone_however_they_leave_it() -> None:
    batches = pipeline().iter_batches(epochs=1)
    held = next(batches)["x"]
    before = held.copy()
    with pytest.raises(PlanError, match="num_workers=0"):
        pickle.dumps(batches)
    seen = held.tolist()
    for ending in ("drop", "close", "next"):
        child = os.fork()
        if child == 0:
            status = 0
            if ending == "drop":
                del batches, held
            elif ending == "close":
                batches.close()
            elif ending == "next":
                try:
                    next(batches)
                    status = 1
                except PecanError:
                    del batches
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, ending
        seen += next(batches)["x"].tolist()
        assert (held == before).all(), ending
    for batch in batches:
        seen.extend(batch["x"].tolist())
    assert sorted(seen) == list(range(400))
