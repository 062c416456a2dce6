"""Words of other loaders, and what does their work here: somebody who types one is told ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

BATCHES = "make batches by the pipeline's .batch(n), or .padded_batch(n)"
SHUFFLES = "put .shuffle(buffer) into the pipeline"
SEEDS = "PecanPipeline(source, seed=...) is of everything random"
WORKERS = "workers=4 fixes the workers of a loop; without it their number is found while the loop runs"
AHEAD = "prefetch_bytes=... of the loop bounds what waits at the trainer"
BEHIND_BATCH = ".map(fn, rows=n) gives the function columns of n rows, and .map(fn) behind .batch(n) whole batches"
COLLATES = ".batch(n, collate=fn) makes a batch of the list of elements"
DROPS = "say .batch(n, drop_remainder=True)"
BOUND = "give it to the function by functools.partial(fn, ...)"
COLUMNS = "a function of the whole element returns the dict of columns that are to be kept"
LOOPS = "for batch in pipe.iter_batches(epochs=1)"

ARGUMENTS: Mapping[str, str] = {
    "batch_size": BATCHES,
    "batched": BEHIND_BATCH,
    "collate_fn": COLLATES,
    "concurrency": WORKERS,
    "deterministic": 'order="strict" of the loop keeps one sequence',
    "drop_last": DROPS,
    "dtypes": "cast in a .map of the pipeline: it runs on the workers",
    "fn_args": BOUND,
    "fn_kwargs": BOUND,
    "input_columns": 'on="column" gives the function one column',
    "local_shuffle_buffer_size": SHUFFLES,
    "local_shuffle_seed": SEEDS,
    "num_cpus": WORKERS,
    "num_epochs": "say epochs=...",
    "num_parallel_calls": WORKERS,
    "num_proc": WORKERS,
    "num_threads": "Config(threads_per_worker=...) sets the threads of a worker",
    "num_workers": WORKERS,
    "persistent_workers": "one loop of epochs=n keeps its workers",
    "pin_memory": "memory is pinned where device= is a GPU",
    "prefetch_batches": AHEAD,
    "prefetch_buffer_size": AHEAD,
    "prefetch_factor": AHEAD,
    "random_seed": SEEDS,
    "remove_columns": COLUMNS,
    "reshuffle_each_iteration": "say .shuffle(buffer, reshuffle=...)",
    "shuffle": SHUFFLES,
    "timeout": "Config(worker_timeout_s=...) is how long a worker may be silent",
    "worker_init_fn": ".map(fn, setup=make) calls make() once in each process, and gives fn what it returns",
}
"""Arguments."""

METHODS: Mapping[str, str] = {
    "apply": ".map(fn), .filter(fn) or .flat_map(fn) add operators",
    "as_numpy_iterator": LOOPS,
    "cache": ".autocache() keeps what was computed, where that saves time",
    "concatenate": ".concat(other)",
    "decode": "sources.ImageFolder decodes, and .map(pecan.images.Decode(), on=column) does",
    "enumerate": "a function with a parameter `rng` or `epoch` is given those",
    "interleave": ".flat_map(fn) for elements, .mix(other, weights=[...]) for pipelines",
    "iter_epochs": "pipe.iter_batches(epochs=n)",
    "iter_rows": "a pipeline without .batch yields elements: pipe.iter_batches()",
    "iter_torch_batches": 'pipe.iter_batches(format="torch")',
    "iter_tf_batches": 'pipe.iter_batches(format="tf")',
    "map_batches": BEHIND_BATCH,
    "materialize": ".autocache() keeps what was computed, where that saves time",
    "random_shuffle": ".shuffle(buffer)",
    "ragged_batch": ".padded_batch(n), or .batch(n, collate=fn)",
    "rebatch": ".unbatch().batch(n)",
    "rename_columns": COLUMNS,
    "sample_from_datasets": ".mix(other, weights=[...])",
    "schema": "pipe.peek() is the first element",
    "select_columns": COLUMNS,
    "set_format": 'pipe.iter_batches(format="torch")',
    "shard": "pipe.iter_batches(rank=..., world_size=...)",
    "show": "pipe.peek(n) returns the first elements",
    "snapshot": ".autocache() keeps what was computed, where that saves time",
    "streaming_split": "pipe.iter_batches(rank=..., world_size=...)",
    "take_all": "list(pipe.iter_batches())",
    "to_device": 'pipe.iter_batches(format="torch", device="cuda")',
    "union": ".concat(other), or .mix(other, weights=[...])",
    "unique": ".filter(fn) with a function of its own",
    "window": ".batch(n) makes groups of n elements",
    "with_format": 'pipe.iter_batches(format="torch")',
}
"""Methods."""


def explain_foreign_arguments(owner: Class) -> Class:
    """Let the public methods of a class answer arguments of other loaders by ours."""
    for name, method in list(vars(owner).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(owner, name, _checked(method))
    return owner


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(method).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return method  # it checks them itself
    own = {one.name for one in parameters}

    @functools.wraps(method)
    def checked_call(*given: Any, **named: Any) -> Any:
        for word in named.keys() - own:
            if word in ARGUMENTS:
                raise TypeError(f"{method.__name__}({word}=...) is not of pecan_ray: {ARGUMENTS[word]}.")
        return method(*given, **named)

    return checked_call


def why_no_method(owner: str, word: str) -> str:
    """Return what an AttributeError says of a method that a class does not have."""
    ours = f": {METHODS[word]}" if word in METHODS else ""
    return f"{owner!r} object has no attribute {word!r}{ours}"
