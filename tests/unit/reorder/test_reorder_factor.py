"""The inflation factor, from shapes and from measured bytes."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.reorder import inflation_factor
from pecan_ray.reorder.factor import ShapeAndType


def test_a_resize_counts_the_bytes_of_all_columns() -> None:
    before = {"image": ((480, 360, 3), "float32"), "label": ((), "int64")}
    after = {"image": ((224, 224, 3), "float32"), "label": ((), "int64")}
    expected = (224 * 224 * 3 * 4 + 8) / (480 * 360 * 3 * 4 + 8)
    assert inflation_factor(before, after) == pytest.approx(expected)


@pytest.mark.parametrize(("dtype", "factor"), [("float16", 0.5), (np.float64, 2.0), ("bfloat16", 0.5), ("int4", 0.125)])
def test_a_cast_counts_the_bits_of_the_types(dtype: str, factor: float) -> None:
    assert inflation_factor({"x": ((7,), "float32")}, {"x": ((7,), dtype)}) == pytest.approx(factor)


def test_created_and_dropped_columns_count() -> None:
    before = {"x": ((4,), "uint8")}
    after = {"x": ((4,), "uint8"), "mask": ((4,), "bool")}
    assert inflation_factor(before, after) == 2.0
    assert inflation_factor(after, before) == 0.5


def test_filters_and_batches_count_elements() -> None:
    spec = {"x": ((4,), "uint8")}
    assert inflation_factor(spec, spec, elements_in=100, elements_out=30) == pytest.approx(0.3)
    assert inflation_factor(spec, {"x": ((64, 4), "uint8")}, elements_in=64, elements_out=1) == 1.0


def test_measured_bytes_give_the_same_factor_as_shapes() -> None:
    assert inflation_factor(518_400, 602_112) == pytest.approx(602_112 / 518_400)
    assert inflation_factor(100.0, 50.0, elements_in=300, elements_out=150) == pytest.approx(0.25)
    assert inflation_factor({"x": ((100,), "uint8")}, 25.0) == pytest.approx(0.25)


@pytest.mark.parametrize(
    "unknown", [((None, 3), "uint8"), (None, "uint8"), ((3,), None), ((), "string"), ((), object), ((), "U")]
)
def test_what_is_not_known_beforehand_gives_no_static_factor(unknown: tuple[None, str]) -> None:
    known = {"x": ((3,), "uint8")}
    assert inflation_factor(known, {**known, "y": unknown}) is None
    assert inflation_factor({**known, "y": unknown}, known) is None


def test_a_filter_that_keeps_nothing_gives_zero() -> None:
    assert inflation_factor(10, 10, elements_in=5, elements_out=0) == 0.0


def test_nonsense_is_refused_by_name() -> None:
    spec = {"x": ((3,), "uint8")}
    with pytest.raises(PlanError, match="no bytes"):
        inflation_factor({}, spec)
    with pytest.raises(PlanError, match="no bytes"):
        inflation_factor(0, 5)
    with pytest.raises(PlanError, match="elements_in must be a finite number > 0"):
        inflation_factor(spec, spec, elements_in=0)
    with pytest.raises(PlanError, match="elements_out"):
        inflation_factor(spec, spec, elements_out=-1)
    with pytest.raises(PlanError, match="after must be"):
        inflation_factor(spec, float("nan"))
    with pytest.raises(PlanError, match=r"after\['x'\] has a negative dimension"):
        inflation_factor(spec, {"x": ((-1,), "uint8")})
    with pytest.raises(PlanError, match="unknown dtype 'float31'"):
        inflation_factor(spec, {"x": ((1,), "float31")})
    with pytest.raises(PlanError, match=r"must be \(shape, dtype\)"):
        inflation_factor(spec, cast(dict[str, ShapeAndType], {"x": 3}))
