"""Batches that a thread of the trainer's copies to a device ahead of the training loop; on a GPU where there is one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.integrations.pinned_slots import PinnedSlots
from tests.ray.waiting import until

torch: Any = pytest.importorskip("torch")
devices: Any = pytest.importorskip("pecan_ray.integrations.devices")

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS, WIDTH, BATCH = 400, 8192, 10
ONE = pecan.Workers(local=1)


class ReadsInPlace:
    """`DeviceCalls` of a device that is this process: it reads where memory is registered, at once."""

    def __init__(self) -> None:
        self.in_place, self.locked, self.by = 0, set[int](), list[str]()

    def register(self, address: int, nbytes: int) -> None:
        self.locked.add(address)

    def unregister(self, address: int) -> None:
        self.locked.remove(address)

    def copy(self, tensors: Any, is_registered: Any) -> Any:
        self.by.append(threading.current_thread().name)
        self.in_place += all(is_registered(one.data_ptr()) for one in tensors.values())
        return {name: one.clone() for name, one in tensors.items()}, None

    def wait(self, event: None) -> None:
        """All copies are done."""

    def hand_over(self, tensors: Any, event: None) -> None:
        """Nothing runs beside the copies."""


def pipe() -> pecan.PecanPipeline:
    """Return rows of 32 KB, each of which holds its number throughout."""
    source = pecan.sources.Arrays(i=np.arange(ROWS, dtype=np.int32))

    def filled(row: Any) -> Any:
        return {**row, "x": np.full(WIDTH, row["i"], np.float32)}

    # Twelve batches may wait in a worker's slots, each of which is registered before the worker has it again.
    config = pecan.Config(ring_bytes=12 * BATCH * WIDTH * 4)
    return pecan.PecanPipeline(source, name="copies", config=config).map(filled).batch(BATCH)


def test_batches_are_copied_ahead_on_a_thread_from_where_their_worker_has_written_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, calls = devices.OnDevice(torch.device("cpu")), ReadsInPlace()
    device._calls, device._slots = calls, PinnedSlots(calls)
    monkeypatch.setattr("pecan_ray.batches.device_copies", lambda name: device)
    rows = pipe()
    options: dict[str, Any] = {"workers": ONE, "order": "strict", "epochs": 4, "prefetch_bytes": 4 * BATCH * WIDTH}
    batches = rows.iter_batches(format="torch", device="cpu", **options)
    kept = [next(batches)]
    for number in range(2, 6):
        until(lambda: len(calls.by) == number, "the next batch is not copied")  # noqa: B023  # at once
        kept.append(next(batches))
    until(lambda: len(calls.by) == 6, "the next batch is not copied")
    state = batches.state_dict()
    kept += batches
    seen = [int(i) for batch in kept for i in batch["i"]]
    assert seen == [*range(ROWS)] * 4
    assert all((batch["x"] == batch["i"][:, None]).all() for batch in kept), "however long they are kept"
    assert calls.by[:5].count("pecan-ahead") >= 4, "none but the first one is waited for"
    assert len(calls.by) == 4 * ROWS / BATCH, "each once"
    assert calls.in_place > ROWS / BATCH, "of four epochs one, and more"
    assert calls.locked == set()
    assert not {"pecan-ahead", "pecan-dma"} & {thread.name for thread in threading.enumerate()}
    monkeypatch.undo()
    again = [int(i) for batch in rows.iter_batches(**options, state=state) for i in batch["i"]]
    assert seen[: 5 * BATCH] + again == seen, "a state leaves out what was only copied ahead"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
@pytest.mark.parametrize("format", ["torch", "jax"])
def test_batches_on_a_gpu_hold_what_they_held(monkeypatch: pytest.MonkeyPatch, format: Any) -> None:
    options: dict[str, Any] = {"device": "cuda"}
    if format == "jax":
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        jax = pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("JAX sees no GPU here")
        mesh = jax.make_mesh((1,), ("data",))
        options = {"sharding": jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))}
    kept = list(pipe().iter_batches(format=format, workers=ONE, **options))
    assert sorted(int(i) for batch in kept for i in batch["i"]) == list(range(ROWS))
    for batch in kept:
        assert "cpu" not in str(batch["x"].device)
        assert bool((batch["x"] == batch["i"][:, None]).all())
