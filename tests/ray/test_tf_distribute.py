"""Two processes of a MultiWorkerMirroredStrategy train on one job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
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


def free_addresses(count: int) -> list[str]:
    """Return addresses of this machine whose ports nobody listens at."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


@pytest.mark.slow  # two programs import TensorFlow, start a Ray and meet there
def test_processes_of_tf_config_train_in_step_on_batches_of_their_own() -> None:
    cluster = {"worker": free_addresses(2)}
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # a running cluster is found by a file in Ray's folder
        env |= {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder}
        configs = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}) for index in range(2)]
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env={**env, "TF_CONFIG": config}, stdout=-1, stderr=-1, text=True
            )
            for config in configs
        ]
        said = [one.communicate(timeout=150) for one in workers]
    assert [one.returncode for one in workers] == [0, 0], said
    (first, weight), (second, again) = (json.loads(out.splitlines()[-1]) for out, _ in said)
    for mine, others in zip(first, second, strict=True):
        assert len(mine) == len(others) == 20 and sorted(mine + others) == list(range(40))
    assert weight == again == 2 * sum(range(40)), "each step has summed what both processes had"
