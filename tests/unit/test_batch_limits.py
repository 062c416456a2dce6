"""Epochs of a fixed length, and runs of a fixed number of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError

PIPE = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(100))).batch(10)


def sizes(pipe: pecan.PecanPipeline, **options: Any) -> tuple[int, list[int]]:
    """The length that is told, and how many batches each epoch has."""
    with pipe.iter_batches(debug=True, first_epoch=0, **options) as batches:
        length = len(batches)
        epochs = []
        while epoch := list(batches.one_epoch()):
            epochs.append(len(epoch))
    assert len(list(pipe.iter_batches(debug=True, first_epoch=0, **options))) == sum(epochs)
    return length, epochs


@pytest.mark.parametrize(
    ("pipe", "options", "epochs"),
    [
        (PIPE, {"epochs": 3, "epoch_batches": 4}, [4, 4, 4]),
        (PIPE, {"epochs": 2, "epoch_batches": 10}, [10, 10]),
        (PIPE, {"epochs": 2, "epoch_batches": 11}, [10, 10]),
        (PIPE.repeat(), {"epochs": 2, "epoch_batches": 25}, [25, 25]),
        (PIPE, {"epochs": None, "epoch_batches": 4, "steps": 9}, [4, 4, 1]),
        (PIPE, {"epochs": None, "steps": 20}, [10, 10]),
        (PIPE, {"epochs": 2, "steps": 3}, [3]),
    ],
)
def test_an_epoch_has_so_many_batches_and_a_run_so_many_steps(pipe: Any, options: Any, epochs: list[int]) -> None:
    assert sizes(pipe, **options) == (sum(epochs), epochs)


def test_each_epoch_of_a_fixed_length_is_a_pass_of_its_own() -> None:
    pipe = PIPE.map(lambda i, epoch: i * 0 + epoch, on="i")
    batches = pipe.iter_batches(debug=True, epochs=3, first_epoch=0, epoch_batches=2)
    assert [int(batch["i"][0]) for batch in batches] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("given", [{"epoch_batches": 0}, {"steps": -1}, {"steps": 2.5}, {"steps": 1, "share": True}])
def test_limits_that_are_none_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"epoch_batches|steps"):
        PIPE.iter_batches(**given)
