"""RayDataset on a real, small Ray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray

from pecan_ray.sources import RayDataset
from tests.ray.conftest import end_actors


@pytest.fixture(scope="module")
def ray_data(one_node: Any) -> Iterator[None]:
    """A cluster on which nothing of Ray Data is left."""
    yield
    end_actors()


@pytest.mark.usefixtures("ray_data")
def test_blocks_are_the_splits_in_another_process_too() -> None:
    dataset = ray.data.range(100, override_num_blocks=4).map(lambda row: {"id": row["id"], "x": np.full(3, row["id"])})
    source = RayDataset(dataset)
    assert [int(row["id"]) for row in source.first(5)] == [0, 1, 2, 3, 4]
    assert source.num_elements() is None, "the dataset was not executed for the first rows"
    splits = list(source.splits())
    assert len(splits) == 4
    assert source.num_elements() == 100
    assert list(source.splits()) == splits, "the dataset must not be executed again"
    blocks = [list(source.read(split)) for split in splits]
    assert sorted(int(row["id"]) for block in blocks for row in block) == list(range(100))
    assert all(row["x"].tolist() == [row["id"]] * 3 for block in blocks for row in block)
    assert [row["id"] for row in source.read(splits[1], 3)] == [row["id"] for row in blocks[1][3:]]
    assert [split.elements for split in splits] == [len(block) for block in blocks]

    @ray.remote(num_cpus=1)
    def read(sent: RayDataset) -> tuple[str, list[int]]:
        return sent.identity(), [int(row["id"]) for split in sent.splits() for row in sent.read(split)]

    identity, numbers = ray.get(read.remote(source))
    assert identity == source.identity()
    assert numbers == [int(row["id"]) for block in blocks for row in block]
