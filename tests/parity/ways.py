"""The columns of the table: ways to iterate over a pipeline."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray.integrations import framework_methods
from pecan_ray.integrations.passes import Passes
from tests.parity.ours import Pipe
from tests.parity.seen import Batch, Pass, batch_of

HERE: Mapping[str, Any] = {"debug": True}
WORKER: Mapping[str, Any] = {"workers": pecan.Workers(local=1), "order": "strict"}
"""One worker, and the order that debug mode has, which is given where something is shuffled or mixed."""


@dataclass
class Loader:
    """Where nothing more is said: a pipeline and options for a library's own trainer, of which its own rows ask."""

    pipe: Pipe
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.opened()

    def opened(self) -> None:
        """Open what is there before the first pass."""

    def run(self, *most: int | None) -> list[Pass]:
        """Begin a pass for each, and leave it behind so many batches; None: at its end."""
        raise NotImplementedError

    def epochs(self, count: int) -> list[Pass]:
        return self.run(*[None] * count)

    def close(self) -> None:
        """End the job, where that does not end with the loop."""


class Iterated(Loader):
    def again(self) -> Any:
        """Return what can be iterated over."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Batch]:
        return map(batch_of, self.again())

    def __len__(self) -> int:
        return len(self.again())

    def run(self, *most: int | None) -> list[Pass]:
        passes = []
        for count in most:
            batches = iter(self)
            passes.append(list(itertools.islice(batches, count)))
            del batches
        return passes


class Calls(Iterated):
    def opened(self) -> None:
        self.begun: list[Any] = []

    def again(self, **more: Any) -> Any:
        self.begun.append(self.pipe.iter_batches(**self.options, **more))
        return self.begun[-1]

    def close(self) -> None:
        for batches in self.begun:
            batches.close()

    def epochs(self, count: int) -> list[Pass]:
        with self.again(epochs=count) as batches:
            return [list(map(batch_of, batches.one_epoch())) for _ in range(count)]


class Awaited(Loader):
    def run(self, *most: int | None) -> list[Pass]:
        async def one(count: int | None) -> Pass:
            found: Pass = []
            async with self.pipe.iter_batches_async(**self.options) as batches:
                while count is None or len(found) < count:
                    try:
                        found.append(batch_of(await anext(batches)))
                    except StopAsyncIteration:
                        break
            return found

        return [asyncio.run(one(count)) for count in most]


class Torch(Iterated):
    def opened(self) -> None:
        self.data: Any = self.pipe.to_torch(**self.options)

    def again(self) -> Any:
        return self.data

    def close(self) -> None:
        self.data.close()


class TorchsLoader(Torch):
    def opened(self) -> None:
        from torch.utils.data import DataLoader

        super().opened()
        self.loader = DataLoader(self.data, batch_size=None, num_workers=0)

    def again(self) -> Any:
        return self.loader


class TfDataset(Iterated):
    passes: Passes

    def opened(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(framework_methods, "Passes", self._note)
            self.data: Any = self.pipe.to_tf_dataset(**self.options)

    def _note(self, *arguments: Any, **options: Any) -> Passes:
        self.passes = Passes(*arguments, **options)
        return self.passes

    def again(self) -> Any:
        return self.data

    def close(self) -> None:
        """End the job here, since a `tf.data.Dataset` has no `close`: a user's ends with the program."""
        self.passes.close()


class KerasData(Loader):
    """What `fit` of Keras is given."""

    def opened(self) -> None:
        columns = list(self.pipe.peek())
        self.data: Any = self.pipe.to_keras(columns, columns[0], **self.options)

    def close(self) -> None:
        self.data.close()


class Shard(Loader):
    def opened(self) -> None:
        from pecan_ray.integrations.ray_train import PipelineShard

        self.data: Any = PipelineShard(self.pipe, {"rank": 0, "world_size": 1, "job": "shard"}, 9, dict(self.options))

    def run(self, *most: int | None) -> list[Pass]:
        return [list(itertools.islice(map(batch_of, self.data.iter_batches()), count)) for count in most]

    def close(self) -> None:
        self.data.close()


@dataclass(frozen=True)
class Way:
    name: str
    loader: Callable[..., Loader]
    has: frozenset[str] = frozenset()
    """"iterator": `iter()` gives one; "length": `len()` may."""
    engine: str = "python"
    has_own_rows_only: bool = False
    """A trainer makes the passes, and what it does with them is said of it alone."""


ITERATED = frozenset({"iterator", "length"})
WAYS = (
    Way("iter_batches", Calls, ITERATED),
    Way("tensorflow engine", Calls, ITERATED, engine="tensorflow"),
    Way("async", Awaited),
    Way("to_torch", Torch, ITERATED),
    Way("DataLoader", TorchsLoader, ITERATED),
    Way("to_tf_dataset", TfDataset, ITERATED),
    Way("Ray Train", Shard),
    Way("to_keras", KerasData, has_own_rows_only=True),
    Way("Lightning", Loader, has_own_rows_only=True),
    Way("Trainer", Loader, has_own_rows_only=True),
)
