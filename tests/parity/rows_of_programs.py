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
from tests.parity.looks import ours
from tests.parity.ours import pipeline
from tests.parity.peers import DataLoader, TfData, torch_loader
from tests.parity.seen import Facts, Pass, Seen, batch_of

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


def by_calls(pipe: PecanPipeline, loader: Any, **more: Any) -> Pass:
    return list(map(batch_of, pipe.iter_batches(**{**loader.options, **more})))


def another_way(loader: Any) -> Seen:
    first = loader.run(None)
    return Seen([*first, by_calls(loader.pipe, loader)])


def left_in_the_second(loader: Any) -> Seen:
    with loader.pipe.iter_batches(epochs=None, **loader.options) as batches:
        first, second = [batch_of(batch) for batch in batches.one_epoch()], batch_of(next(batches))
    return Seen([first, [second], *loader.run(None)])


def closed_between(loader: Any) -> Seen:
    first = loader.run(None)
    loader.close()
    return Seen([*first, *loader.run(None)])


def unpickled(loader: Any) -> Seen:
    first = loader.run(None)
    return Seen([*first, by_calls(pickle.loads(pickle.dumps(loader.pipe)), loader)])


def unpickled_loader() -> Seen:
    loader = DataLoader().produced(SHUFFLED)()
    first = loader.run(None)
    return Seen([*first, list(map(batch_of, pickle.loads(pickle.dumps(loader.again()))))])


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
    return Seen([by_calls(pipeline(RANDOM, seed=None), loader), program()[0]])


def forked(_: Any) -> Seen:
    """Return a pass in a child that was forked, and the next one of its parent."""
    return Seen(program()[1:])


BY_CALLS = ("iter_batches", "tensorflow engine")
OTHERS = {
    "a pass in one way to iterate, and one by `iter_batches`": ours(another_way, RANDOM, passes=(0, 1)),
    "`iter_batches(epochs=None)`, left in its second pass": ours(
        left_in_the_second, RANDOM, only=BY_CALLS, passes=(0, 1, 2)
    ),
    "`to_tf_dataset().take(2)`, three times": ours(
        lambda loader: looked_at(loader.data),
        LONG,
        peers={"tf.data": lambda: looked_at(TfData().produced(LONG)().again())},
        only=("to_tf_dataset",),
    ),
    "`to_tf_dataset().repeat(2)`": ours(
        lambda loader: repeated(loader.data),
        SHUFFLED,
        peers={"tf.data": lambda: repeated(TfData().produced(SHUFFLED)().again())},
        only=("to_tf_dataset",),
    ),
    "`DataLoader(data, num_workers=2)` over `to_torch()`": ours(
        lambda loader: in_two_processes(loader.data),
        PLAIN,
        peers={"DataLoader": lambda: in_two_processes(torch_stream())},
        only=("to_torch",),
    ),
    "two loops by `async for` at once": ours(
        lambda loader: awaited_at_once(loader.pipe, loader.options), SHUFFLED, only=("async",)
    ),
    "`close()` between two passes": ours(
        closed_between, RANDOM, only=("to_torch", "to_keras", "Ray Train"), passes=(0, 1)
    ),
    "`with_config(...)` between two passes": ours(
        lambda loader: Seen([by_calls(loader.pipe.with_config(error_budget=n / 10), loader) for n in range(2)]),
        RANDOM,
        only=("iter_batches",),
        passes=(0, 1),
    ),
    "a pickled pipeline": ours(
        unpickled, SHUFFLED, peers={"DataLoader": unpickled_loader}, only=BY_CALLS, passes=(0, 0)
    ),
    "`sampler.set_epoch(3)`, `iter_batches(first_epoch=3)`": ours(
        lambda loader: Seen([by_calls(loader.pipe, loader, first_epoch=3) for _ in range(2)]),
        SHUFFLED,
        peers={"DataLoader": set_epochs},
        only=BY_CALLS,
        passes=(3, 3),
    ),
    "the program is run again, no seed is given": ours(restarted, RANDOM, only=("iter_batches",)),
    "`os.fork()` between two passes": ours(forked, RANDOM, only=("iter_batches",)),
}
