from __future__ import annotations

import json
import os
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.quarantine import quarantined
from tests.ray.workers import ONE_BY_ONE, lose, maker

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 3000


def slow(i: Any, rng: Any) -> Any:
    """Compute for about a millisecond."""
    import tensorflow as tf

    noise = tf.random.stateless_normal([200, 200], rng)
    return i + tf.cast(0 * tf.reduce_sum(tf.matmul(noise, noise)), i.dtype)


@pytest.mark.slow
def test_a_graph_on_two_workers_survives_the_loss_of_one() -> None:
    source = pecan.sources.Arrays(i=np.arange(ROWS))
    pipe = pecan.PecanPipeline(source, name="graph", engine="tensorflow").map(slow, on="i").shuffle(64).batch(16)
    seen: Counter[int] = Counter()
    with pipe.iter_batches(epochs=2, workers=pecan.Workers(local=1, remote=1), **ONE_BY_ONE) as it:
        for step, batch in enumerate(it):
            seen.update(int(i) for i in batch["i"])
            if step == 20:
                lose(it, maker(it))
        report = it.report()
    assert report.workers_lost == 1
    assert seen == Counter(dict.fromkeys(range(ROWS), 2))


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


def checked(i: Any) -> Any:
    import tensorflow as tf

    with tf.control_dependencies([tf.debugging.assert_less(i, tf.constant(50, i.dtype), message="too large")]):
        return tf.identity(i)


@pytest.mark.slow
def test_an_error_in_a_graph_reaches_the_trainer() -> None:
    source = pecan.sources.Arrays(i=np.arange(100))
    pipe = pecan.PecanPipeline(source, name="wrong", engine="tensorflow").map(checked, on="i").batch(4)
    with pytest.raises(errors.OpError, match=r"checked failed on element \d of split \d+.*too large"):
        list(pipe.iter_batches())


@pytest.mark.slow
def test_an_element_that_ends_the_process_of_a_graph_is_found_in_pieces_and_kept_by_name(tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"{number}\n" for number in range(100)))

    def deadly(line: bytes) -> bytes:
        if line == b"77":
            os._exit(9)
        return line

    def decode(line: Any) -> Any:
        import tensorflow as tf

        return tf.numpy_function(deadly, [line], tf.string)

    config = pecan.Config(quarantine_path=str(tmp_path / "bad.jsonl"), error_budget=1.0)
    pipe = pecan.PecanPipeline(pecan.sources.TextLines(text), name="deadly", engine="tensorflow", config=config)
    batches = pipe.map(decode, on="text").batch(4).iter_batches(workers=pecan.Workers(local=1), on_error="quarantine")
    seen = Counter(int(line) for batch in batches for line in batch["text"])
    assert seen == Counter(number for number in range(100) if number != 77)
    assert batches.report().bad_elements == 1
    (bad,) = quarantined(tmp_path / "bad.jsonl")
    assert bad.where == f"element 77 of {text}" and bad.element is None
