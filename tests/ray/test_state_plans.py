"""States of every kind of plan and format; what is read again behind a cut; and driver programs that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError, StateError
from pecan_ray.plan.splits import OUTPUT_BITS, Element, Split
from tests.long_form import some_later
from tests.ray.conftest import living_actors
from tests.ray.waiting import until
from tests.ray.workers import ONE_BY_ONE, lose, maker

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROOT = Path(__file__).resolve().parents[2]
ROWS = 400


def numbers(first: int = 0, column: str = "i") -> pecan.PecanPipeline:
    return pecan.PecanPipeline(
        pecan.sources.Arrays(**dict[str, Any]({column: np.arange(first, first + ROWS)})), name="plans"
    )


def length(row: dict[str, Any]) -> int:
    return int(row["i"]) % 40


CHANGING = pecan.WeightSchedule([(0, [3, 1]), (1, [1, 3])])

PLANS: dict[str, Callable[[], pecan.PecanPipeline]] = {
    "buckets": lambda: numbers().bucket_by_length([10, 20], sizes=[8, 4, 2], length=length),
    "mix": lambda: numbers().mix(numbers(1000), weights=CHANGING).shuffle(30).batch(6),
    "concat": lambda: numbers().concat(numbers(1000)).batch(6),
    "zip": lambda: numbers().zip(numbers(1000, "j")).batch(6),
    "skip": lambda: numbers().skip(50).batch(6),
}
IN_ORDER = ("zip", "skip")


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["i"]]


def through_a_file(state: dict[str, Any]) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_goes_on_with_what_was_not_yielded(plan: str) -> None:
    pipe, workers = PLANS[plan](), pecan.Workers(local=1)
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1, remote=1)) as it:
        got = ids(islice(it, 30))
        state = through_a_file(it.state_dict())
    with pipe.iter_batches(epochs=2, workers=workers, state=state) as it:
        got += ids(it)
    whole = ids(pipe.iter_batches(epochs=2, workers=workers, first_epoch=0))
    assert Counter(got) == Counter(whole) and len(whole) > 2 * 300
    if plan in IN_ORDER:
        assert got == whole


def test_a_state_that_a_loop_in_another_thread_runs_away_from_is_refused_by_that() -> None:
    """While the loop stands, any number of threads are told the same."""
    with numbers().batch(2).iter_batches(epochs=None, workers=pecan.Workers(local=1)) as it:
        over, refused = threading.Event(), list[str]()

        def loop() -> None:
            for _ in it:
                if over.is_set():
                    return

        def asked() -> bool:
            try:
                it.state_dict()
            except StateError as error:
                refused.append(str(error))
            return bool(refused)

        running = threading.Thread(target=loop)
        running.start()
        try:
            until(asked, "the loop is never ahead")
        finally:
            over.set()
            running.join()
        assert "gone on in another thread" in refused[0]
        with ThreadPoolExecutor(4) as pool:
            states = list(pool.map(lambda _: through_a_file(it.state_dict()), range(8)))
        assert all(state == states[0] for state in states)


# --- what is read ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noted:
    """Ten numbers in each split, which writes down what is read."""

    folder: str
    splits_in_all: int = 40
    known: bool = True
    """Whether a split tells how many these are."""

    def splits(self) -> Iterator[Split]:
        """Yield the splits."""
        yield from (Split(index, elements=10 if self.known else None) for index in range(self.splits_in_all))

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the numbers of a split."""
        for element in range(start, 10):
            with (Path(self.folder) / str(split.index)).open("a") as file:
                file.write(f"{element}\n")
            yield {"i": 10 * split.index + element}

    def num_elements(self) -> int:
        """Return how many numbers there are."""
        return 10 * self.splits_in_all

    def identity(self) -> str:
        """Return what it is told apart by."""
        return f"noted {self.splits_in_all}"


@pytest.mark.parametrize("order", some_later(["relaxed", "strict"], "strict"))
def test_what_was_delivered_is_not_read_again(tmp_path: Path, order: Any) -> None:
    def begin(name: str, state: Any = None) -> Any:
        (tmp_path / name).mkdir()
        pipe = pecan.PecanPipeline(Noted(str(tmp_path / name)), name="noted").batch(7)
        return pipe.iter_batches(workers=pecan.Workers(local=1), order=order, state=state)

    pipe_of_other_path = pytest.raises(pecan.errors.StateError, match="source Noted")
    with begin("first") as it:
        got = ids(islice(it, 25))
        state = through_a_file(it.state_dict())
    with pipe_of_other_path:
        begin("other", state)
    for file in (tmp_path / "first").iterdir():
        file.unlink()
    (tmp_path / "first").rmdir()
    with begin("first", state) as it:
        rest = ids(it)
    assert Counter(got + rest) == Counter(range(400))
    read = {int(file.name) for file in (tmp_path / "first").iterdir()}
    done = {index for index in range(40) if set(range(10 * index, 10 * index + 10)) <= set(got)}
    assert len(done) > 10 and not read & done, "what was delivered whole is not opened"
    assert all((tmp_path / "first" / str(index)).read_text().count("\n") <= 10 for index in read)


@dataclass(frozen=True)
class Mapped:
    """Lets elements through, and writes down which."""

    folder: str

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the element."""
        with (Path(self.folder) / "mapped").open("a") as file:
            file.write(f"{row['i']}\n")
        return row


@pytest.mark.parametrize("known", some_later([True, False], False), ids=["known lengths", "unknown lengths"])
def test_a_whole_plan_goes_on_behind_the_elements_that_were_delivered(tmp_path: Path, known: bool) -> None:
    """Also where its worker is lost: what was received is not read again by the next one, where lengths are known."""
    source = Noted(str(tmp_path), known=known)

    def begin(state: Any = None) -> Any:
        pipe = pecan.PecanPipeline(source, name="behind").skip(25).map(Mapped(str(tmp_path)), name="mapped")
        workers = pecan.Workers(local=1, remote=1)
        return pipe.take(300).batch(7).iter_batches(workers=workers, state=state, epochs=2)

    def noted() -> dict[int, list[int]]:
        files = [file for file in tmp_path.iterdir() if file.name != "mapped"]
        return {int(file.name): list(map(int, file.read_text().split())) for file in files}

    with begin() as it:
        got = ids(islice(it, 15))
        lose(it, maker(it))
        got += ids(islice(it, 5))
        read, mapped = noted(), list(map(int, (tmp_path / "mapped").read_text().split()))
        state = through_a_file(it.state_dict())
    assert Counter(mapped)[25] == 1, "the second worker does not run operators on what was received"
    if known:
        assert all(read[split] == list(range(10)) for split in range((25 + 15 * 7) // 10)), "it opens none of these"
    for file in tmp_path.iterdir():
        file.unlink()
    with begin(state) as it:
        got += ids(islice(it, 23))
        read, mapped = noted(), list(map(int, (tmp_path / "mapped").read_text().split()))
        told = [event.text for event in it.report().events if event.kind == "state"]
        got += ids(it)
    assert got == 2 * list(range(25, 325))
    delivered = 25 + 20 * 7
    assert min(mapped[: 300 - 20 * 7]) == delivered
    assert "20 batches of epoch 0 that were used before are not made again" in told[0]
    if known:
        assert min(read) == delivered // 10 and read[delivered // 10][0] == delivered % 10 and len(told) == 1
    else:
        assert min(read) == 0 and "source 0 does not tell how many elements its splits hold" in told[1]
        assert len(told) == 2


# --- other promises than exactly once -------------------------------------------------------------------------


@pytest.mark.parametrize("visitation", some_later(["at_most_once", "zero_or_more"], "zero_or_more"))
def test_a_killed_worker_breaks_no_promise_that_was_made(visitation: Any) -> None:
    rows, splits_of = 2000, 20
    source = pecan.sources.Arrays(i=np.arange(rows), split_rows=splits_of)
    pipe = pecan.PecanPipeline(source, name="promises").batch(5)
    seen: Counter[tuple[int, int, int]] = Counter()
    options: dict[str, Any] = {"visitation": visitation, "epochs": 2, **ONE_BY_ONE}
    with pipe.iter_batches(workers=pecan.Workers(local=1, remote=1), **options) as it:
        for step, batch in enumerate(it):
            assert it.provenance is not None
            epoch, spans = it.provenance.epoch, it.provenance.spans
            places = [
                (epoch, split, place >> OUTPUT_BITS)
                for (_, _, split), found in spans.items()
                for start, stop in found
                for place in range(start, stop, 1 << OUTPUT_BITS)
            ]
            assert len(places) == len(batch["i"])
            seen.update(places)
            if step == 20:
                lose(it, maker(it))
        with pytest.raises(PlanError, match=visitation):
            it.state_dict()
        assert it._session is not None
        facts = it._session.facts()
    assert facts.workers_lost == 1
    if visitation == "at_most_once":
        assert max(seen.values()) == 1
        dropped = {
            (0, split, element)
            for (_, _, split), spans in facts.dropped
            for start, stop in spans
            for element in range(start >> OUTPUT_BITS, min(splits_of, stop >> OUTPUT_BITS))
        }
        everything = {(e, s, n) for e in range(2) for s in range(rows // splits_of) for n in range(splits_of)}
        assert everything - seen.keys() == dropped and dropped, "what the lost worker held, and nothing else"
    else:
        assert len(seen) == 2 * rows, "it gives all out again that may be lost"


# --- programs -------------------------------------------------------------------------------------------------

DRIVER = """
import json
import os
import sys

import ray

import pecan_ray as pecan
from tests.ray.test_state_plans import numbers

checkpoint, where = sys.argv[1:]
if where == "of its own":
    ray.init(address="local", num_cpus=2, namespace="pecan", log_to_driver=False)
saved = json.load(open(checkpoint)) if os.path.exists(checkpoint) else {"model": [], "input": None}
model = saved["model"]
pipe = numbers().shuffle(40).batch(4)
with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1), state=saved["input"]) as batches:
    for step, batch in enumerate(batches):
        model += batch["i"].tolist()
        if step % 10 == 9:
            with open(checkpoint + ".new", "w") as file:
                json.dump({"model": model, "input": batches.state_dict()}, file)
            os.replace(checkpoint + ".new", checkpoint)
            print(step, flush=True)
print(json.dumps(model))
"""


@pytest.mark.slow  # three programs, one of them with a Ray of its own
def test_programs_that_are_killed_and_started_again_also_on_another_cluster_train_on_each_element_once(
    three_nodes: Any, tmp_path: Path
) -> None:
    environment = {**os.environ, "RAY_ADDRESS": three_nodes.address, "PYTHONPATH": str(ROOT)}
    checkpoint = str(tmp_path / "model.json")

    def start(where: str) -> Any:
        arguments = [sys.executable, "-c", DRIVER, checkpoint, where]
        return subprocess.Popen(arguments, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    for _ in range(2):
        program = start("shared")
        assert program.stdout is not None
        for _ in range(3):  # three checkpoints, and what it has trained on since is lost with it
            assert program.stdout.readline()
        program.kill()
        program.communicate()
    del environment["RAY_ADDRESS"]
    last = start("of its own")
    out, _ = last.communicate(timeout=180)
    assert last.returncode == 0
    assert Counter(json.loads(out.splitlines()[-1])) == Counter(2 * list(range(ROWS)))
    until(lambda: not living_actors(), "the jobs of the killed programs do not end")
