"""The inflation factor, from shapes and from measured bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.reorder import inflation_factor

LABELLED = {"label": ((), "int64")}
FOUR = {"x": ((4,), "uint8")}
MASKED = {**FOUR, "mask": ((4,), "bool")}


@pytest.mark.parametrize(
    ("before", "after", "counts", "factor"),
    [
        (
            {"image": ((480, 360, 3), "float32"), **LABELLED},
            {"image": ((224, 224, 3), "float32"), **LABELLED},
            {},
            (224 * 224 * 3 * 4 + 8) / (480 * 360 * 3 * 4 + 8),
        ),
        *(
            ({"x": ((7,), "float32")}, {"x": ((7,), dtype)}, {}, factor)
            for dtype, factor in (("float16", 0.5), (np.float64, 2.0), ("bfloat16", 0.5), ("int4", 0.125))
        ),
        (FOUR, MASKED, {}, 2.0),
        (MASKED, FOUR, {}, 0.5),
        (FOUR, FOUR, {"elements_in": 100, "elements_out": 30}, 0.3),
        (FOUR, {"x": ((64, 4), "uint8")}, {"elements_in": 64, "elements_out": 1}, 1.0),
        (518_400, 602_112, {}, 602_112 / 518_400),
        (100.0, 50.0, {"elements_in": 300, "elements_out": 150}, 0.25),
        ({"x": ((100,), "uint8")}, 25.0, {}, 0.25),
        (10, 10, {"elements_in": 5, "elements_out": 0}, 0.0),
    ],
)
def test_bytes_of_all_columns_and_elements_count_whether_known_by_shapes_or_measured(
    before: Any, after: Any, counts: dict[str, Any], factor: float
) -> None:
    assert inflation_factor(before, after, **counts) == pytest.approx(factor)


@pytest.mark.parametrize(
    "unknown", [((None, 3), "uint8"), (None, "uint8"), ((3,), None), ((), "string"), ((), object), ((), "U")]
)
def test_what_is_not_known_beforehand_gives_no_static_factor(unknown: tuple[None, str]) -> None:
    known = {"x": ((3,), "uint8")}
    assert inflation_factor(known, {**known, "y": unknown}) is None
    assert inflation_factor({**known, "y": unknown}, known) is None


@pytest.mark.parametrize(
    ("before", "after", "counts", "said"),
    [
        ({}, FOUR, {}, "no bytes"),
        (0, 5, {}, "no bytes"),
        (FOUR, FOUR, {"elements_in": 0}, "elements_in must be a finite number > 0"),
        (FOUR, FOUR, {"elements_out": -1}, "elements_out"),
        (FOUR, float("nan"), {}, "after must be"),
        (FOUR, {"x": ((-1,), "uint8")}, {}, r"after\['x'\] has a negative dimension"),
        (FOUR, {"x": ((1,), "float31")}, {}, "unknown dtype 'float31'"),
        (FOUR, {"x": 3}, {}, r"must be \(shape, dtype\)"),
    ],
)
def test_nonsense_is_refused_by_name(before: Any, after: Any, counts: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        inflation_factor(before, after, **counts)
