"""What a pipeline has for users of other libraries: pipelines made of theirs, and theirs made of a pipeline.

Each library is imported when its method is called.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pecan_ray.engines.in_process import run_in_process
from pecan_ray.errors import MissingExtraError, PlanError
from pecan_ray.integrations.async_batches import AsyncBatches
from pecan_ray.integrations.map_style import DatasetIndices, DatasetRows, HeldDataset, check_map_style, stacked
from pecan_ray.integrations.notebook import pipeline_html
from pecan_ray.integrations.passes import OnBreak, Passes
from pecan_ray.integrations.train_context import found_place
from pecan_ray.options import Config
from pecan_ray.peer_names import ARGUMENTS, explain_foreign_arguments
from pecan_ray.plan.arguments import positive
from pecan_ray.plan.operators import Function, Plan
from pecan_ray.plan.shape import keeps_source_order
from pecan_ray.sources.by_index import ByIndex, SamplerArguments
from pecan_ray.sources.hugging_face import HuggingFace
from pecan_ray.sources.ray_dataset import RayDataset
from pecan_ray.sources.tf_data import TfDataSource

if TYPE_CHECKING:
    from typing import Self

    from pecan_ray.integrations.keras_dataset import ColumnNames

logger = logging.getLogger("pecan_ray")

LOOKED_AT = 2
"""Batches that tell what a data set of TensorFlow holds: two show which dimensions vary."""
PADDED_AT_LEAST = 64
"""Elements in front of padding that tell it: their lengths vary where a batch's do not."""


class Runnable(Protocol):
    """A pipeline, as far as these methods need it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def plan(self) -> Plan:
        """What it is."""
        ...

    @property
    def engine(self) -> str:
        """What runs it."""
        ...

    @property
    def seed(self) -> int:
        """What its random numbers are derived from."""
        ...

    @property
    def peek(self) -> Callable[[int], Any]:
        """Runs its first batches here."""
        ...

    @property
    def iter_batches(self) -> Callable[..., Any]:
        """Runs it."""
        ...

    def __len__(self) -> int: ...


@explain_foreign_arguments
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
        parameters by one.  It may also take `epoch` and `seed`: the number of the pass, and the pipeline's seed.  Each
        shard and each pass draws random numbers of its own, and the same when it is read again.  A job ends with
        `PlanError` if one of several shards has no end (``.repeat()``) or drops a remainder (``drop_remainder=True``):
        data would never be read.
        """
        make: Callable[..., Self] = cls
        source = TfDataSource(make_dataset, num_shards=num_shards)
        return make(source, name=name, engine="tensorflow", seed=seed, config=config)

    @classmethod
    def from_torch_dataset(
        cls,
        dataset: Any,
        *,
        columns: Sequence[str] | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        weights: Any = None,
        shuffle: bool = False,
        collate: Function | None = None,
        name: str | None = None,
        seed: int | None = None,
        config: Config | None = None,
    ) -> Self:
        """Read a map-style data set of torch, or anything with ``__len__`` and ``__getitem__``, on the workers.

        Its indices are dealt out; one with ``__getitems__`` is asked for several at once.  Samples that are dicts have
        their keys as columns; tuples have `columns`, or "0", "1" and so on.  Tensors become arrays.  The data set is
        sent to every worker.

        Args:
            dataset: the data set.
            columns: of samples that are tuples.
            sampler: a function of epoch and seed that returns the indices of an epoch: any number of them, with or
                without repetition. Or a sampler of torch, such as `WeightedRandomSampler`; `set_epoch` is called.
            batch_sampler: the same with a sequence of indices for each batch: the pipeline yields these batches.
            weights: one for each sample; as many samples as there are are drawn by them, with replacement.
            shuffle: each sample once, in a random order, of which nothing is loaded before its turn.
            collate: with `batch_sampler`, makes a batch of the list of samples. None: they are stacked.
            name: in the dashboard, metrics and logs.
            seed: of random numbers, and of samplers.
            config: settings.
        """
        check_map_style(dataset)
        make: Callable[..., Any] = cls
        held, kind = HeldDataset(dataset, columns), type(dataset).__name__
        several, in_batches = hasattr(type(dataset), "__getitems__"), batch_sampler is not None
        source: Any = DatasetRows(held) if several else DatasetIndices(len(dataset))
        if asked := SamplerArguments(sampler, batch_sampler, weights, shuffle):
            source = ByIndex.for_caller("from_torch_dataset", source, asked)
        if collate is not None and not in_batches:
            raise PlanError("from_torch_dataset(collate=...) needs a batch_sampler. Else write .batch(n, collate=fn).")
        pipe = make(source, name=name, seed=seed, config=config)
        if not several:
            # It stays in front: what comes before it are indices.
            pipe = pipe.map(held.fetch_all if in_batches else held.fetch, name=kind, keep_position=True)
        made: Self = pipe._collated(collate or stacked) if in_batches else pipe
        return made

    @classmethod
    def from_hf_dataset(
        cls, dataset: Any, *, name: str | None = None, seed: int | None = None, config: Config | None = None
    ) -> Self:
        """Read a `datasets.Dataset` of Hugging Face, in its format, or as NumPy arrays where it has none.

        One that is streamed gives its rows as they are; its shards are dealt out to workers.
        """
        try:
            from datasets import Dataset, IterableDataset
        except ImportError as error:
            raise MissingExtraError("from_hf_dataset needs datasets: pip install datasets", extra="datasets") from error
        make: Callable[..., Self] = cls
        if isinstance(dataset, IterableDataset):
            return make(HuggingFace(dataset), name=name, seed=seed, config=config)
        if not isinstance(dataset, Dataset):
            splits = f", one of its splits: {sorted(map(str, dataset))}" if isinstance(dataset, Mapping) else ""
            raise PlanError(f"from_hf_dataset needs a datasets.Dataset{splits}, but got {type(dataset).__name__}.")
        if not dataset.format["type"]:
            return make(HuggingFace(dataset), name=name, seed=seed, config=config)
        return cls.from_torch_dataset(dataset, name=name, seed=seed, config=config)

    @classmethod
    def from_ray_dataset(
        cls, dataset: Any, *, name: str | None = None, seed: int | None = None, config: Config | None = None
    ) -> Self:
        """Read the rows of a `ray.data.Dataset`: it is executed once, and its blocks are dealt out to workers."""
        from ray.data import Dataset

        if not isinstance(dataset, Dataset):
            raise PlanError(f"from_ray_dataset needs a ray.data.Dataset, but got {type(dataset).__name__}.")
        make: Callable[..., Self] = cls
        return make(RayDataset(dataset), name=name, seed=seed, config=config)

    def _repr_html_(self: Runnable) -> str:
        """Return what a notebook shows: the operators, of which none is run for that."""
        return pipeline_html(self.name, self.engine, self.seed, self.plan)

    def iter_batches_async(self: Runnable, **options: Any) -> AsyncBatches:
        """Return batches for ``async for``: the event loop goes on while one is waited for.

        `options`: the arguments of `iter_batches`.
        """
        check_iter_options("iter_batches_async", options, self.iter_batches, own=("format", "state"))
        return AsyncBatches(functools.partial(self.iter_batches, **options))

    def to_tf_dataset(
        self: Runnable,
        *,
        epochs: int | None = None,
        spec: Mapping[str, Any] | None = None,
        on_break: OnBreak = "new",
        **options: Any,
    ) -> Any:
        """Return a `tf.data.Dataset` of dicts of tensors: each iteration over it is a new pass.

        Elements of an existing tf.data pipeline have their own structure and `element_spec`.  The job ends by
        ``close()``, and when nobody has the dataset; its state is saved by `state_dict`, or ``tf.train.Checkpoint``.

        `spec`: a `tf.TensorSpec` for each column; None: what the first batches are like, which are run in this process.
        `epochs`: how many iterations there will be; None: as many as are asked for.  `on_break`: what follows one that
        was left in the middle (``take(3)``): a new pass, or with "continue" what is left of that one.  `options`: other
        arguments of `iter_batches`.  It has a length where that of a pass is known.
        """
        check_iter_options("to_tf_dataset", options, self.iter_batches)
        check_finite_epochs("to_tf_dataset", epochs, options)
        try:
            import pecan_ray.integrations.tf_dataset  # noqa: F401 - TensorFlow may be missing
        except ImportError as error:
            raise MissingExtraError(
                'to_tf_dataset needs TensorFlow: pip install "pecan_ray[tf]".', extra="tf"
            ) from error
        passes = Passes(
            functools.partial(self.iter_batches, **options),
            what=f"{self.name}.to_tf_dataset()",
            epochs=epochs,
            on_break=on_break,
        )
        # With "continue" a pass may be the rest of another one, which has fewer batches.
        length = exact_epoch_length(self, options) if on_break == "new" else None
        return dataset_of(self, passes, spec, length=length, shards_itself=ranks_of(options) > 1)

    def to_keras(
        self: Runnable,
        x: ColumnNames,
        y: ColumnNames | None = None,
        *,
        sample_weight: str | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        on_break: OnBreak = "new",
        **options: Any,
    ) -> Any:
        """Return what ``model.fit`` takes, whichever backend Keras 3 has: a `keras.utils.PyDataset`.

        `x`, `y`: the column of the inputs and of the targets, or several, which Keras gets as a dict.  `steps`: batches
        of an epoch of Keras; None: ``len(pipe)``.  `epochs`: of the pipeline; None: as many as Keras asks for.
        `on_break`: what follows a pass that was left in the middle (``evaluate(steps=3)``): a new one, or with
        "continue" what is left of that one.  A reader that shares gets what is left, too, and is warned.
        `options`: other arguments of `iter_batches`.  Without `y` rows come in the order of the source, for
        ``model.predict``, with several workers too, as ``order="strict"`` says; ``order="relaxed"`` is faster then.
        """
        check_iter_options("to_keras", options, self.iter_batches)
        check_finite_epochs("to_keras", epochs, options)
        try:
            from pecan_ray.integrations.keras_dataset import KerasBatches
        except ImportError as error:
            raise MissingExtraError("to_keras needs Keras 3: pip install keras", extra="tf") from error
        if steps is None:
            try:
                steps = one_ranks_length(self, options)
            except TypeError as error:
                raise PlanError(f"to_keras: {error}. Pass steps=..., the batches of an epoch of Keras.") from error
        if y is None:
            options = predict_options(self, options, f"{self.name}.to_keras({x!r})")
        begin = functools.partial(self.iter_batches, epochs=epochs, **options)
        columns = [names for names in (x, y, sample_weight) if names is not None]
        if not all(columns):
            raise PlanError(f"to_keras(x, y) need the name of a column each, or several, but got {x!r} and {y!r}.")
        if y is None and sample_weight is not None:
            raise PlanError(f"to_keras: sample_weight={sample_weight!r} needs y=..., the targets that it weighs.")
        return KerasBatches(
            begin,
            columns,
            what=f"{self.name}.to_keras()",
            steps=positive("to_keras(steps=...)", steps),
            on_break=on_break,
            shares=bool(options.get("share")),
        )

    def to_torch(
        self: Runnable, *, epochs: int | None = None, device: Any = None, on_break: OnBreak = "new", **options: Any
    ) -> Any:
        """Return a `torch.utils.data.IterableDataset` of batches of tensors: each iterator over it is a new pass.

        It takes ``DataLoader(dataset, batch_size=None, num_workers=0)``, or none.  `epochs`: how many passes there will
        be; None: as many as are asked for.  `device`: where the tensors go; to a GPU while the step before runs.
        `on_break`: what follows a pass that was left in the middle (``break``): a new one, or with "continue" what is
        left of that one.
        `options`: other arguments of `iter_batches`.  It is stateful as torchdata's `StatefulDataLoader` wants it.
        """
        check_iter_options("to_torch", options, self.iter_batches)
        check_finite_epochs("to_torch", epochs, options)
        try:
            from pecan_ray.integrations.torch_dataset import TorchBatches
        except ImportError as error:
            raise MissingExtraError('to_torch needs torch: pip install "pecan_ray[torch]".', extra="torch") from error
        begin = functools.partial(self.iter_batches, format="torch", device=device, **options)
        what = f"{self.name}.to_torch()"
        length = functools.partial(one_ranks_length, self, options)
        return TorchBatches(begin, what=what, epochs=epochs, length=length, on_break=on_break)


def dataset_of(
    pipe: Runnable, passes: Passes, spec: Mapping[str, Any] | None, *, length: int | None, shards_itself: bool
) -> Any:
    """Return passes as a `tf.data.Dataset`, in the structure of an existing dataset where the pipeline reads one."""
    from pecan_ray.integrations import tf_dataset, tf_structure

    known: dict[str, Any] = {"length": length, "shards_itself": shards_itself}
    if spec is not None:
        return tf_dataset.tf_dataset(passes, spec, **known)
    structure = tf_structure.structure_of(pipe.plan)
    if structure is not None and tf_structure.keeps_elements(pipe.plan):
        return tf_dataset.tf_dataset_of(passes, structure, **known)
    spec = tf_dataset.spec_of(pipe.plan, pipe.peek(LOOKED_AT), padded_elements(pipe))
    if structure is not None and not structure.matches(spec):
        structure = None
    return tf_dataset.tf_dataset(passes, spec, inferred=True, structure=structure, **known)


def padded_elements(pipe: Any) -> list[Any]:
    """Return some of the elements that a pipeline pads, run in this process; none if it pads none."""
    from pecan_ray.integrations.tf_dataset import before_padding

    before = before_padding(pipe.plan)
    if before is None:
        return []
    elements = run_in_process(before, engine=pipe.engine, seed=pipe.seed, source_order=True)
    return list(itertools.islice(elements, PADDED_AT_LEAST))


def check_iter_options(
    method: str, options: dict[str, Any], iter_batches: Callable[..., Any], own: Sequence[str] = ()
) -> None:
    """Raise PlanError, naming the first one, for what is no argument of `iter_batches`, or not to be given here."""
    known = inspect.signature(iter_batches).parameters.keys() - ({"format", "state"} - set(own))
    for name in options:
        if name in ARGUMENTS:
            raise PlanError(f"{method}({name}=...) is not of pecan_ray: {ARGUMENTS[name]}.")
        if name == "state" and name not in own:
            raise PlanError(f"{method}(state=...): go on by load_state_dict(state), with a state of its state_dict().")
        if name not in known:
            raise PlanError(f"{method} has no argument {name!r}; it takes those of iter_batches: {sorted(known)}.")


def check_finite_epochs(method: str, epochs: int | None, options: Mapping[str, Any]) -> None:
    """Raise PlanError where several ranks would go on without end: none of them could leave before the others."""
    if epochs is None and ranks_of(options) > 1:
        raise PlanError(
            f"{method}: {ranks_of(options)} ranks share the job, which they can only leave together: pass epochs=..., "
            "how often the training loop goes over the data."
        )


def ranks_of(options: Mapping[str, Any]) -> int:
    """Return how many trainers share a job with these arguments of `iter_batches`."""
    if options.get("share"):
        return 1
    given = options.get("world_size")
    place = found_place() if given is None and options.get("rank") is None else None
    return place.world_size if place is not None else given or 1


def predict_options(pipe: Runnable, options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return options under which rows come in the order of the source: predictions are matched with rows by place.

    An `order` that the user gives stays.  Where the pipeline itself changes the order, a warning tells it; `what` names
    the use.
    """
    found = dict(options)
    if found.get("order") is not None or found.get("coordinated"):
        return found
    if not keeps_source_order(pipe.plan):
        logger.warning(
            "%s: the pipeline %s shuffles, mixes or makes buckets, so predictions do not come in the order of the "
            'source. Leave that out of what is predicted, or say order="relaxed" if you match rows by a column',
            *(what, pipe.name),
        )
        return found
    return {**found, "order": "strict"}


def one_ranks_length(pipe: Runnable, options: dict[str, Any]) -> int:
    """Return the batches of an epoch; raises TypeError where they are not known."""
    if ranks_of(options) > 1:
        raise TypeError(f"how many batches of {pipe.name} each of several ranks gets is not known before an epoch ends")
    if options.get("sharding") == "off":
        raise TypeError(f'how many batches {pipe.name} gives is not known: sharding="off" gives every worker all data')
    if options.get("steps") is not None:
        raise TypeError(f"how many batches {pipe.name} gives in an epoch is not known: steps=... may end within it")
    length, most = len(pipe), options.get("epoch_batches")
    return length if most is None else min(length, most)


def exact_epoch_length(pipe: Runnable, options: dict[str, Any]) -> int | None:
    """Return the batches of an epoch where nothing can change their number: others are an error to TensorFlow."""
    usual = {"on_error": ("raise",), "visitation": (None, "exactly_once"), "share": (False,), "headspace": (False,)}
    if any(options.get(name, among[0]) not in among for name, among in usual.items()):
        return None
    try:
        return one_ranks_length(pipe, options)
    except TypeError:
        return None
