from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


def test_a_graph_goes_on_from_a_state_with_what_was_not_yielded() -> None:
    source = pecan.sources.Arrays(i=np.arange(600))
    pipe = pecan.PecanPipeline(source, name="graph", engine="tensorflow").map(lambda i: i + 1, on="i").shuffle(64)
    pipe = pipe.batch(8)
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1)) as it:
        seen = Counter(int(i) for batch in islice(it, 50) for i in batch["i"])
        state = json.loads(json.dumps(it.state_dict()))
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1), state=state) as it:
        seen.update(int(i) for batch in it for i in batch["i"])
    assert seen == Counter(dict.fromkeys(range(1, 601), 2))


def shards(num_shards: int, index: int) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.range(100).shard(num_shards, index).batch(4)


@pytest.mark.slow
def test_an_existing_tf_data_pipeline_runs_on_workers() -> None:
    pipe = pecan.PecanPipeline.from_tf_data(shards, num_shards=4, name="existing")
    with pipe.iter_batches(workers=pecan.Workers(local=1), format="tf") as it:
        batches = list(it)
    import tensorflow as tf

    assert all(isinstance(batch["0"], tf.Tensor) for batch in batches)
    assert sorted(int(i) for batch in batches for i in batch["0"]) == list(range(100))
