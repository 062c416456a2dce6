"""pecan_ray: one local worker, or as many as AutoPlacement finds, with the defaults of everything else."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import ray

import pecan_ray as pecan
from benchmarks.peers.recipe import CPUS, BatchIterator, Recipe
from benchmarks.peers.sides.tf_data import tensorflow
from pecan_ray.options import EngineName

STORE_BYTES = 1 << 30


def prepare(engine: EngineName, **_options: Any) -> None:
    """Start Ray, as `ray start` has done it before on a cluster; a trainer of TensorFlow's has imported that.

    As the peers' packages, ours is imported whole before the time of a first batch begins.
    """
    importlib.import_module("pecan_ray.pipeline")
    if engine == "tensorflow":
        tensorflow()
    ray.init(
        num_cpus=CPUS,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        namespace="pecan",
        logging_level=logging.ERROR,
    )


def batches(recipe: Recipe, engine: EngineName, workers: str = "one", operators: str = "own") -> BatchIterator:
    """Yield batches without end, made by the functions that all sides have ("own"), or by the library's."""
    fixed: Any = pecan.Workers(local=1) if workers == "one" else None
    if operators == "own":
        pipe = recipe.pecan(engine)
    else:
        assert recipe.known is not None
        pipe = recipe.known()
    with pipe.iter_batches(workers=fixed) as taken:
        yield from taken


def existing(recipe: Recipe, **_options: Any) -> BatchIterator:
    """Yield the batches of a user's dataset, epoch after epoch, made by one local worker."""
    assert recipe.epochs is not None
    make, shards = recipe.epochs.make_dataset, recipe.epochs.shards
    pipe = pecan.PecanPipeline.from_tf_data(make, num_shards=shards, name="existing")
    with pipe.iter_batches(workers=pecan.Workers(local=1), epochs=None) as taken:
        yield from taken
