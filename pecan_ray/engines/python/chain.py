"""A run of operators on one element: map, filter and flat_map, one function call after the other."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pecan_ray.engines.contract import BadElement, EngineOptions
from pecan_ray.engines.python.items import Item, Loose
from pecan_ray.errors import ColumnError, ElementError, OpError, OutputTypeError
from pecan_ray.plan.operators import ElementOp, Filter, FlatMap, Map
from pecan_ray.plan.splits import OUTPUT_BITS
from pecan_ray.sampling.randomness import generator, random_key

Call = Callable[..., Any]


@dataclass(frozen=True)
class Step:
    """An operator, ready to be called."""

    op: ElementOp
    call: Call
    wants_rng: bool


def wants_rng(fn: Call) -> bool:
    """Tell whether a function declares a parameter named `rng`."""
    try:
        return "rng" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False  # builtins without a signature declare nothing


class Chain:
    """Runs its operators on items; errors follow the `on_error` policy."""

    def __init__(
        self,
        ops: Sequence[ElementOp],
        options: EngineOptions,
        loose: Loose,
        call: Callable[[ElementOp], Call] = lambda op: op.fn,
    ) -> None:
        self._steps = [Step(op, call(op), wants_rng(op.fn)) for op in ops]
        self._options = options
        self._loose = loose
        self._one_to_one = all(isinstance(op, Map) for op in ops)

    def run(self, item: Item) -> list[Item]:
        """Return what becomes of an item; positions of what is dropped go to the loose ones."""
        try:
            values = self._apply(item)
        except ElementError as error:
            if self._options.on_error == "raise":
                raise
            kept = item.value if self._options.on_error == "quarantine" else None
            op = str(error.fields.get("op", ""))
            self._loose.add(item.parts, BadElement(op, item.where(), error.message.splitlines()[0], kept))
            return []
        if not values:
            self._loose.add(item.parts)
            return []
        if len(values) == 1 or self._one_to_one:
            item.value = values[0]
            return [item]
        return self._spread(item, values)

    def _spread(self, item: Item, values: list[Any]) -> list[Item]:
        """Give each output of an element its own position; those that were delivered before are dropped."""
        if item.row_parts is not None or len(item.parts) != 1:
            items = [Item(value, [], item.lease, item.element) for value in values]
            items[-1].parts = item.parts
            return items
        key, start, stop = item.parts[0]
        first = item.element << OUTPUT_BITS
        out = []
        for number, value in enumerate(values):
            begin = first + number
            end = (item.element + 1) << OUTPUT_BITS if number == len(values) - 1 else begin + 1
            begin, end = max(begin, start), min(end, stop)
            if begin < end:
                out.append(Item(value, [(key, begin, end)], item.lease, item.element))
        if not out:
            self._loose.add(item.parts)
        return out

    def _apply(self, item: Item) -> list[Any]:
        values = [item.value]
        for step in self._steps:
            if isinstance(step.op, FlatMap):
                values = [v for n, value in enumerate(values) for v in self._flat(step, value, item, n)]
            elif isinstance(step.op, Filter):
                values = [v for n, v in enumerate(values) if self._call(step, v, item, n)[0]]
            else:
                values = [self._map(step, value, item, n) for n, value in enumerate(values)]
        return values

    def _map(self, step: Step, value: Any, item: Item, output: int) -> Any:
        result = self._call(step, value, item, output)[0]
        if step.op.on is not None:
            return {**value, step.op.on: result}
        if not isinstance(result, dict):
            raise self._wrong_type(step.op, item, result, "a dict from column name to value")
        return result

    def _flat(self, step: Step, value: Any, item: Item, output: int) -> list[Any]:
        result = self._call(step, value, item, output)[0]
        if not isinstance(result, Iterable) or isinstance(result, (dict, str, bytes)):
            raise self._wrong_type(step.op, item, result, "a list of elements (or another iterable of them)")
        on = step.op.on
        values = [{**value, on: one} for one in result] if on is not None else list(result)
        for one in values:
            if not isinstance(one, dict):
                raise self._wrong_type(step.op, item, one, "dicts from column name to value")
        return values

    def _call(self, step: Step, value: Any, item: Item, output: int) -> tuple[Any]:
        op = step.op
        if op.on is not None and op.on not in value:
            raise ColumnError(
                f"{op.name}: there is no column {op.on!r} in {item.where()}; there are {sorted(value)}.",
                op=op.name,
                column=op.on,
            )
        argument = value if op.on is None else value[op.on]
        try:
            if step.wants_rng:
                return (step.call(argument, rng=generator(self._key(op, item, output))),)
            return (step.call(argument),)
        except Exception as error:
            split = item.lease.split
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)[1:])
            raise OpError(
                f"{op.name} failed on {item.where()}: {type(error).__name__}: {error}\n{trace}",
                op=op.name,
                file=split.path,
                element=item.element,
                column=op.on,
            ) from error

    def _key(self, op: ElementOp, item: Item, output: int) -> tuple[int, int]:
        lease = item.lease
        return random_key(
            self._options.seed,
            lease.epoch,
            lease.repetition,
            lease.branch,
            lease.split.index,
            item.element,
            output,
            op.name,
        )

    def _wrong_type(self, op: ElementOp, item: Item, result: Any, wanted: str) -> OutputTypeError:
        return OutputTypeError(
            f"{op.name} returned {type(result).__name__} for {item.where()}, but it must return {wanted}. To change "
            'one column by a function of its value, pass on="column".',
            op=op.name,
            file=item.lease.split.path,
            element=item.element,
        )
