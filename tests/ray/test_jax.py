"""Two processes of JAX make global arrays of the batches of one job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest
import ray

pytest.importorskip("jax")

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

PROGRAM = """
import json
import sys

import jax
import numpy as np

import pecan_ray as pecan

process, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
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
def test_two_processes_hold_each_its_part_of_every_batch() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context: Any = ray.get_runtime_context()
    env = {**os.environ, "RAY_ADDRESS": context.gcs_address, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
    run = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(process), str(port)], env=env, stdout=-1, stderr=-1, text=True
        )
        for process in range(2)
    ]
    said = [one.communicate(timeout=120) for one in run]
    assert [one.returncode for one in run] == [0, 0], said
    (rows, refused, *first), (*others, mine, uneven) = (json.loads(out.splitlines()[-1]) for out, _ in said)
    assert [rows, refused] == others, "each sees the whole of every batch"
    assert sorted(first[0] + mine) == list(range(40)), "without a sharding no process reads what another one has"
    assert all("all batches must have one shape" in one for one in (first[1], uneven)), (first[1], uneven)
    assert len(rows) == 10
    for epoch in (rows[:5], rows[5:]):
        assert sorted(i for row in epoch for i in row) == list(range(40)), "no process reads what another one has"
    assert "say drop_remainder=True for 'batch'" in refused
