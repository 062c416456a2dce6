"""Seeds of a tf.data pipeline that a function makes anew for each shard in each pass.

TensorFlow asks one function for the seeds of every random operation and dataset, `random_seed.get_seed`.  While a
dataset is made, the seeds that it answers are joined with a key of the job, the pass and the shard, so that each
of them draws its own numbers and the same again.  States of `tf.random.Generator` and of Keras' layers are joined with
it too.

What decides which elements a shard has must be alike in all shards: that is known only once the dataset is there, and
then it is made again (docs/decisions/tensorflow-engine.md#137-seeds-of-datasets).
"""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from pecan_ray.plan.splits import Lease
from pecan_ray.sampling.random_keys import dataset_key
from pecan_ray.sources.tf_datasets import functions_of, is_shard, nodes_called, selector_of, upstream
from pecan_ray.sources.tf_order import in_order

Seeds: TypeAlias = tuple[Any, Any]
"""What TensorFlow gives an operation: of the graph and of the operation; None: it draws others each time."""
Scope: TypeAlias = Literal["shard", "pass", "job"]
"""What else than the job's seed the numbers depend on: on pass and shard, on the pass, or on nothing."""

SEED_RANGE = (1 << 31) - 2
"""TensorFlow cuts seeds to 31 bits, and (0, 0) means none."""
STATES = ("StateVar", "seed_generator_state")
"""Names of variables that hold the state of a `tf.random.Generator`, and of a `keras.random.SeedGenerator`."""
ORDERS = ("_ShuffleDataset", "_GlobalShuffleDataset", "_DirectedInterleaveDataset")
"""Datasets that decide an order: `shuffle`, `sample_from_datasets`."""
MAX_REMADE = 4
"""A function whose operations ask for seeds in another order each time is not made for ever."""

_making = threading.RLock()
"""One dataset is made at a time: `get_seed` is the process's."""


@dataclass(frozen=True)
class DatasetPass:
    """Which pass over which shard a dataset is made for, in a job of a seed."""

    seed: int = 0
    epoch: int = 0
    pass_index: int = 0
    branch: int = 0
    shard: int = 0

    def of_lease(self, lease: Lease) -> DatasetPass:
        """Return the pass and the shard of a lease."""
        return DatasetPass(self.seed, lease.epoch, lease.pass_index, lease.branch, lease.split.index)

    def within(self, scope: Scope) -> DatasetPass:
        """Return it without what the numbers of a scope do not depend on."""
        if scope == "shard":
            return self
        return replace(self, shard=0) if scope == "pass" else DatasetPass(self.seed, branch=self.branch)

    @property
    def first(self) -> bool:
        """Return whether numbers are those of plain tf.data: in the first pass over the first shard, without a seed."""
        return self == DatasetPass()

    def random_numbers(self, use: str, number: int = 0) -> tuple[int, int]:
        """Return two numbers of 64 bits that belong to this pass and shard, and to one use of them."""
        return dataset_key(self.seed, (self.epoch, self.pass_index), self.branch, self.shard, number, use)


class SeedRequest(NamedTuple):
    """One time that TensorFlow was asked for seeds: what it would have answered, and what it has."""

    given: Seeds
    combined: Seeds
    at_once: bool


@dataclass
class SeedFold:
    """Joins the seeds that TensorFlow gives while one dataset, or one graph, is made, and notes them."""

    place: DatasetPass
    scope_types: Mapping[int, Scope] = field(default_factory=dict)
    """By the number of a request for seeds, where it is not "shard"."""
    given: dict[Seeds, set[int]] = field(default_factory=dict)
    """Which requests were given these seeds."""
    variables: list[Any] = field(default_factory=list)
    """Handles of the variables that were made with the dataset."""
    log: list[SeedRequest] = field(default_factory=list)
    requests: int = 0
    """How often seeds, and states of generators, were asked for."""

    def fold(self, seeds: Seeds, *, at_once: bool) -> Seeds:
        """Return seeds joined with the key; `at_once`: the number is drawn while the dataset is made."""
        number = self._next()
        place = self.place.within("pass" if at_once else self.scope_types.get(number, "shard"))
        try:
            folded = _derive_seeds(place, seeds, number)
        except TypeError:  # a seed that is a tensor in a graph
            folded = seeds
        self.log.append(SeedRequest(seeds, folded, at_once))
        if folded is seeds:
            return seeds
        self.given.setdefault(folded, set()).add(number)
        return folded

    def create(self, next_creator: Callable[..., Any], **options: Any) -> Any:
        """Make a variable; one that is the state of a generator begins with a state of its own."""
        if options.get("name") in STATES and not self.place.first:
            initial = options["initial_value"]
            options["initial_value"] = functools.partial(self._state, initial, self._next())
        made = next_creator(**options)
        self.variables.append(made.handle)
        return made

    def _next(self) -> int:
        self.requests += 1
        return self.requests - 1

    def _state(self, initial: Any, number: int) -> Any:
        import tensorflow as tf

        state = tf.cast(initial() if callable(initial) else initial, tf.int64)
        word = self.place.random_numbers("state", number)[0] % SEED_RANGE
        mask = np.zeros(state.shape, np.int64)
        mask[0] = word  # what follows counts the draws
        return tf.bitwise.bitwise_xor(state, mask)


def _derive_seeds(place: DatasetPass, seeds: Seeds, number: int) -> tuple[int, int]:
    if seeds == (None, None):
        first, second = place.random_numbers("unseeded", number)
    elif place.first:
        return int(seeds[0]), int(seeds[1])
    else:
        first, second = place.random_numbers(f"{int(seeds[0])} {int(seeds[1])}")
    return 1 + first % SEED_RANGE, 1 + second % SEED_RANGE


def make_seeded(
    build: Callable[[], Any],
    place: DatasetPass,
    scope_types: dict[int, Scope],
    meanwhile: Callable[[SeedFold], AbstractContextManager[None]],
) -> tuple[Any, SeedFold]:
    """Return the dataset that a function makes, with seeds of its pass and shard, and what they were.

    `scope_types` is what earlier calls of the function have shown, and is added to; `meanwhile` is entered for each
    call.
    """
    for _ in range(MAX_REMADE):
        fold = SeedFold(place, scope_types)
        with _global_generators(place), fold_seeds(fold), in_order(), meanwhile(fold), _autograph():
            data = build()
        found = find_scope_types(data, fold.given)
        if found.items() <= scope_types.items():
            return data, fold
        scope_types.update(found)
    return data, fold


@contextmanager
def fold_seeds(fold: SeedFold) -> Iterator[None]:
    """Join the seeds that TensorFlow gives this thread meanwhile; global seeds are as they were behind it."""
    import tensorflow as tf
    from tensorflow.python.data.util import random_seed as dataset_seed
    from tensorflow.python.eager import context
    from tensorflow.python.framework import random_seed

    process: Any = context.context()
    mine, of_dataset = threading.get_ident(), False

    def get_seed(op_seed: Any) -> Seeds:
        seeds: Seeds = core(op_seed)
        # Other threads may make datasets and graphs of their own meanwhile.
        if threading.get_ident() != mine:
            return seeds
        at_once = context.executing_eagerly() and not of_dataset
        if at_once:
            process.clear_kernel_cache()  # an operation that was run before with these seeds would draw on
        return fold.fold(seeds, at_once=at_once)

    def get_dataset_seed(seed: Any) -> Any:
        nonlocal of_dataset
        before, of_dataset = of_dataset, threading.get_ident() == mine
        try:
            return dataset(seed)
        finally:
            of_dataset = before

    with _making, tf.variable_creator_scope(fold.create):
        core, dataset, seed = random_seed.get_seed, dataset_seed.get_seed, process._seed
        random_seed.get_seed, dataset_seed.get_seed, process._seed = get_seed, get_dataset_seed, None
        try:
            yield
        finally:
            random_seed.get_seed, dataset_seed.get_seed, process._seed = core, dataset, seed


@contextmanager
def _global_generators(place: DatasetPass) -> Iterator[None]:
    """Seed Python's and NumPy's global generators by the pass, and set them back: they shuffle lists of files."""
    word, other = place.within("pass").random_numbers("global")
    python, numbers = random.getstate(), np.random.get_state()
    random.seed(word)
    # NumPy's old generator takes seeds of 32 bits.
    np.random.seed(other % (1 << 32))
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)


def _autograph() -> AbstractContextManager[Any]:
    """Trace functions as anywhere else: TensorFlow leaves their control flow alone where it calls Python itself."""
    from tensorflow.python.autograph.core import ag_ctx

    usual: AbstractContextManager[Any] = ag_ctx.ControlStatusCtx(status=ag_ctx.Status.UNSPECIFIED)
    return usual


def find_scope_types(data: Any, given: Mapping[Seeds, set[int]]) -> dict[int, Scope]:
    """Return which seeds of a dataset must be alike in all shards, or in all passes, by their numbers.

    Alike in all shards are those in front of `.shard()`, and of what decides an order in a dataset that is not sharded
    by it, but maybe in another way; in all passes those of a shuffle that says so.
    """
    found: dict[int, Scope] = {}
    if not given:
        return found
    for one in upstream(data):
        for each in _shared_seeds(one):
            found.update(dict.fromkeys(_numbers_in(each, given), "pass"))
    for one in upstream(data):
        if not bool(getattr(one, "_reshuffle_each_iteration", True)):
            found.update(dict.fromkeys(given.get(_own_seeds(one), ()), "job"))
    return found


def _shared_seeds(data: Any) -> list[Any]:
    """Return which datasets must draw the same in all shards because of this one."""
    if is_shard(data):
        return [each for each in upstream(data) if each is not data]
    if type(data).__name__ not in ORDERS or any(map(is_shard, upstream(data))):
        return []
    return [data, *selector_of(data)]


def _own_seeds(data: Any) -> Seeds:
    if not hasattr(data, "_seed2"):
        return None, None
    return int(data._seed), int(data._seed2)


def _numbers_in(data: Any, given: Mapping[Seeds, set[int]]) -> set[int]:
    """Return the requests whose seeds a dataset has, or a function that it calls."""
    pairs = {_own_seeds(data)}
    constants: set[int] = set()
    for node in itertools.chain.from_iterable(map(nodes_called, functions_of(data))):
        pairs.add((node.attr["seed"].i, node.attr["seed2"].i))
        if node.op == "Const" and not node.attr["value"].tensor.tensor_shape.dim:  # of a dataset within a function
            constants.update(node.attr["value"].tensor.int64_val)
    pairs |= {pair for pair in given if constants.issuperset(pair)}
    return {number for pair in pairs for number in given.get(pair, ())}
