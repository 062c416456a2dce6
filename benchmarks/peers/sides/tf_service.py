"""tf.data service: dispatcher and worker in a process of their own, reached through loopback, uncompressed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

from benchmarks.peers.recipe import BatchIterator, Recipe
from benchmarks.peers.sides import tf_data

os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="2")
prepare = tf_data.prepare


def _serve(pipe: Any) -> None:
    service = tf_data.tensorflow().data.experimental.service
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1]))
    pipe.send(dispatcher.target)
    pipe.recv()
    del worker


def batches(recipe: Recipe, variant: str) -> BatchIterator:
    """Yield batches without end: the whole pipeline runs in the worker, which sends finished batches."""
    with served(tf_data.batched(tf_data.graph(recipe, variant), recipe.batch)) as data:
        yield from tf_data.arrays(data)


def epochs(recipe: Recipe) -> BatchIterator:
    """Yield the batches of a user's dataset, epoch after epoch."""
    assert recipe.epochs is not None
    with served(recipe.epochs.make_dataset(1, 0)) as data:
        while True:
            yield from tf_data.arrays(data)


@contextlib.contextmanager
def served(data: Any) -> Iterator[Any]:
    """Start a service, and return a dataset as it sends it.

    The two are on one machine, where compression only costs; the trainer asks for several batches at a time.
    """
    tf = tf_data.tensorflow()
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    service = tf.data.experimental.service
    try:
        sent = service.distribute(service.ShardingPolicy.OFF, mine.recv(), compression=None)
        yield data.apply(sent).prefetch(tf.data.AUTOTUNE)
    finally:
        mine.send("stop")
        server.join(5)
