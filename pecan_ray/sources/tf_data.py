"""Existing tf.data pipelines as a source: each shard of the dataset is a split."""

from __future__ import annotations

import functools
import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from pecan_ray.errors import MissingExtraError, OpError, PecanError, PlanError, describe_error
from pecan_ray.plan.fingerprint import canonical_text
from pecan_ray.plan.splits import END, Element, KnownSplits, Lease, Split
from pecan_ray.sources.files import check_positive
from pecan_ray.sources.tf_random_state import outside_states, python_generators
from pecan_ray.sources.tf_seeds import DatasetPass, Scope, make_seeded
from pecan_ray.sources.tf_service import without_service
from pecan_ray.sources.tf_shards import check_shard, index_filters, smaller_batches
from pecan_ray.sources.tf_traces import TracedFunctions

logger = logging.getLogger("pecan_ray")


@dataclass(frozen=True)
class TfDataSource:
    """The elements of the ``tf.data.Dataset`` that a function makes.

    A function of ``(num_shards, shard_index)`` is called for each of `num_shards` shards, so that many workers
    share the data; one without parameters is read as a whole, by one worker.  It may also take `epoch` and `seed`, the
    number of the pass and the job's seed.  A dataset of tuples has the columns "0", "1" and so on; nested names are
    joined by "/".  Elements are counted within their shard: a shard must yield the same elements in the same order
    whenever it is read in one pass, or "exactly once" cannot hold when a worker is lost.  So it keeps its order where
    tf.data is asked for any (`deterministic=False`).

    Random operations and shuffles are given seeds of the job, the pass and the shard, so that each shard and each pass
    draws its own numbers, and the same when it is read again.  States that such seeds do not reach are warned of.

    Of several shards, one without an end (``repeat()``) is refused, since no worker would leave it, and so is one that
    drops a remainder (``drop_remainder=True``), which would be dropped of each.
    """

    one_split_at_a_time: ClassVar[Literal[True]] = True

    make_dataset: Callable[..., Any] = field(hash=False)
    num_shards: int = field(default=16, kw_only=True)
    place: DatasetPass = field(default=DatasetPass(), kw_only=True, compare=False)
    """The pass that is read, in a job of a seed."""
    reads_ahead: bool = field(default=True, kw_only=True, compare=False)
    """Elements behind those that are asked for may be computed; else one of them may be what has killed a worker."""
    elements: int | None = field(default=None, kw_only=True, compare=False)
    """How many elements all shards have together; None: nobody has asked."""
    scope_types: dict[int, Scope] = field(default_factory=dict, kw_only=True, compare=False, repr=False)
    """Which seeds are alike in all shards, as the datasets that were made by now have shown."""
    traces: TracedFunctions = field(default_factory=TracedFunctions, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.make_dataset):
            raise PlanError(
                f"from_tf_data needs a function that makes a dataset, but got {type(self.make_dataset).__name__}: a "
                "dataset cannot be sent to workers, but a function can."
            )
        check_positive(num_shards=self.num_shards)

    def with_seed(self, seed: int) -> TfDataSource:
        """Return the source as a job of a seed reads it."""
        return replace(self, place=replace(self.place, seed=seed))

    def of_lease(self, lease: Lease) -> TfDataSource:
        """Return the source in the pass of a lease."""
        return replace(self, place=self.place.of_lease(lease), reads_ahead=lease.spans[-1][1] == END)

    @property
    def sharded(self) -> bool:
        """Return whether the function takes (num_shards, shard_index)."""
        return bool(_shard_parameters(self.make_dataset))

    @property
    def shards(self) -> int:
        """How many datasets the function makes."""
        return self.num_shards if self.sharded else 1

    def splits(self) -> Iterator[Split]:
        """Yield one split for each shard."""
        for index in range(self.shards):
            yield Split(index=index, path=f"shard {index} of {to_str(self.make_dataset)}")

    def listed(self) -> KnownSplits:
        """Return its splits without the function, which may import TensorFlow."""
        return KnownSplits(tuple(self.splits()))

    def build_dataset(self, split: Split) -> Any:
        """Return a shard's tf.data.Dataset as the function makes it."""
        try:
            import tensorflow as tf
        except ImportError as error:
            raise MissingExtraError('from_tf_data needs TensorFlow: pip install "pecan_ray[tf]".') from error
        name, shards = to_str(self.make_dataset), self.shards

        def build() -> Any:
            with without_service(name):
                return self._made(split)

        # Seeds are joined with job, pass and shard while it is made:
        # docs/decisions/tensorflow-engine.md#137-seeds-of-datasets.
        made, fold = make_seeded(build, replace(self.place, shard=split.index), self.scope_types, self.traces.reused)
        if not isinstance(made, tf.data.Dataset):
            raise PlanError(f"from_tf_data: {name} returned {type(made).__name__}, not a tf.data.Dataset.")
        _check_names(made.element_spec, name)
        check_shard(made, name, shards)
        if moved := outside_states(made, fold.variables):
            _warn_of_states(name, moved)
        if held := python_generators(made):
            _warn_of_generators(name, held)
        # Of one shard alone a count means what it says.
        if shards > 1 and (counted := index_filters(made)):
            _warn_of_counting(name, counted, shards)
        if shards > 1 and (size := smaller_batches(made)):
            _warn_of_batches(name, size, shards)
        return made if self.reads_ahead else _one_by_one(made)

    def _made(self, split: Split) -> Any:
        try:
            return _call(self.make_dataset, self.num_shards, split.index, self.place)
        except PecanError:
            raise
        except Exception as error:  # the function is the user's
            name = to_str(self.make_dataset)
            trace = "".join(traceback.format_exception(error))
            raise OpError(
                f"from_tf_data: {name} could not make shard {split.index} of {self.shards}: {describe_error(error)}\n"
                f"{trace}",
                op=name,
            ) from error

    def dataset(self, split: Split) -> Any:
        """Return a shard's tf.data.Dataset of dicts from column name to tensor, as operators of ours take them."""
        made = self.build_dataset(split)
        _check_tensors(made.element_spec, to_str(self.make_dataset))
        # tf.data takes plain tuples apart, also those of one part.
        unpacks = type(made.element_spec) is tuple
        return made.map(lambda *parts: columns_of(parts if unpacks else parts[0]))

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield a shard's elements from number `start` on, as NumPy values."""
        for element in self.dataset(split).skip(start).as_numpy_iterator():
            yield dict(element)

    def num_elements(self) -> int | None:
        """Return what `counted` has found; None before: datasets would have to be made in the trainer's process."""
        return self.elements

    def with_counts(self) -> TfDataSource:
        """Make the datasets of all shards, and return the source with the number of elements that tf.data tells."""
        total = 0
        for split in self.splits():
            count = int(self.build_dataset(split).cardinality())
            if count < 0:  # it has no end, or tf.data does not know it
                return self
            total += count
        return replace(self, elements=total)

    def identity(self) -> str:
        """Return what the function does, spelled out, and the number of shards."""
        return f"TfDataSource:{self.num_shards}:{canonical_text(self.make_dataset)}"


def _one_by_one(made: Any) -> Any:
    """Return a dataset of which TensorFlow computes nothing ahead but where the user's own operators do."""
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    return made.with_options(options)


OF_PASS = ("epoch", "seed")
"""Parameters that a function may have beside those of the shard."""


def _takes(make: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    """Tell whether a parameter is one of the pass, which the user has not given a value of his own."""
    if parameter.name not in OF_PASS or parameter.kind is parameter.POSITIONAL_ONLY:
        return False
    if isinstance(make, functools.partial) and parameter.name in make.keywords:
        return False
    return parameter.name == "epoch" or parameter.default in (parameter.empty, None)


def _shard_parameters(make: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters for number of shards and index; none if the function makes one dataset."""
    needed = [
        parameter
        for parameter in inspect.signature(make).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and not _takes(make, parameter)
    ]
    if len(needed) not in (0, 2):
        raise PlanError(
            f"from_tf_data: {to_str(make)} takes {len(needed)} arguments, but it must take none, or "
            "(num_shards, shard_index); beside them it may take epoch and seed."
        )
    return needed


def _call(make: Callable[..., Any], num_shards: int, index: int, place: DatasetPass) -> Any:
    """Call a function that makes a dataset with what it takes."""
    # By name where they have one: defaults may stand between them.
    positional, named = [], {}
    for parameter, value in zip(_shard_parameters(make), (num_shards, index), strict=False):
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            named[parameter.name] = value
    for parameter in inspect.signature(make).parameters.values():
        if _takes(make, parameter):
            named[parameter.name] = getattr(place, parameter.name)
    return make(*positional, **named)


@functools.lru_cache(maxsize=256)  # once for a function in each process
def _warn_of_states(name: str, moved: tuple[str, ...]) -> None:
    logger.warning(
        "from_tf_data: %s moves on a state that was made outside of it (%s), as of a tf.random.Generator or a layer of "
        "Keras: each worker has a copy, so that workers draw the same numbers. Make the generator, or the layer, in "
        "%s: then each shard and each epoch draws its own numbers.",
        *(name, ", ".join(moved), name),
    )


@functools.lru_cache(maxsize=256)  # once for a function in each process
def _warn_of_generators(name: str, held: tuple[str, ...]) -> None:
    logger.warning(
        "from_tf_data: %s draws random numbers by %s. One that is made in it begins anew in each shard and each epoch: "
        "let %s take the parameters epoch and seed, and give the generator a seed of them and the shard's index, as "
        "np.random.default_rng([seed, epoch, shard_index]) does. One that is made outside of it is copied to each "
        "worker.",
        *(name, ", ".join(held), name),
    )


@functools.lru_cache(maxsize=256)  # once for a function in each process
def _warn_of_counting(name: str, counted: tuple[str, ...], shards: int) -> None:
    logger.warning(
        "from_tf_data: %s calls %s on its shards: the number counts in each of the %d shards, so that %d times as many "
        "elements are taken, or left out, as it says. If it is meant for the whole, call it in front of .shard().",
        *(name, " and ".join(counted), shards, shards),
    )


@functools.lru_cache(maxsize=256)  # once for a function in each process
def _warn_of_batches(name: str, size: int, shards: int) -> None:
    logger.warning(
        "from_tf_data: %s makes batches of %d in each of its %d shards, so that an epoch has up to %d smaller batches. "
        "Let it return elements, and write from_tf_data(%s).batch(%d): TensorFlow makes these batches, too, which go "
        "on from shard to shard.",
        *(name, size, shards, shards, name, size),
    )


def _check_names(spec: Any, name: str) -> None:
    """Raise PlanError where two parts of an element would be columns of one name."""
    names = [column for column, _ in _flat("", spec)]
    for column in names:
        if names.count(column) > 1:
            raise PlanError(
                f"from_tf_data: two parts of an element of {name} have the column name {column!r}: {spec}. Names of "
                "nested parts are joined by '/'; give one of them another name."
            )


def _check_tensors(spec: Any, name: str) -> None:
    """Raise PlanError where a part of an element is more than one tensor, or none."""
    import tensorflow as tf

    for column, part in _flat("", spec):
        # A row of a ragged tensor may be plain.
        row = isinstance(part, tf.RaggedTensorSpec) and part.ragged_rank == 0
        if row or (isinstance(part, tf.TensorSpec) and part.dtype not in (tf.variant, tf.resource)):
            continue
        raise PlanError(
            f"from_tf_data: part {column!r} of an element of {name} is {part}, and operators behind from_tf_data take "
            f"tensors alone. Call tf.data's own operators in {name} (shuffle, filter, ragged_batch and so on): such "
            "elements come out of it as they are. Or make a tensor of the part there (tf.sparse.to_dense, "
            "RaggedTensor.to_tensor)."
        )


def columns_of(value: Any) -> dict[str, Any]:
    """Return a nested structure of tensors as flat columns."""
    return dict(_flat("", value))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    parts = parts_of(value)
    if parts is None:
        yield prefix or "0", value
        return
    for name, inner in parts:
        yield from _flat(f"{prefix}/{name}" if prefix else name, inner)


def parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of a structure of tensors, or of specs, with their names; None for what is one value."""
    if isinstance(value, dict):
        return [(str(name), inner) for name, inner in value.items()]
    if isinstance(value, (tuple, list)):
        return _numbered(value)
    fields = getattr(type(value), "__attrs_attrs__", None)
    if fields is not None:
        return [(field.name, getattr(value, field.name)) for field in fields]
    if hasattr(type(value), "__tf_flatten__"):  # a dataclass of the user's
        return _numbered(value.__tf_flatten__()[1])
    return None


def _numbered(parts: Iterable[Any]) -> list[tuple[str, Any]]:
    return [(str(number), inner) for number, inner in enumerate(parts)]


def to_str(fn: Callable[..., Any]) -> str:
    """Return a function's name for messages."""
    return str(getattr(fn, "__name__", type(fn).__name__))
