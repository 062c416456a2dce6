"""What is told from values of columns: kind, dimensions, whether two are equal, what they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pecan_ray.autoorder.element_spec import ElementSpec, equal, kind_of, rank_of
from pecan_ray.engines.counting import column_bytes
from pecan_ray.engines.foreign import as_array, type_name
from pecan_ray.sources.copies import copy_value


def spec_of(*elements: dict[str, Any]) -> ElementSpec:
    spec = ElementSpec()
    for element in elements:
        spec.add(element)
    return spec


@pytest.mark.parametrize(
    ("element", "said"),
    [
        ({"x": np.zeros((5, 2), np.float32), "name": "b"}, ""),
        ({"x": np.zeros((3, 2), np.float64), "name": "a"}, "is float64 with 2 dimensions instead of float32"),
        ({"x": np.zeros((3, 3), np.float32), "name": "a"}, r"shape is [3, 3] instead of [?, 2]"),
        ({"x": np.zeros(3, np.float32), "name": "a"}, "is float32 with 1 dimensions instead of float32 with 2"),
        ({"x": np.zeros((3, 2), np.float32)}, "the columns ['x'] instead of ['name', 'x']"),
        ({"x": np.zeros((3, 2), np.float32), "name": b"a"}, "it is bytes instead of str"),
    ],
)
def test_a_spec_says_what_differs(element: dict[str, Any], said: str) -> None:
    usual = spec_of(*({"x": np.zeros((side, 2), np.float32), "name": "a"} for side in (3, 4)))
    told = usual.difference(spec_of(element))
    assert said in told and bool(said) == bool(told)


def test_equality_is_of_type_and_content() -> None:
    nan = np.array([np.nan, 1.0])
    assert equal({"a": nan, "b": ["x", b"y"]}, {"a": nan.copy(), "b": ["x", b"y"]})
    assert not equal(np.zeros(2, np.float32), np.zeros(2, np.float64))
    assert not equal({"a": 1}, {"a": 1, "b": 2})
    assert not equal([np.zeros(2)], [np.ones(2)])


def test_images_of_pillow_have_sizes_shapes_and_equality() -> None:
    image = pytest.importorskip("PIL.Image")
    one = image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3))
    assert column_bytes(one) == 60 and column_bytes(one.convert("L")) == 20 and column_bytes(one.convert("F")) == 80
    assert kind_of(one) == "picture" and rank_of(one) is None and type_name(one) == "Image[RGB]"
    assert equal(one, one.copy()) and not equal(one, one.rotate(90)) and not equal(one, one.convert("L"))
    noted = one.copy()
    noted.info["size"] = (5, 4)
    assert not equal(one, noted) and equal(noted, noted.copy())
    noted.taken, noted.format = "by hand", "PNG"
    assert not equal(noted, noted.copy()) and equal(noted, copy_value(noted))
    assert "shape is [9, 9] instead of [4, 5]" in spec_of({"x": one}).difference(spec_of({"x": one.resize((9, 9))}))


def test_tensors_have_sizes_dimensions_and_equality() -> None:
    torch = pytest.importorskip("torch")
    one = torch.arange(6.0).reshape(2, 3)
    assert column_bytes(one) == 24 and kind_of(one) == "number" and rank_of(one) == 2
    assert equal(one, one.clone()) and not equal(one, one + 1) and not equal(one, one.double())
    assert equal(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    for odd in (one.bfloat16(), one.requires_grad_(), one.detach().to_sparse(), one.detach().T):
        assert as_array(odd) is not None and np.isfinite(np.asarray(as_array(odd))).all()
