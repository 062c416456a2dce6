"""Existing tf.data pipelines by `from_tf_data`, beside plain tf.data and tf.data service: epoch after epoch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.peers.cases import photographs, text
from benchmarks.peers.cases.case import PeerCase, Target
from benchmarks.peers.recipe import Epochs, Recipe

LONG_EPOCH, SHORT_EPOCH = 2560, 384
"""Photographs: 2 s and 0.3 s of two CPUs that make 1,300 a second."""
FILES, LINES = 8, 6250
"""Files of text, and lines in each: 2 s of two CPUs that make 25,000 a second."""
OURS, PLAIN, SERVICE = "pecan from_tf_data", "tf.data, epochs", "tf.data service, epochs"


def _photographs(data: str, count: int, num_shards: int, index: int) -> Any:
    from benchmarks.peers.cases import graphs

    listed = list(itertools.islice(itertools.cycle(photographs.listed(data)), count))
    return graphs.shard_of_photographs(listed, photographs.BATCH, num_shards, index)


def _lines(paths: list[str], num_shards: int, index: int) -> Any:
    from benchmarks.peers.cases import graphs

    tokenize = functools.partial(graphs.tokens_of, length=text.LENGTH, vocabulary=text.VOCABULARY)
    return graphs.shard_of_tokens(paths[index::num_shards], tokenize, text.BATCH)


def _of_photographs(count: int, shards: int, data: str) -> Recipe:
    return replace(photographs.recipe(data), epochs=Epochs(functools.partial(_photographs, data, count), shards))


def _of_lines(shards: int, data: str) -> Recipe:
    paths = [text.file_of_lines(LINES, f"part-{number}") for number in range(FILES)]
    return replace(text.recipe(data), epochs=Epochs(functools.partial(_lines, paths), shards))


def _case(key: str, title: str, unit: str, recipe: Callable[[str], Recipe], ratio: float) -> PeerCase:
    targets = (Target(OURS, PLAIN, ratio), Target(OURS, SERVICE, 1.7))
    return PeerCase(key, title, unit, recipe, (OURS, PLAIN, SERVICE), targets, bounds={OURS: PLAIN})


EXISTING = (
    _case(
        "existing-whole",
        "photographs of an existing tf.data pipeline, one shard, epochs of 2 s",
        "images",
        functools.partial(_of_photographs, LONG_EPOCH, 1),
        1.0,
    ),
    _case(
        "existing-shards",
        "photographs of an existing tf.data pipeline, 6 shards, epochs of 2 s",
        "images",
        functools.partial(_of_photographs, LONG_EPOCH, 6),
        1.0,
    ),
    _case(
        "existing-text",
        "lines of text of an existing tf.data pipeline, 8 shards, epochs of 2 s",
        "lines",
        functools.partial(_of_lines, 8),
        0.95,
    ),
    _case(
        "existing-short",
        "photographs of an existing tf.data pipeline, one shard, epochs of 0.3 s",
        "images",
        functools.partial(_of_photographs, SHORT_EPOCH, 1),
        0.95,
    ),
)
