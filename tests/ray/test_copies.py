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
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")

ROWS, WIDTH, BATCH = 400, 8192, 10
ONE = pecan.Workers(local=1)


@pytest.fixture
def copied_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have copied a batch to a device."""
    by: list[str] = []

    class RecordedCopies(devices.OnDevice):  # type: ignore[misc]  # torch is imported where it is installed
        def _make_copy(self, columns: Any, tensors: Any) -> Any:
            by.append(threading.current_thread().name)
            return super()._make_copy(columns, tensors)

    monkeypatch.setattr("pecan_ray.batches.device_copies", lambda device: RecordedCopies(torch.device(device)))
    return by


class ReadsInPlace:
    """`DeviceCalls` of a device that is this process: it reads where memory is registered, at once."""

    def __init__(self) -> None:
        self.in_place, self.locked = 0, set[int]()

    def register(self, address: int, nbytes: int) -> None:
        self.locked.add(address)

    def unregister(self, address: int) -> None:
        self.locked.remove(address)

    def copy(self, tensors: Any, is_registered: Any) -> Any:
        self.in_place += all(is_registered(one.data_ptr()) for one in tensors.values())
        return {name: one.clone() for name, one in tensors.items()}, None

    def wait(self, event: None) -> None:
        """All copies are done."""

    def hand_over(self, tensors: Any, event: None) -> None:
        """Nothing runs beside the copies."""


def test_batches_are_read_where_their_worker_has_written_them(monkeypatch: pytest.MonkeyPatch) -> None:
    device, calls = devices.OnDevice(torch.device("cpu")), ReadsInPlace()
    device._calls, device._slots = calls, PinnedSlots(calls)
    monkeypatch.setattr("pecan_ray.batches.device_copies", lambda name: device)
    few: dict[str, Any] = {"prefetch_bytes": 4 * BATCH * WIDTH}
    kept = list(pipe().iter_batches(format="torch", device="cpu", workers=ONE, epochs=4, order="strict", **few))
    assert [int(i) for batch in kept for i in batch["i"]] == [*range(ROWS)] * 4
    assert all((batch["x"] == batch["i"][:, None]).all() for batch in kept)
    assert calls.in_place > ROWS / BATCH, "of four epochs one, and more"
    assert calls.locked == set()
    assert "pecan-dma" not in [thread.name for thread in threading.enumerate()]


def pipe() -> pecan.PecanPipeline:
    """Return rows of 32 KB, each of which holds its number throughout."""
    source = pecan.sources.Arrays(i=np.arange(ROWS, dtype=np.int32))

    def filled(row: Any) -> Any:
        return {**row, "x": np.full(WIDTH, row["i"], np.float32)}

    return pecan.PecanPipeline(source, name="copies").map(filled).batch(BATCH)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_what_comes_while_the_loop_is_busy_is_copied_on_a_thread_that_ends_with_the_job(
    copied_by: list[str], device: str
) -> None:
    options: dict[str, Any] = {"format": "torch", "device": device, "workers": ONE, "order": "strict", "epochs": 2}
    batches = pipe().iter_batches(**options)
    kept = [next(batches)]
    for number in range(2, 6):
        until(lambda: len(copied_by) == number, "the next batch is not copied")  # noqa: B023  # at once
        kept.append(next(batches))
    until(lambda: len(copied_by) == 6, "the next batch is not copied")
    state = batches.state_dict()
    for batch in batches:
        assert batch["x"].device.type == device
        kept.append(batch)
    seen = [int(i) for batch in kept for i in batch["i"]]
    assert seen == [*range(ROWS)] * 2
    for batch in kept:  # however long they are kept
        assert torch.equal(batch["x"], batch["i"][:, None].float().expand(-1, WIDTH))
    assert copied_by[:5].count("pecan-ahead") >= 4, "none but the first one is waited for"
    assert len(copied_by) == 2 * ROWS / BATCH, "each once"
    assert "pecan-ahead" not in [thread.name for thread in threading.enumerate()]
    again = [int(i) for batch in pipe().iter_batches(**options, state=state) for i in batch["i"]]
    assert seen[: 5 * BATCH] + again == seen, "a state leaves out what was only copied ahead"


@needs_gpu
def test_batches_of_jax_on_the_gpu_hold_what_they_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU here")
    mesh = jax.make_mesh((1,), ("data",))
    over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    for more in ({}, {"sharding": over}):
        kept = list(pipe().iter_batches(format="jax", workers=ONE, **more))
        assert sorted(int(i) for batch in kept for i in batch["i"]) == list(range(ROWS))
        for batch in kept:
            assert batch["x"].devices() == {jax.devices()[0]}
            assert bool((batch["x"] == batch["i"][:, None]).all())
