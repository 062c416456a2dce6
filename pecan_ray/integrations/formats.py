"""Batches as NumPy, torch, TensorFlow or JAX: converted without a copy where the framework can."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from pecan_ray.engines.contract import is_plain
from pecan_ray.engines.foreign import as_tensor
from pecan_ray.engines.serializable import PLAIN_OR_NUMBERS
from pecan_ray.errors import MissingExtraError, PlanError
from pecan_ray.options import Format
from pecan_ray.plan.operators import Plan
from pecan_ray.sources.tf_data import TfDataSource

Converter = Callable[[dict[str, Any]], dict[str, Any]]


def converter(format: Format, plan: Plan | None = None) -> Converter:
    """Return the function that turns a batch of NumPy arrays into a batch of a framework's tensors.

    Columns that are not arrays of numbers (bytes, str, ragged) stay as they are; TensorFlow takes bytes and str.  In
    dicts and tuples of columns each is converted, and in lists each array.
    torch shares the memory of a batch, unless it is read-only; TensorFlow and JAX copy it as they see fit.
    Raises `MissingExtraError` if the framework is not installed.
    """
    makers: dict[str, Callable[[], Converter]] = {"torch": _torch, "tf": partial(_tensorflow, plan), "jax": _jax}
    if format == "numpy":
        return dict
    if format not in makers:
        raise PlanError(f"format must be 'numpy', 'torch', 'tf' or 'jax', but got {format!r}.")
    try:
        return makers[format]()
    except ImportError as error:
        package = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}[format]
        raise MissingExtraError(
            f'format="{format}" needs {package}, which is not installed: pip install {package}', extra=format
        ) from error


def each(value: Any, convert: Callable[[Any], Any], *, in_lists: bool = True) -> Any:
    """Return a batch, or a column of it, in which every column in dicts and tuples is converted.

    `in_lists`: arrays and tensors in lists, too; numbers and texts in lists stay as they are.
    """
    if type(value) is dict:
        return {name: each(one, convert, in_lists=in_lists) for name, one in value.items()}
    if type(value) is tuple:
        return tuple(each(one, convert, in_lists=in_lists) for one in value)
    if type(value) is list and in_lists:
        return [one if type(one) in PLAIN_OR_NUMBERS else each(one, convert) for one in value]
    return convert(value)


def _numeric(value: Any) -> bool:
    """Tell whether a value is an array of numbers, or one of its items."""
    return isinstance(value, (np.ndarray, np.generic)) and is_plain(value.dtype) and value.dtype.kind not in "mM"


def _torch() -> Converter:
    import torch

    def convert(value: Any) -> Any:
        if not _numeric(value) or getattr(torch, value.dtype.name, None) is None:
            return value  # also a number type that torch does not have
        array = np.asarray(value)
        # torch has no tensors that are read-only, of another byte order, or with steps backwards.
        if not array.flags.writeable or not array.dtype.isnative or any(stride < 0 for stride in array.strides):
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        try:
            return as_tensor(array)
        except TypeError:
            return value

    return lambda batch: each(batch, convert)


def _tensorflow(plan: Plan | None) -> Converter:
    import tensorflow as tf

    if plan is not None and isinstance(plan.head, TfDataSource):
        return _structured(plan)

    def convert(value: Any) -> Any:
        if isinstance(value, np.bytes_):
            value = bytes(value)  # TensorFlow makes an array of it, without the zeros at its end
        known = _numeric(value) or isinstance(value, (bytes, str, int, float)) or _all_strings(value)
        return tf.convert_to_tensor(value) if known else value

    return lambda batch: each(batch, convert)


def _structured(plan: Plan) -> Converter:
    """Return what gives the elements of an existing dataset in its own structure, if they have its columns."""
    from pecan_ray.integrations.tf_structure import structure_of

    flat = _tensorflow(None)
    made = cache(partial(structure_of, plan))  # the dataset is made for the first batch

    def converted(batch: dict[str, Any]) -> Any:
        structure = made()
        return structure.tensors(batch) if structure is not None and structure.matches(batch) else flat(batch)

    return converted


def _all_strings(value: Any) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    if value.dtype.kind in "SU":
        return True
    return value.dtype == object and all(isinstance(item, (bytes, str)) for item in value.flat)


def _jax() -> Converter:
    import jax.numpy as jnp

    from pecan_ray.integrations.jax_range import check_compatible

    def convert(name: str, value: Any) -> Any:
        if not _numeric(value):
            return value
        check_compatible(name, value)
        return jnp.asarray(value)

    def converted(batch: dict[str, Any]) -> dict[str, Any]:
        return {name: each(value, partial(convert, name)) for name, value in batch.items()}

    return converted
