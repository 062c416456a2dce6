"""Sending a plan to workers: what cannot be pickled is named before anything starts."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PlanError, UnpicklablePlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.runtime.pickling import pickle_plan, pickle_sources
from pecan_ray.sources import Arrays, Items
from tests.ray.waiting import ENDS_S
from tests.unit.engines.engine_leases import column, run_engine


def numbers() -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(4)))


def test_memory_maps_are_opened_again_by_their_paths(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(200_000).reshape(1000, 200))
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.arange(6).reshape(2, 3)))
    whole = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    np.save(tmp_path / "fields.npy", np.zeros(7, [("a", "i1"), ("b", "f8")]))
    columns, fields = (np.load(tmp_path / name, mmap_mode="r") for name in ("columns.npy", "fields.npy"))
    maps = [whole, whole[10:20], whole[990:, None][1:], columns, whole[:, 1::2], whole[3:4, None].T, fields["b"]]
    parts = [*maps, np.asarray(whole)]
    copied = [whole[::-500], np.load(tmp_path / "columns.npy", mmap_mode="c"), whole[:0]]
    held = parts + copied

    def summed(i: Any) -> Any:
        return [part.sum() for part in held]

    sent = pickle_plan(numbers().map(summed, on="i").plan)
    assert len(sent) < 1_000_000 < whole.nbytes
    (op,) = pickle.loads(sent).ops
    (arrived,) = (cell.cell_contents for cell in op.fn.__closure__)
    assert all(map(np.array_equal, arrived, held))
    assert [isinstance(part, np.memmap) for part in arrived[: len(parts)]] == [True] * len(maps) + [False]
    assert not any(part.flags.writeable for part in arrived[: len(parts)])
    (tmp_path / "columns.npy").unlink()
    with pytest.raises(OSError, match=r"columns\.npy, which the pipeline holds, cannot be opened here"):
        pickle.loads(sent)


def test_large_arrays_that_functions_hold_are_warned_of_by_name(caplog: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("pecan_ray.runtime.pickling.LARGE_BYTES", 1 << 20)
    table, small = np.zeros(1 << 18), np.zeros(8)
    np.save(tmp_path / "map.npy", table)
    mapped = np.load(tmp_path / "map.npy", mmap_mode="r")
    tables = {"within": [np.zeros(1 << 18)]}
    pipe = numbers().map(lambda i: table[i] + small[i] + mapped[i], on="i", name="look_up")
    pickle_plan(pipe.map(lambda i: tables["within"][0][i] + i + later, on="i").plan)
    later = 0  # the plan is pickled before the variable has a value
    said, within = caplog.messages
    assert said.startswith("look_up holds 'table', 2 MB, and each worker gets a copy of it.")
    assert "holds 'tables', 2 MB" in within


SPAWNING = """
import multiprocessing
import numpy as np
import pecan_ray as pecan
from pecan_ray.runtime.pickling import pickle_plan, pickle_sources
OFFSET = 3

class Shapes:
    class Square:
        @staticmethod
        def of(i):
            return i * i + OFFSET

class Scaled:
    def __call__(self, i):
        return Shapes.Square.of(i) * 2

def inside(n):
    return lambda i: i + n + OFFSET

def show():
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4)))
    pipe = pipe.map(Shapes.Square.of, on="i").map(Scaled(), on="i").map(inside(1), on="i").batch(4)
    print(pipe.fingerprint(), pickle_plan(pipe.plan).hex(), flush=True)

if __name__ == "__main__":
    show()
    child = multiprocessing.get_context("spawn").Process(target=show)
    child.start(), child.join()
"""


def test_functions_of_the_main_script_of_a_spawned_process_go_by_value(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SPAWNING)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=ENDS_S)
    shown = [line.split() for line in done.stdout.splitlines()]
    assert len(shown) == 2, done.stderr
    assert len({fingerprint for fingerprint, _ in shown}) == 1
    for _, plan in shown:
        arrived = pickle.loads(bytes.fromhex(plan))
        assert column(run_engine(arrived, order="strict"), "i") == [2 * ((i * i + 3) ** 2 + 3) + 4 for i in range(4)]


class Counting:
    def __init__(self, value: Any) -> None:
        self.by = 2
        self.guard = value

    def __call__(self, i: Any) -> Any:
        return i * self.by

    def method(self, i: Any) -> Any:
        return i


@pytest.mark.parametrize(
    ("made", "variable"),
    [
        (lambda value: lambda i: i if value else None, "value"),
        (lambda value: lambda i, held=value: i if held else None, "held"),
        (lambda value: functools.partial(lambda i, *, guard: i if guard else None, guard=value), "guard"),
        (lambda value: functools.partial(lambda guard, i: i if guard else None, value), "argument 1 of partial"),
        (lambda value: Counting(value).method, "guard"),
    ],
)
def test_the_variable_that_cannot_be_sent_is_named(made: Callable[[Any], Any], variable: str) -> None:
    pipe = numbers().map(lambda i: i, on="i", name="fine").map(made(threading.Lock()), on="i", name="guilty")
    with pytest.raises(UnpicklablePlanError, match=f"guilty: .* since its variable '{variable}' cannot be") as caught:
        pickle_plan(pipe.batch(2).plan)
    assert (caught.value.op, caught.value.variable) == ("guilty", variable)
    assert "Create it inside the function, or in a module that workers import." in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


def test_sources_and_lengths_that_cannot_be_sent_are_errors_of_the_plan() -> None:
    pipe = PecanPipeline(Items([threading.Lock()])).batch(2)
    with pytest.raises(UnpicklablePlanError, match="the source Items cannot be sent to workers: TypeError: cannot"):
        pickle_plan(pipe.plan)
    guard = threading.Lock()
    pipe = numbers().bucket_by_length([2], sizes=2, length=lambda element: 1 if guard else 2)
    with pytest.raises(PlanError, match="the pipeline cannot be sent to workers: TypeError: cannot pickle"):
        pickle_plan(pipe.plan)


LISTED = """
import pickle, sys
(lister,) = pickle.load(sys.stdin.buffer)
print([(split.index, split.path) for split in lister.splits()], "tensorflow" in sys.modules)
"""


def test_a_controller_lists_the_shards_of_a_dataset_without_importing_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")

    def make(num_shards: int, index: int) -> Any:
        return tf.data.Dataset.range(8).shard(num_shards, index)

    pickled = pickle_sources(PecanPipeline.from_tf_data(make, num_shards=2).plan, None)
    done = subprocess.run([sys.executable, "-c", LISTED], input=pickled, check=True, capture_output=True)
    assert done.stdout.decode().strip() == "[(0, 'shard 0 of make'), (1, 'shard 1 of make')] False"
