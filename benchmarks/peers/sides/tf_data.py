"""tf.data in the trainer's process: parallel map and prefetch, tuned by AUTOTUNE, batches in any order."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any

import numpy as np

from benchmarks.peers.recipe import BatchIterator, Recipe

os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="2")


def tensorflow() -> Any:
    """Return TensorFlow, which is imported only here."""
    return importlib.import_module("tensorflow")


def prepare(**_options: Any) -> None:
    """Import TensorFlow."""
    tensorflow()


def graph(recipe: Recipe, variant: str) -> Any:
    """Return the case's dataset of single elements, made of TensorFlow's own operators."""
    assert recipe.graph is not None
    return recipe.graph(variant)


def batched(data: Any, size: int) -> Any:
    """Batch and prefetch; batching in parallel was slower (text by a third, photographs by 7 %: decision 19)."""
    tf = tensorflow()
    tune = tf.data.AUTOTUNE
    options = tf.data.Options()
    options.deterministic = False
    return data.batch(size, drop_remainder=True).prefetch(tune).with_options(options)


def arrays(data: Any) -> BatchIterator:
    """Yield batches as NumPy views."""
    for batch in data:
        yield {name: tensor.numpy() for name, tensor in batch.items()}


def batches(recipe: Recipe, variant: str) -> BatchIterator:
    """Yield batches of a graph without end."""
    return arrays(batched(graph(recipe, variant), recipe.batch))


def epochs(recipe: Recipe) -> BatchIterator:
    """Yield the batches of a user's dataset, epoch after epoch."""
    assert recipe.epochs is not None
    data = recipe.epochs.make_dataset(1, 0)
    while True:
        yield from arrays(data)


def numpy_function(recipe: Recipe) -> BatchIterator:
    """Yield batches of the very functions of the other sides, which TensorFlow calls from its threads."""
    import cv2

    cv2.setNumThreads(1)
    tf = tensorflow()
    example = recipe.element(recipe.items[0], np.random.default_rng(0))
    names = list(example)
    types = [tf.as_dtype(np.asarray(example[name]).dtype) for name in names]
    local = threading.local()

    def call(number: int) -> list[Any]:
        if not hasattr(local, "rng"):
            local.rng = np.random.default_rng(threading.get_ident())
        element = recipe.element(recipe.items[number % len(recipe.items)], local.rng)
        return [np.asarray(element[name]) for name in names]

    def mapped(number: Any) -> Any:
        values = tf.numpy_function(call, [number], types, stateful=False)
        for name, value in zip(names, values, strict=True):
            value.set_shape(np.shape(example[name]))
        return dict(zip(names, values, strict=True))

    data = tf.data.Dataset.range(1 << 62).map(mapped, num_parallel_calls=tf.data.AUTOTUNE)
    return arrays(batched(data, recipe.batch))
