"""A program of several processes of JAX: each finds its part of one job."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.ray.user_programs import environment_at, free_port, started
from tests.ray.waiting import ENDS_S

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
mine = [int(i) for batch in pipe.batch(4).iter_batches(workers=pecan.Workers(local=1)) for i in batch["i"]]
uneven = pipe.batch(4, drop_remainder=True).map(lambda i: i[:2] if i[0] % 8 else i, on="i")
try:
    said = "nothing"
    for _ in uneven.iter_batches(format="jax", sharding=over, workers=pecan.Workers(local=1)):
        pass
except pecan.errors.PecanError as error:
    said = str(error)
print(json.dumps([rows, mine, said]))
"""


@pytest.mark.slow  # two processes import JAX and find each other
@pytest.mark.usefixtures("no_actor_left")
def test_two_processes_of_jax_hold_each_its_part_of_every_batch(one_node: Any, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    jax = {"JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu", "MEET_AT": f"127.0.0.1:{free_port()}"}
    environment = environment_at(one_node.address, **jax)
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    with ExitStack() as stack:
        programs = [
            stack.enter_context(started(OF_JAX, environment, str(number), stderr=stack.enter_context(log.open("w"))))
            for number, log in enumerate(logs)
        ]
        outs = [program.communicate(timeout=ENDS_S)[0] for program in programs]
    assert [program.returncode for program in programs] == [0, 0], [log.read_text() for log in logs]
    (rows, *first), (others, mine, uneven) = (json.loads(out.splitlines()[-1]) for out in outs)
    assert rows == others, "each sees the whole of every batch"
    assert sorted(first[0] + mine) == list(range(40)), "without a sharding no process reads what another one has"
    assert all("all batches must have one shape" in one for one in (first[1], uneven)), (first[1], uneven)
    assert len(rows) == 10
    for epoch in (rows[:5], rows[5:]):
        assert sorted(i for row in epoch for i in row) == list(range(40)), "no process reads what another one has"
