"""Batches as arrays of JAX on a mesh of four devices of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import BatchShapeError, PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays, Items

jax: Any = pytest.importorskip("jax")
jax_arrays: Any = pytest.importorskip("pecan_ray.integrations.jax_arrays")

DEADLINE_S = 30.0

P = jax.sharding.PartitionSpec


@pytest.fixture(scope="module")
def mesh() -> Any:
    devices = jax.devices()
    if len(devices) != 4:
        pytest.fail(f"conftest asks for four devices on the CPU, and there are {len(devices)}")
    return jax.make_mesh((2, 2), ("data", "model"))


def over(mesh: Any, *spec: Any) -> Any:
    return jax.sharding.NamedSharding(mesh, P(*spec))


def rows(count: int = 16) -> PecanPipeline:
    x = np.arange(count * 6, dtype=np.float32).reshape(count, 6)
    return PecanPipeline(Arrays(x=x, y=np.arange(count, dtype=np.int32)), name="rows")


def on_mesh(pipe: PecanPipeline, sharding: Any, **options: Any) -> Any:
    return pipe.iter_batches(format="jax", sharding=sharding, debug=True, **options)


def test_each_device_holds_its_part_of_the_rows_and_of_other_dimensions(mesh: Any) -> None:
    pipe = rows().batch(8)
    batches = list(on_mesh(pipe, over(mesh, ("data", "model"))))
    assert [batch["x"].shape for batch in batches] == [(8, 6), (8, 6)]
    x = batches[1]["x"]
    assert {shard.data.shape for shard in x.addressable_shards} == {(2, 6)}
    assert len({shard.device for shard in x.addressable_shards}) == 4
    assert np.asarray(x).tolist() == [*rows().batch(8).peek(2)][1]["x"].tolist()
    (batch,) = on_mesh(rows(4).batch(4), over(mesh, "data", "model"))
    assert {shard.data.shape for shard in batch["x"].addressable_shards} == {(2, 3)}
    assert {shard.data.shape for shard in batch["y"].addressable_shards} == {(2,)}
    elements = [{"x": np.ones(2, np.float32), "name": str(i), "n": i} for i in range(4)]
    pipe = PecanPipeline(Items(elements)).batch(4)
    (batch,) = on_mesh(pipe, {"x": over(mesh, "data")})
    assert isinstance(batch["x"], jax.Array) and isinstance(batch["n"], np.ndarray)
    (batch,) = on_mesh(pipe, over(mesh, "data"))
    assert isinstance(batch["n"], jax.Array) and batch["name"].tolist() == ["0", "1", "2", "3"]


def test_staged_batches_are_taken_once_and_have_the_shapes_of_columns_for_the_mesh(mesh: Any) -> None:
    places = jax_arrays.OnMesh(over(mesh, "data"))
    mine, other, short = {"x": np.ones(2)}, {"x": np.ones(4)}, {"x": np.ones(3)}
    places.stage(mine, mine)
    assert places.take(mine)["x"].shape == (2,) and places.take(mine) is None, "once"
    places.stage(mine, mine)
    assert places.take(other) is None and places.take(mine) is None, "another one came: it was given back"
    places.stage(short, short)
    with pytest.raises(PlanError, match="column 'x' has 3 rows"):
        places.take(short)
    assert places.take(short) is None, "once"
    batch = {"x": np.ones((4, 3)), "pair": (np.ones(4, np.int8), np.ones(2)), "name": np.array(["a"] * 4)}
    assert places._shapes(batch) == {"x": "float64[4, 3]", "pair": "int8[4]", "pair (2)": "float64[2]"}
    assert jax_arrays.OnMesh({"x": over(mesh, "data")})._shapes(batch) == {"x": "float64[4, 3]"}


def test_what_a_mesh_does_not_divide_is_refused_by_its_batch_or_column(mesh: Any) -> None:
    words = r"P.*'data'.* over the mesh \(data=2, model=2\): the batch of 'batch' has 6 rows, which the 4 parts"
    with pytest.raises(PlanError, match=words):
        rows().batch(6).iter_batches(format="jax", sharding=over(mesh, ("data", "model")))
    batches = on_mesh(rows(5).batch(4), over(mesh, "data"))
    assert next(batches)["x"].shape == (4, 6)
    with pytest.raises(PlanError, match=r"column 'x' has 1 rows, which the 2 parts .* with drop_remainder=True"):
        next(batches)
    with pytest.raises(PlanError, match=r"column 'x' has 5 in dimension 1, .* Pad it to a multiple of 2"):
        list(on_mesh(rows(4).map(lambda x: x[:5], on="x").batch(4), over(mesh, "data", "model")))
    with pytest.raises(PlanError, match="column 'y' is a single number"):
        list(on_mesh(rows(), {"y": over(mesh, "data")}))
    with pytest.raises(PlanError, match=r"no column 'z'; a batch has \['x', 'y'\]"):
        list(on_mesh(rows().batch(8), {"z": over(mesh, "data")}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "torch"}, 'with format="jax" a jax.sharding.NamedSharding, but got NamedSharding'),
        ({"sharding": 3}, 'sharding must be a jax.sharding.NamedSharding with format="jax", but got 3'),
        ({"sharding": {"x": "data"}}, "sharding={'x': ...} must be a jax.sharding.NamedSharding"),
        ({"rank": 0, "world_size": 2}, "process 0 of the 1 of JAX.*but rank=0 and world_size=2: leave these out"),
    ],
)
def test_what_is_no_sharding_is_refused(mesh: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        rows().batch(4).iter_batches(**{"format": "jax", "sharding": over(mesh, "data"), "debug": True, **options})


@pytest.mark.parametrize("sharded", [False, True])
def test_numbers_that_jax_would_cut_are_refused_and_infinite_and_rounded_ones_not(mesh: Any, sharded: bool) -> None:
    options = {"sharding": over(mesh, "data")} if sharded else {}

    def converted(numbers: Any) -> Any:
        (batch,) = PecanPipeline(Arrays(n=numbers)).batch(4).iter_batches(format="jax", debug=True, **options)
        return np.asarray(batch["n"])

    for wide, narrow in (
        (np.array([1, 2, 3, 2**40]), "int32"),
        (np.array([1e300, 1.0] * 2), "float32"),
        (np.array([1e300 + 1j, 1] * 2), "complex64"),
        (np.array([2**33, 1] * 2, np.uint64), "uint32"),
    ):
        assert converted(np.ones_like(wide)).tolist() == [1] * 4
        with pytest.raises(PlanError, match=rf"column 'n' has numbers beyond {narrow}.*jax_enable_x64"):
            converted(wide)
    floats = np.array([np.inf, -np.inf, np.nan, 1 / 3])
    np.testing.assert_array_equal(converted(floats), floats.astype(np.float32))


class Store:
    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._updates = threading.Condition()

    def key_value_set(self, key: str, value: str) -> None:
        with self._updates:
            assert key not in self._held, "one iterator, one key"
            self._held[key] = value
            self._updates.notify_all()

    def blocking_key_value_get(self, key: str, timeout_ms: int) -> str:
        with self._updates:
            assert self._updates.wait_for(lambda: key in self._held, DEADLINE_S), key
            return self._held[key]


@pytest.fixture
def processes(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Any]]:
    """A function that returns what each of several processes of JAX compares shapes with; their devices are one's."""
    shapes: Any = pytest.importorskip("pecan_ray.integrations.jax_shapes")

    def begin(count: int) -> list[Any]:
        monkeypatch.setattr(jax_arrays.jax, "process_count", lambda: count)
        monkeypatch.setattr(shapes.distributed.global_state, "client", Store())
        monkeypatch.setattr(shapes, "_numbers", iter([7] * count))
        return [shapes.OneShape(process, count) for process in range(count)]

    return begin


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([{"ids": "i4[4, 16]"}] * 3, ""),
        ([{"ids": "i4[2]"}, {"ids": "i4[2]"}, {"ids": "i4[4]"}], "is i4[4] in the first batch of process 2, and i4[2]"),
        ([{"ids": "i4[2]", "mask": "b[2]"}, {"ids": "i4[2]"}, {"ids": "i4[2]"}], "'mask' is no array in the first "),
    ],
)
def test_if_first_batches_differ_all_processes_raise_the_same_error(
    processes: Callable[[int], list[Any]], batches: list[dict[str, str]], words: str
) -> None:
    with ThreadPoolExecutor(len(batches)) as threads:
        checked = [threads.submit(one.check, shapes) for one, shapes in zip(processes(3), batches, strict=True)]
        said = [str(one.exception() or "") for one in checked]
    assert len(set(said)) == 1, "a process that goes on waits in its step for those that do not"
    assert words in said[0] and bool(words) == bool(said[0])


def test_later_batches_of_a_process_have_the_shape_of_its_first_one(processes: Callable[[int], list[Any]]) -> None:
    (first,) = processes(1)
    first.check({"ids": "float32[4, 16]"})
    first.check({"ids": "float32[4, 16]"})
    with pytest.raises(PlanError, match=r"'ids' is float32\[4, 9\] in this .* 0, and float32\[4, 16\] in its first b"):
        first.check({"ids": "float32[4, 9]"})
    with pytest.raises(PlanError, match=r"'mask' is bool\[4\] in .* of process 0, and no array in its first batch"):
        first.check({"ids": "float32[4, 16]", "mask": "bool[4]"})


def test_lengths_of_their_own_are_refused_before_several_processes_begin(processes: Callable[[int], list[Any]]) -> None:
    processes(2)
    said = r"2 processes of JAX all must have batches of one shape, and '.*' pads each.*shapes={...}"
    for pipe in (
        rows().padded_batch(4, drop_remainder=True),
        rows().padded_batch(4, shapes={"x": (None,)}, drop_remainder=True),
        rows().bucket_by_length([4], sizes=[4, 4], length="x", drop_remainder=True),
    ):
        with pytest.raises(PlanError, match=said):
            jax_arrays._check_fixed_padding(pipe.plan)
    jax_arrays._check_fixed_padding(rows().padded_batch(4, shapes={"x": (6,)}).plan)


def test_a_random_key_as_a_column_is_refused_by_its_name() -> None:
    for key in (jax.random.key(1), [jax.random.key(1)]):
        pipe = rows().map(lambda element, key=key: {**element, "key": key}).batch(4)
        with pytest.raises(BatchShapeError, match=r"'key'.* of element 0 .* PRNGKeyArray, of which no array"):
            list(pipe.iter_batches(debug=True))
