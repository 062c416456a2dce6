"""Batches on a real GPU: right, never written over, and lost with nobody.  Skipped where there is none."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from tests.ray.waiting import until

torch: Any = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.usefixtures("one_node", "no_actor_left"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]

ROWS, WIDTH, BATCH = 4000, 8192, 40


def pipe() -> pecan.PecanPipeline:
    """Return rows of 32 KB, each of which holds its number throughout."""
    source = pecan.sources.Arrays(i=np.arange(ROWS, dtype=np.int32))

    def filled(row: Any) -> Any:
        return {**row, "x": np.full(WIDTH, row["i"], np.float32)}

    return pecan.PecanPipeline(source, name="gpu").map(filled).batch(BATCH)


def test_batches_of_torch_on_the_gpu_hold_what_they_held_however_long_they_are_kept() -> None:
    kept = []
    with pipe().iter_batches(format="torch", device="cuda", epochs=2, workers=pecan.Workers(local=2)) as batches:
        for batch in batches:
            assert batch["x"].is_cuda and batch["i"].is_cuda
            busy = batch["x"] @ batch["x"].T  # the copy of the next batch runs beside this
            kept.append((batch, busy))
    seen = torch.cat([batch["i"] for batch, _ in kept])
    assert sorted(seen.tolist()) == sorted([*range(ROWS)] * 2), "each row twice: once an epoch"
    for batch, busy in kept:
        assert torch.equal(batch["x"], batch["i"][:, None].float().expand(-1, WIDTH))
        rows = batch["i"].double()
        assert torch.allclose(busy.double(), WIDTH * rows[:, None] * rows, rtol=1e-2)


def test_what_comes_during_a_step_is_pinned_and_copied_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: Any = pytest.importorskip("pecan_ray.integrations.devices")
    copied, by = devices.OnDevice._copied, []

    def noted(device: Any, tensors: Any) -> Any:
        by.append(threading.current_thread().name)
        return copied(device, tensors)

    monkeypatch.setattr(devices.OnDevice, "_copied", noted)
    with pipe().iter_batches(format="torch", device="cuda", workers=pecan.Workers(local=2)) as batches:
        next(batches)
        for number in range(2, 12):
            until(lambda: len(by) == number, "the next batch is not copied during the step")  # noqa: B023  # at once
            assert next(batches)["x"].is_cuda
    assert by[:11].count("pecan-ahead") >= 10, "none but the first one is waited for"


def test_a_state_leaves_out_what_was_only_copied_ahead() -> None:
    first = pipe().iter_batches(format="torch", device="cuda", workers=pecan.Workers(local=1))
    before = [i for _ in range(10) for i in next(first)["i"].tolist()]
    state = first.state_dict()
    first.close()
    with pipe().iter_batches(format="torch", device="cuda", workers=pecan.Workers(local=1), state=state) as batches:
        after = [i for batch in batches for i in batch["i"].tolist()]
    assert sorted(before + after) == list(range(ROWS))


def test_batches_of_jax_on_the_gpu_hold_what_they_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU here")
    with pipe().iter_batches(format="jax", workers=pecan.Workers(local=2)) as batches:
        kept = list(batches)
    assert sorted(int(i) for batch in kept for i in batch["i"]) == list(range(ROWS))
    for batch in kept:
        assert batch["x"].devices() == {jax.devices()[0]}
        assert bool((batch["x"] == batch["i"][:, None]).all())
    mesh = jax.make_mesh((1,), ("data",))
    over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    with pipe().iter_batches(format="jax", sharding=over, workers=pecan.Workers(local=2)) as batches:
        for batch in batches:
            assert bool((batch["x"] == batch["i"][:, None]).all())
