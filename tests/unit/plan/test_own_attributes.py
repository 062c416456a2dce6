"""Functions whose `__getattr__` raises something else than AttributeError, or answers to every name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.plan.operators import wants_rng
from pecan_ray.runtime.pickling import held_by


class Raises:
    """Raises an error of its own for every attribute that it lacks."""

    error: type[Exception] = KeyError

    def __getattr__(self, name: str) -> Any:
        raise self.error(name)

    def __call__(self, element: Any) -> Any:
        return element

    def method(self, element: Any) -> Any:
        return element


class RaisesValueError(Raises):
    """Raises what `inspect` takes for an answer."""

    error = ValueError


class Answers:
    """Has every attribute, as mocks and proxies have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and "wrapped" not in name:
            raise AttributeError(name)
        return Answers()

    def __call__(self, element: Any) -> Any:
        return element


def holding(value: Any) -> Callable[[Any], Any]:
    return lambda element: (value, element)[1]


@pytest.mark.parametrize("kind", [Raises, RaisesValueError, Answers])
@pytest.mark.parametrize("place", [lambda one: one, holding, functools.partial], ids=["itself", "held", "partial"])
def test_such_a_function_runs_like_others(kind: Any, place: Callable[[Any], Any]) -> None:
    config = pecan.Config(sample_seconds=1.0)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(12)), name="odd", config=config)
    pipe = pipe.map(place(kind()), on="i").batch(4)
    assert pipe.fingerprint() == pipe.fingerprint()
    op: Any = pipe.plan.ops[0]
    assert dict(held_by(op.fn)).keys() <= {"value"}
    assert [int(i) for batch in pipe.iter_batches(debug=True) for i in batch["i"]] == list(range(12))


class RaisesAndDraws(Raises):
    """Wants random numbers."""

    def __call__(self, element: Any, rng: Any = None) -> Any:
        return element


def test_it_gets_random_numbers_if_it_declares_them() -> None:
    assert wants_rng(RaisesAndDraws()) and wants_rng(functools.partial(RaisesAndDraws()))
    assert not wants_rng(Raises()) and not wants_rng(Answers()) and not wants_rng(len)
