"""Rows of the table: data sets of libraries, several processes, and programs that run again."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests.parity.chains import LONG, PLAIN, RANDOM, SHUFFLED, N, rows
from tests.parity.habit import Habit, Seen
from tests.parity.looks import ours
from tests.parity.peers import DataLoader, TfData, torch_loader
from tests.parity.seen import Facts, batch_of


def looked_at(data: Any) -> Seen:
    return Seen([list(map(batch_of, data.take(2))) for _ in range(3)])


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


def another_way(loader: Any) -> Seen:
    first = loader.run(None)
    return Seen([*first, list(map(batch_of, loader.pipe.iter_batches(**loader.options)))])


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
        "`to_tf_dataset().take(2)`, three times",
        ours(lambda loader: looked_at(loader.data), LONG),
        "the first batches of three passes",
        {"batches": [[8, 8]] * 3, "equal orders": "aaa"},
        peers={"tf.data": lambda: looked_at(TfData().produced(LONG)().again())},
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
)
