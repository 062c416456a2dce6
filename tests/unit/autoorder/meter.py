"""A meter in place of the clock: looks take their times from the bytes that operators are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray.autoorder import order, python_runner
from pecan_ray.engines.counting import column_bytes, element_bytes
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.complete_calls import complete_call
from pecan_ray.engines.python.row_maps import RowMaps
from pecan_ray.plan.operators import ElementOp
from pecan_ray.plan.splits import Element, Split

SECONDS_A_BYTE = 1e-8


class Meter:
    """A timer of what calls have spent, of which there is one for all."""

    spent = 0.0

    def start(self) -> None:
        self.started = Meter.spent

    def stop(self) -> float:
        return Meter.spent - self.started


def metered(op: ElementOp) -> Callable[..., Any]:
    call = complete_call(op)

    def spending(value: Any, **keywords: Any) -> Any:
        # Of a copy, which notes nothing: an element that is watched notes what is read of it.
        nbytes = element_bytes({**value}) if isinstance(value, dict) else column_bytes(value)
        Meter.spent += SECONDS_A_BYTE * nbytes
        return call(value, **keywords)

    return spending


class Stored(pecan.sources.Items):
    """A source whose elements take half as long to be read as an operator takes with them."""

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        for element in super().read(split, start):
            Meter.spent += SECONDS_A_BYTE * element_bytes(element) / 2
            yield element


def count_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks take their times from the meter, where maps on many rows at once take a tenth."""

    def in_rows(maps: RowMaps, columns: Mapping[str, Any], count: int, first: Item) -> dict[str, Any]:
        Meter.spent += SECONDS_A_BYTE * count * element_bytes(first.value) / 10
        return run(maps, columns, count, first)

    run = RowMaps.run
    monkeypatch.setattr(RowMaps, "run", in_rows)
    monkeypatch.setattr(python_runner, "ThreadTimer", Meter)
    monkeypatch.setattr(python_runner, "complete_call", metered)
    monkeypatch.setattr(order, "LookClock", lambda: lambda: 0.0)
    monkeypatch.setattr(order, "APART", False)
