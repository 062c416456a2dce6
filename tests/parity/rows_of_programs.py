"""Rows of the table: data sets of libraries, several processes, and programs that run again."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pecan_ray.pipeline import PecanPipeline
from tests.parity.chains import LONG, PLAIN, RANDOM, SHUFFLED, N, rows
from tests.parity.habit import Habit, Seen
from tests.parity.looks import ours
from tests.parity.peers import DataLoader, TfData, torch_loader
from tests.parity.seen import Facts, Pass, batch_of

ROOT = Path(__file__).resolve().parents[2]


def looked_at(data: Any) -> Seen:
    return Seen([list(map(batch_of, data.take(2))) for _ in range(3)])


def repeated(data: Any) -> Seen:
    return Seen([list(map(batch_of, data.repeat(2)))], parts=2)


def in_two_processes(data: Any) -> Facts:
    from torch.utils import data as torchs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchs._utils, "MP_STATUS_CHECK_INTERVAL", 0.05)  # torch waits so long for each that has failed
        batches: Any = iter(torchs.DataLoader(data, batch_size=None, num_workers=2))
        try:
            return {"batches": len(list(batches))}
        except Exception as error:
            return {"error": type(error).__name__}
        finally:
            batches._shutdown_workers()


def torch_stream() -> Any:
    import torch

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    return Stream()


def awaited_at_once(pipe: PecanPipeline, options: Any) -> Seen:
    async def one() -> Pass:
        async with pipe.iter_batches_async(**options) as batches:
            return [batch_of(batch) async for batch in batches]

    async def both() -> list[Pass]:
        return list(await asyncio.gather(one(), one()))

    return Seen(asyncio.run(both()))


def another_way(loader: Any) -> Seen:
    first = loader.run(None)
    return Seen([*first, list(map(batch_of, loader.pipe.iter_batches(**loader.options)))])


def left_in_the_second(loader: Any) -> Seen:
    with loader.pipe.iter_batches(epochs=None, **loader.options) as batches:
        first, second = [batch_of(batch) for batch in batches.one_epoch()], batch_of(next(batches))
    return Seen([first, [second], *loader.run(None)])


def closed_between(loader: Any) -> Seen:
    first = loader.run(None)
    loader.close()
    return Seen([*first, *loader.run(None)])


def configured_between(loader: Any) -> Seen:
    options = loader.options
    return Seen(
        [list(map(batch_of, loader.pipe.with_config(error_budget=n / 10).iter_batches(**options))) for n in range(2)]
    )


def unpickled(loader: Any) -> Seen:
    first = loader.run(None)
    copy = pickle.loads(pickle.dumps(loader.pipe))
    return Seen([*first, list(map(batch_of, copy.iter_batches(**loader.options)))])


def unpickled_loader() -> Seen:
    loader = DataLoader().produced(SHUFFLED)()
    first = loader.run(None)
    return Seen([*first, list(map(batch_of, pickle.loads(pickle.dumps(loader.again()))))])


def of_number(loader: Any) -> Seen:
    options = {**loader.options, "first_epoch": 3}
    return Seen([list(map(batch_of, loader.pipe.iter_batches(**options))) for _ in range(2)])


def set_epochs() -> Seen:
    from torch.utils.data import DataLoader as Torchs
    from torch.utils.data import DistributedSampler

    data = torch_loader(rows(N)).dataset
    sampler: Any = DistributedSampler(data, num_replicas=1, rank=0, seed=1)
    found = []
    for _ in range(2):
        sampler.set_epoch(3)
        found.append([batch_of(batch) for batch in Torchs(data, batch_size=8, sampler=sampler)])
    return Seen(found)


PROGRAM = """
import json, os
from tests.parity.chains import RANDOM
from tests.parity.ours import pipeline
from tests.parity.ways import HERE, Calls

loader = Calls(pipeline(RANDOM, seed=None), HERE)
(first,) = loader.run(None)
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, json.dumps(loader.run(None)[0]).encode())
    os._exit(0)
os.close(writing)
child = json.loads(os.fdopen(reading).read())
print(json.dumps([first, child, *loader.run(None)]))
"""


@functools.cache
def program() -> list[Pass]:
    """Return the first pass of another program, the next one in a child that it forks, and the next one in itself."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "random"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    found: list[Pass] = json.loads(done.stdout)
    return found


def restarted(loader: Any) -> Seen:
    from tests.parity.ours import pipeline

    here = list(map(batch_of, pipeline(RANDOM, seed=None).iter_batches(**loader.options)))
    return Seen([here, program()[0]])


def forked(_: Any) -> Seen:
    """Return a pass in a child that was forked, and the next one of its parent."""
    return Seen(program()[1:])


OTHERS = (
    Habit(
        "a pass in one way to iterate, and one by `iter_batches`",
        ours(another_way, RANDOM),
        "all ways count together",
        {"distinct": [N, N], "equal orders": "ab", "draws of an element": "other each time"},
        peers={},
        passes=(0, 1),
    ),
    Habit(
        "`iter_batches(epochs=None)`, left in its second pass",
        ours(left_in_the_second, RANDOM),
        "the next pass is the third",
        {"distinct": [N, 8, N], "equal orders": "abc"},
        peers={},
        only=("iter_batches", "tensorflow engine"),
        passes=(0, 1, 2),
    ),
    Habit(
        "`to_tf_dataset().take(2)`, three times",
        ours(lambda loader: looked_at(loader.data), LONG),
        "the first batches of three passes",
        {"batches": [[8, 8]] * 3, "equal orders": "aaa"},
        peers={"tf.data": lambda: looked_at(TfData().produced(LONG)().again())},
        only=("to_tf_dataset",),
    ),
    Habit(
        "`to_tf_dataset().repeat(2)`",
        ours(lambda loader: repeated(loader.data), SHUFFLED),
        "two passes",
        {"distinct": [N, N], "equal orders": "ab"},
        peers={"tf.data": lambda: repeated(TfData().produced(SHUFFLED)().again())},
        only=("to_tf_dataset",),
    ),
    Habit(
        "`DataLoader(data, num_workers=2)` over `to_torch()`",
        ours(lambda loader: in_two_processes(loader.data), PLAIN),
        "an error: pecan_ray has workers of its own",
        {"error": "PlanError"},
        peers={"DataLoader": lambda: in_two_processes(torch_stream())},
        differs={"DataLoader": "everything comes twice: each process would begin a job of its own"},
        only=("to_torch",),
    ),
    Habit(
        "two loops by `async for` at once",
        ours(lambda loader: awaited_at_once(loader.pipe, loader.options), SHUFFLED),
        "two passes",
        {"distinct": [N, N], "equal orders": "ab"},
        peers={},
        only=("async",),
    ),
    Habit(
        "`close()` between two passes",
        ours(closed_between, RANDOM),
        "the next pass",
        {"equal orders": "ab", "draws of an element": "other each time"},
        peers={},
        only=("to_torch", "to_keras", "Ray Train"),
        passes=(0, 1),
    ),
    Habit(
        "`with_config(...)` between two passes",
        ours(configured_between, RANDOM),
        "the next pass of one pipeline",
        {"equal orders": "ab", "draws of an element": "other each time"},
        peers={},
        only=("iter_batches",),
        passes=(0, 1),
    ),
    Habit(
        "a pickled pipeline",
        ours(unpickled, SHUFFLED),
        "an unpickled one counts from 0",
        {"equal orders": "aa"},
        peers={"DataLoader": unpickled_loader},
        differs={"DataLoader": "a copy goes on where its generator was: a task shall not depend on what came before"},
        only=("iter_batches", "tensorflow engine"),
        passes=(0, 0),
    ),
    Habit(
        "`sampler.set_epoch(3)`, `iter_batches(first_epoch=3)`",
        ours(of_number, SHUFFLED),
        "pass 3",
        {"equal orders": "aa"},
        peers={"DataLoader": set_epochs},
        only=("iter_batches", "tensorflow engine"),
        passes=(3, 3),
    ),
    Habit(
        "the program is run again, no seed is given",
        ours(restarted, RANDOM),
        "the same order and the same random numbers",
        {"equal orders": "aa", "draws of an element": "the same"},
        peers={},
        only=("iter_batches",),
    ),
    Habit(
        "`os.fork()` between two passes",
        ours(forked, RANDOM),
        "parent and child both go on with the next pass (in debug mode: a child cannot run a job)",
        {"equal orders": "aa", "draws of an element": "the same"},
        peers={},
        only=("iter_batches",),
    ),
)
