"""Functions that fork: a child that comes back is ended and told of, and what was meant to be a child is left alone."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import OpError
from pecan_ray.options import OnError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Split
from tests.unit.engines.engine_leases import OwnSource, numbers, running

Change = Callable[[dict[str, Any]], dict[str, Any]]


def gone_through(pipe: PecanPipeline, found: list[int], on_error: OnError = "raise") -> None:
    """Run a pipeline as a worker does, and note what came of it until an error was raised."""

    def run() -> None:
        with running(pipe, threads=2, on_error=on_error) as (_, batches):
            for one in batches:
                found.extend(int(x) for x in (one.columns["i"] if one.rows else ()))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def at_seven(in_child: Callable[[], object]) -> Change:
    """Return a function that makes a child for one element and waits for it: what it does is done by then."""

    def fork(element: dict[str, Any]) -> dict[str, Any]:
        if element["i"] != 7:
            return element
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return element
        in_child()
        return {"i": np.int64(-1)}

    return fork


def comes_back() -> None:
    pass


def fails() -> None:
    raise ValueError("only here")


def leaves() -> None:
    sys.exit(0)


def vanishes() -> None:
    os._exit(0)


KINDS: dict[str, Callable[[Change], PecanPipeline]] = {
    "map": lambda fork: numbers().map(fork, name="forking").batch(4),
    "filter": lambda fork: numbers().filter(lambda e: bool(fork(e)), name="forking").batch(4),
    "flat_map": lambda fork: numbers().flat_map(lambda e: [fork(e)], name="forking").batch(4),
    "bucket": lambda fork: numbers().bucket_by_length([3], sizes=2, length=lambda e: len(fork(e))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_child_that_comes_back_writes_nothing_and_is_told_by_name(kind: str, on_error: OnError) -> None:
    found: list[int] = []
    with pytest.raises(OpError, match=r": a child process .* element 7 of split 0 .* came back") as caught:
        gone_through(KINDS[kind](at_seven(comes_back)), found, on_error)
    assert caught.value.op.startswith("bucket_by_length" if kind == "bucket" else "forking")
    assert caught.value.element == 7
    assert -1 not in found and len(found) == len(set(found))


def test_so_is_one_that_raises_what_the_parent_has_not_raised_and_one_in_a_debug_run() -> None:
    with pytest.raises(OpError, match=r"came back from the function, by raising ValueError: only here"):
        gone_through(KINDS["map"](at_seven(fails)), [])
    with pytest.raises(OpError, match=r"forking: a child process .* element 7 of split 0"):
        list(KINDS["map"](at_seven(comes_back)).iter_batches(epochs=1, debug=True))


def test_so_is_one_of_a_function_in_a_process_of_its_own() -> None:
    found: list[int] = []
    pipe = numbers().map(at_seven(fails), name="forking", processes=True).batch(4)
    with pytest.raises(OpError, match=r"forking failed on element .*: ForkedError: forking: a child process"):
        gone_through(pipe, found, "skip")
    assert -1 not in found


class ForkingSource(OwnSource):
    """A source that makes a child in the middle of a split, which comes back."""

    def read(self, split: Split, start: int = 0) -> Iterator[dict[str, Any]]:
        mine = True
        for number in range(start, 20):
            if number == 7 and (child := os.fork()):
                os.waitpid(child, 0)
            elif number == 7:
                mine = False
            yield {"i": number if mine else -1}


def test_so_is_one_of_a_source() -> None:
    found: list[int] = []
    with pytest.raises(OpError, match=r"read ForkingSource: a child process .* while element 7 of split 0"):
        gone_through(PecanPipeline(ForkingSource()).batch(2), found)
    assert -1 not in found


@pytest.mark.parametrize(("in_child", "processes"), [(leaves, False), (vanishes, False), (leaves, True)])
def test_a_child_that_ends_itself_is_left_alone(in_child: Callable[[], None], processes: bool) -> None:
    found: list[int] = []
    gone_through(numbers().map(at_seven(in_child), processes=processes).batch(4), found)
    assert sorted(found) == list(range(40))


def test_processes_that_are_started_as_they_should_be_and_pipelines_in_them_work(tmp_path: Path) -> None:
    def within() -> None:
        inner = numbers().map(lambda e: e).batch(40).iter_batches(epochs=1, debug=True)
        (tmp_path / "sum").write_text(str(sum(int(x) for batch in inner for x in batch["i"])))

    def start(element: dict[str, Any]) -> dict[str, Any]:
        if element["i"] == 3:
            child = multiprocessing.get_context("fork").Process(target=within)
            child.start()
            child.join()
            said = subprocess.run(["echo", "there"], check=True, capture_output=True, text=True).stdout
            (tmp_path / "said").write_text(said)
        return element

    found: list[int] = []
    gone_through(numbers().map(start).batch(4), found)
    assert sorted(found) == list(range(40))
    assert [(tmp_path / name).read_text() for name in ("sum", "said")] == [str(sum(range(40))), "there\n"]
