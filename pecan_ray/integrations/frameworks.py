"""What a pipeline has for users of other libraries: pipelines made of theirs, and theirs made of a pipeline.

Each library is imported when its method is called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pecan_ray.errors import MissingExtraError, PlanError
from pecan_ray.options import Config
from pecan_ray.plan.operators import Function
from pecan_ray.sources.tf_data import TfDataSource

if TYPE_CHECKING:
    from typing import Self

OTHERS_WORDS = {
    "batch_size": "make batches by the pipeline's .batch(n), or .padded_batch(n)",
    "drop_last": "say .batch(n, drop_remainder=True)",
    "shuffle": "put .shuffle(buffer) into the pipeline",
    "local_shuffle_buffer_size": "put .shuffle(buffer) into the pipeline",
    "local_shuffle_seed": "PecanPipeline(seed=...) is of everything random",
    "num_workers": "pecan_ray has workers of its own: workers=pecan.Workers(local=...)",
    "collate_fn": "put .map(fn) behind .batch(n): it runs on the workers",
    "dtypes": "cast in a .map of the pipeline: it runs on the workers",
    "pin_memory": "memory is pinned where device= is a GPU",
    "prefetch_batches": "prefetch_bytes=... bounds what waits at the trainer",
    "prefetch_factor": "prefetch_bytes=... bounds what waits at the trainer",
}
"""Arguments that loaders of others have, and what does their work here."""


class Runnable(Protocol):
    """A pipeline, as far as these methods need it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def iter_batches(self) -> Callable[..., Any]:
        """Runs it."""
        ...

    def __len__(self) -> int: ...


class FrameworkMethods:
    """Methods of `PecanPipeline` for torch, TensorFlow, Keras, Ray and Hugging Face."""

    @classmethod
    def from_tf_data(
        cls,
        make_dataset: Function,
        *,
        num_shards: int = 16,
        name: str | None = None,
        seed: int | None = None,
        config: Config | None = None,
    ) -> Self:
        """Wrap an existing tf.data pipeline, given by a function that makes it.

        A function that takes ``(num_shards, shard_index)`` is read by many workers, shard by shard; one without
        parameters by one.
        """
        make: Callable[..., Self] = cls
        source = TfDataSource(make_dataset, num_shards=num_shards)
        return make(source, name=name, engine="tensorflow", seed=seed, config=config)

    def to_torch(self: Runnable, *, epochs: int | None = None, device: Any = None, **options: Any) -> Any:
        """Return a `torch.utils.data.IterableDataset` of batches of tensors: each pass over it gives one epoch.

        It takes ``DataLoader(dataset, batch_size=None, num_workers=0)``, or none.  `epochs`: how many passes there will
        be; None: as many as are asked for.  `device`: where the tensors go; to a GPU while the step before runs.
        `options`: other arguments of `iter_batches`.  It is stateful as torchdata's `StatefulDataLoader` wants it.
        """
        must_be_options("to_torch", options, self.iter_batches)
        try:
            from pecan_ray.integrations.torch_dataset import TorchBatches
        except ImportError as error:
            raise MissingExtraError('to_torch needs torch: pip install "pecan_ray[torch]".', extra="torch") from error
        begin = functools.partial(self.iter_batches, format="torch", device=device, **options)
        what = f"{self.name}.to_torch()"
        return TorchBatches(begin, what=what, epochs=epochs, length=functools.partial(one_ranks_length, self, options))


def must_be_options(method: str, options: dict[str, Any], iter_batches: Callable[..., Any]) -> None:
    """Raise PlanError, naming the first one, for what is no argument of `iter_batches`, or not to be given here."""
    known = inspect.signature(iter_batches).parameters.keys() - {"format", "state"}
    for name in options:
        if name in OTHERS_WORDS:
            raise PlanError(f"{method}({name}=...): {OTHERS_WORDS[name]}.")
        if name == "state":
            raise PlanError(f"{method}(state=...): go on by load_state_dict(state), with a state of its state_dict().")
        if name not in known:
            raise PlanError(f"{method} has no argument {name!r}; it takes those of iter_batches: {sorted(known)}.")


def one_ranks_length(pipe: Runnable, options: dict[str, Any]) -> int:
    """Return the batches of an epoch; raises TypeError where they are not known."""
    if options.get("world_size", 1) > 1:
        raise TypeError(f"how many batches of {pipe.name} each of several ranks gets is not known before an epoch ends")
    return len(pipe)
