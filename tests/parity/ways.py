"""The columns of the table: ways to iterate over a pipeline."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray.integrations import framework_methods
from pecan_ray.integrations.passes import Passes
from tests.parity.ours import Pipe
from tests.parity.seen import Pass, Repeated, batch_of
from tests.parity.trainers import hugging_face_train, keras_fit, lightning_fit

HERE: Mapping[str, Any] = {"debug": True}
WORKER: Mapping[str, Any] = {"workers": pecan.Workers(local=1), "order": "strict"}
"""One worker, and the order that debug mode has, which is given where something is shuffled or mixed."""


@dataclass
class Loader(ABC):
    pipe: Pipe
    options: Mapping[str, Any]
    steps: int | None = None
    """Batches of a pass, for libraries that must be told; None: they are known."""

    def __post_init__(self) -> None:
        self.data: Any = None
        self.opened()

    def opened(self) -> None:  # noqa: B027 - some ways open nothing before their first pass
        ...

    @abstractmethod
    def run(self, *most: int | None) -> list[Pass]:
        """Begin a pass for each, and leave it behind so many batches; None: at its end."""

    def epochs(self, count: int) -> list[Pass]:
        return self.run(*[None] * count)

    def close(self) -> None:
        if self.data is not None:  # most ways end their job with the loop
            self.data.close()


class Iterated(Repeated, Loader):
    def again(self) -> Any:
        return self.data


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
        self.data = self.pipe.to_torch(**self.options)


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
            self.data = self.pipe.to_tf_dataset(**self.options)

    def _note(self, *arguments: Any, **options: Any) -> Passes:
        self.passes = Passes(*arguments, **options)
        return self.passes

    def close(self) -> None:
        """End the job here, since a `tf.data.Dataset` has no `close`: a user's ends with the program."""
        self.passes.close()


class KerasFit(Loader):
    """`fit` of Keras: consecutive passes of one length are epochs of one call."""

    def opened(self) -> None:
        columns = list(self.pipe.peek())
        self.data = self.pipe.to_keras(columns, columns[0], steps=self.steps, **self.options)

    def run(self, *most: int | None) -> list[Pass]:
        fits = [keras_fit(self.data, epochs, steps_per_epoch=count) for count, epochs in grouped(most)]
        return [one for fit in fits for one in fit.trained]


class LightningFit(Loader):
    """`fit` of Lightning: consecutive passes of one length are epochs of one call."""

    def run(self, *most: int | None) -> list[Pass]:
        from pecan_ray.integrations import PecanDataModule

        data = PecanDataModule(self.pipe, options=self.options)
        fits = [
            lightning_fit(epochs, datamodule=data, limits={"limit_train_batches": count or 1.0})
            for count, epochs in grouped(most)
        ]
        return [one for fit in fits for one in fit.trained]


class Shard(Loader):
    def opened(self) -> None:
        from pecan_ray.integrations.ray_train import PipelineShard

        self.data = PipelineShard(self.pipe, {"rank": 0, "world_size": 1, "job": "shard"}, 9, dict(self.options))

    def run(self, *most: int | None) -> list[Pass]:
        return [list(itertools.islice(map(batch_of, self.data.iter_batches()), count)) for count in most]


class TrainerTrain(Loader):
    """`train` of a `Trainer` of Hugging Face: consecutive passes of one length are epochs of one call."""

    def run(self, *most: int | None) -> list[Pass]:
        from pecan_ray.integrations import PecanTrainer

        trained: list[Pass] = []
        for count, epochs in grouped(most):
            steps = count or (self.steps and self.steps * epochs)
            for _ in range(epochs if count else 1):  # a Trainer has no epochs of so many steps
                trained += hugging_face_train(
                    PecanTrainer, self.pipe, epochs, steps=steps, options=self.options
                ).trained
        return trained


def grouped(most: tuple[int | None, ...]) -> list[tuple[int | None, int]]:
    return [(count, len(list(several))) for count, several in itertools.groupby(most)]


@dataclass(frozen=True)
class Way:
    name: str
    loader: Callable[..., Loader]
    has: frozenset[str] = frozenset()
    """"iterator": `iter()` gives one; "length": `len()` may."""
    engine: str = "python"
    is_slow: bool = False
    """Whether a pass takes tenths of a second."""


ITERATED = frozenset({"iterator", "length"})
WAYS = (
    Way("iter_batches", Calls, ITERATED),
    Way("tensorflow engine", Calls, ITERATED, engine="tensorflow"),
    Way("async", Awaited),
    Way("to_torch", Torch, ITERATED),
    Way("DataLoader", TorchsLoader, ITERATED),
    Way("to_tf_dataset", TfDataset, ITERATED),
    Way("to_keras", KerasFit, is_slow=True),
    Way("Lightning", LightningFit, is_slow=True),
    Way("Trainer", TrainerTrain, is_slow=True),
    Way("Ray Train", Shard),
)
