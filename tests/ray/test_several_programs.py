"""Programs of several processes, started by JAX or TensorFlow: each finds its part of one job."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.ray.user_programs import environment_at, free_port, no_ray_folder, started
from tests.ray.waiting import ENDS_S


def said_by_both(code: str, folder: Path, *environments: dict[str, str]) -> list[Any]:
    """Run a program in each environment, beside each other; return the JSON of their last lines."""
    logs = [folder / f"{number}.log" for number in range(len(environments))]
    with ExitStack() as stack:
        programs = [
            stack.enter_context(started(code, environment, str(number), stderr=stack.enter_context(log.open("w"))))
            for number, (environment, log) in enumerate(zip(environments, logs, strict=True))
        ]
        outs = [program.communicate(timeout=ENDS_S)[0] for program in programs]
        assert [program.returncode for program in programs] == [0, 0], [log.read_text() for log in logs]
    return [json.loads(out.splitlines()[-1]) for out in outs]


OF_JAX = """
import json
import os
import sys

import jax
import numpy as np

import pecan_ray as pecan

jax.distributed.initialize(os.environ["MEET_AT"], 2, int(sys.argv[1]))
mesh = jax.make_mesh((4,), ("data",))
over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
gather = jax.jit(lambda i: i, out_shardings=everywhere)
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40, dtype=np.int32)), name="of-jax")
rows = []
with pipe.batch(4, drop_remainder=True).iter_batches(
    format="jax", sharding=over, epochs=2, workers=pecan.Workers(local=1)
) as batches:
    for batch in batches:
        assert batch["i"].shape == (8,) and len(batch["i"].addressable_shards) == 2
        rows.append(np.asarray(gather(batch["i"])).tolist())
try:
    pipe.batch(4).iter_batches(format="jax", sharding=over)
except pecan.errors.PlanError as error:
    refused = str(error)
mine = [int(i) for batch in pipe.batch(4).iter_batches(workers=pecan.Workers(local=1)) for i in batch["i"]]
uneven = pipe.batch(4, drop_remainder=True).map(lambda i: i[:2] if i[0] % 8 else i, on="i")
try:
    said = "nothing"
    for _ in uneven.iter_batches(format="jax", sharding=over, workers=pecan.Workers(local=1)):
        pass
except pecan.errors.PecanError as error:
    said = str(error)
print(json.dumps([rows, refused, mine, said]))
"""


@pytest.mark.slow  # two processes import JAX and find each other
@pytest.mark.usefixtures("no_actor_left")
def test_two_processes_of_jax_hold_each_its_part_of_every_batch(one_node: Any, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    jax = {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu", "MEET_AT": f"127.0.0.1:{free_port()}"}
    environment = environment_at(one_node.address, **jax)
    (rows, refused, *first), (*others, mine, uneven) = said_by_both(OF_JAX, tmp_path, environment, environment)
    assert [rows, refused] == others, "each sees the whole of every batch"
    assert sorted(first[0] + mine) == list(range(40)), "without a sharding no process reads what another one has"
    assert all("all batches must have one shape" in one for one in (first[1], uneven)), (first[1], uneven)
    assert len(rows) == 10
    for epoch in (rows[:5], rows[5:]):
        assert sorted(i for row in epoch for i in row) == list(range(40)), "no process reads what another one has"
    assert "say drop_remainder=True for 'batch'" in refused


OF_TENSORFLOW = """
import json

import numpy as np
import tensorflow as tf

import pecan_ray as pecan

strategy = tf.distribute.MultiWorkerMirroredStrategy()
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name="mirrored").batch(10)
data = pipe.to_tf_dataset(epochs=2, workers=pecan.Workers(local=1))
batches = strategy.distribute_datasets_from_function(lambda context: data)
with strategy.scope():
    weight = tf.Variable(0.0)


@tf.function
def step(batch):
    def in_replica(rows):
        total = tf.reduce_sum(tf.cast(rows, tf.float32))
        weight.assign_add(tf.distribute.get_replica_context().all_reduce("sum", total))

    strategy.run(in_replica, args=(batch["i"],))


read = []
for epoch in range(2):
    read.append([])
    for batch in batches:
        step(batch)
        read[-1] += strategy.experimental_local_results(batch)[0]["i"].numpy().tolist()
data.close()
print(json.dumps([read, float(weight.numpy())]))
"""


@pytest.mark.slow  # two programs import TensorFlow, start one Ray and meet there
def test_processes_of_tf_config_train_in_step_on_batches_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(2)]}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(2)]
    with no_ray_folder() as own:
        environments = [environment_at(None, **own, TF_CONFIG=json.dumps(task)) for task in tasks]
        (first, weight), (second, again) = said_by_both(OF_TENSORFLOW, tmp_path, *environments)
    for mine, others in zip(first, second, strict=True):
        assert len(mine) == len(others) == 20 and sorted(mine + others) == list(range(40))
    assert weight == again == 2 * sum(range(40)), "each step has summed what both processes had"
