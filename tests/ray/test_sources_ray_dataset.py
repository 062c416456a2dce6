"""RayDataset on a real, small Ray."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray

from pecan_ray.sources import RayDataset
from tests.ray.conftest import end_actors
from tests.source_contract import same


@pytest.fixture(scope="module")
def ray_data(one_node: Any) -> Iterator[None]:
    """A cluster on which nothing of Ray Data is left."""
    yield
    end_actors()


@pytest.mark.usefixtures("ray_data")
def test_blocks_are_the_splits() -> None:
    dataset = ray.data.range(100, override_num_blocks=4).map(lambda row: {"id": row["id"], "x": np.full(3, row["id"])})
    source = RayDataset(dataset)
    assert source.num_elements() is None
    splits = list(source.splits())
    assert len(splits) == 4
    assert source.num_elements() == 100
    assert list(source.splits()) == splits, "the dataset must not be executed again"
    rows = [element for split in splits for element in source.read(split)]
    assert sorted(int(row["id"]) for row in rows) == list(range(100))
    assert all(row["x"].tolist() == [row["id"]] * 3 for row in rows)
    for split in splits:
        whole = list(source.read(split))
        assert split.elements == len(whole)
        for start in (0, 1, len(whole) - 1, len(whole)):
            tail = list(source.read(split, start))
            assert len(tail) == len(whole) - start
            assert all(map(same, tail, whole[start:]))


@pytest.mark.usefixtures("ray_data")
def test_the_first_rows_are_given_without_executing_the_dataset() -> None:
    source = RayDataset(ray.data.range(1000, override_num_blocks=10))
    assert [int(row["id"]) for row in source.first(5)] == [0, 1, 2, 3, 4]
    assert source.num_elements() is None


@pytest.mark.usefixtures("ray_data")
def test_another_process_reads_the_same_blocks() -> None:
    source = RayDataset(ray.data.from_items([{"n": n} for n in range(10)], override_num_blocks=2))
    splits = list(source.splits())

    @ray.remote(num_cpus=1)
    def read(sent: RayDataset) -> tuple[str, list[int]]:
        return sent.identity(), [int(row["n"]) for split in sent.splits() for row in sent.read(split)]

    identity, numbers = ray.get(read.remote(source))
    assert identity == source.identity()
    assert numbers == [int(row["n"]) for split in splits for row in source.read(split)]
    assert sorted(numbers) == list(range(10))


def test_the_class_pickles_without_ray_data() -> None:
    assert pickle.loads(pickle.dumps(RayDataset("anything"))).dataset == "anything"
