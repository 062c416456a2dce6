"""Words of other loaders are answered by ours, and are never words of ours."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.peer_words import ARGUMENTS, METHODS

PIPE: Any = pecan.PecanPipeline(pecan.sources.Arrays(x=np.arange(8)), name="words").batch(2)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: iter(PIPE), TypeError, r"for batch in pipe\.iter_batches"),
        (lambda: PIPE.map_batches, AttributeError, r"'map_batches': \.map\(fn\) behind \.batch\(n\)"),
        (lambda: PIPE.mapp, AttributeError, r"has no attribute 'mapp'$"),
        (lambda: PIPE.batch(4, drop_last=True), TypeError, r"batch\(drop_last=.*drop_remainder=True"),
        (lambda: PIPE.iter_batches(num_workers=4), TypeError, r"iter_batches\(num_workers=.*workers=4"),
        (lambda: PIPE.to_torch(num_workers=4), PlanError, r"to_torch\(num_workers=.*workers=4"),
        (lambda: PIPE.map(print, other=4), TypeError, "unexpected keyword argument 'other'"),
        (lambda: PIPE.iter_batches(workers=0), PlanError, r"workers=0: .*debug=True"),
        (lambda: PIPE.iter_batches(workers=True), PlanError, "workers=True"),
        (lambda: PIPE.iter_batches(workers=-1), PlanError, r"local=.*>= 0, but got -1"),
        (lambda: PIPE.iter_batches(workers="4"), PlanError, "workers must be"),
    ],
)
def test_a_word_of_another_loader_is_answered_by_ours(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_no_word_of_others_is_one_of_ours() -> None:
    methods = {name: method for name, method in vars(pecan.PecanPipeline).items() if inspect.isfunction(method)}
    del methods["__init__"]  # it takes a sampler, and answers nobody
    assert not [word for word in METHODS if hasattr(pecan.PecanPipeline, word)]
    assert not [(name, word) for name, one in methods.items() for word in ARGUMENTS if word in own(one)]
    assert "epochs" in own(pecan.PecanPipeline.iter_batches), "what answers has the signature of what it answers for"


def own(method: Any) -> set[str]:
    return set(inspect.signature(method).parameters)


def test_a_number_of_workers_is_of_local_ones() -> None:
    with PIPE.iter_batches(workers=4, debug=True) as batches:
        assert len(list(batches)) == 4


def test_an_error_within_a_property_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pecan.PecanPipeline, "seed", property(lambda self: self.plan.no_such_part))
    with pytest.raises(AttributeError, match="no_such_part"):
        _ = PIPE.seed
