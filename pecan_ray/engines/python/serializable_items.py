"""Whether what operators have made can travel to the trainer."""

from __future__ import annotations

from typing import Any

import numpy as np

from pecan_ray.engines.foreign import with_arrays_inside
from pecan_ray.engines.items import Item, has_rows
from pecan_ray.engines.nesting import NestedValueError, check_nesting
from pecan_ray.engines.serializable import MASKED, why_not_serializable
from pecan_ray.errors import OpError, to_str


def check_serializable(item: Item, op: str) -> None:
    """Raise `OpError` for an element, or a batch, that cannot travel to the trainer."""
    for name, value in list(item.value.items()):
        if not (reason := _why_not(value)):
            continue
        if not _why_not(arrays := _without_tensors(value)):
            # PyTorch cannot pickle all its tensors, where NumPy can pickle their numbers.
            item.value[name] = arrays
            continue
        where = item.where_all()
        if item.members and has_rows(value) and len(value) == len(item.members):
            # The element to blame is looked for only now: a batch that can be sent pays nothing for it.
            row, reason = next((r, why) for r, one in enumerate(value) if (why := _why_not(one)))
            where = item.members[row].where()
        raise OpError(
            f"{op}: column {to_str(name)} of {where} cannot be sent to the trainer: {reason}. Drop it, or make bytes, "
            "numbers or an array of it, by a map before.",
            op=op,
            **item.place,
            column=name,
        )


def _without_tensors(value: Any) -> Any:
    """Return a value with arrays in the place of tensors, unless it holds itself."""
    try:
        check_nesting(value)
    except NestedValueError:
        return value
    return with_arrays_inside(value)


def _why_not(value: Any) -> str:
    return MASKED if isinstance(value, np.ma.MaskedArray) else why_not_serializable(value)
